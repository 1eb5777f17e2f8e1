"""What the tests share: real ERA5 projects, built once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.update({"WANDB_MODE": "disabled", "MPLBACKEND": "Agg"})

GRAPHS = {"multiscale": "graphcast", "flat": "keisler", "hierarchical": "hierarchical"}


@pytest.fixture(scope="session")
def era5_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """neural-lam configuration of the ERA5 sample with graphs flat, multiscale and hierarchical (three levels)."""
    from neural_lam_anemoi.adapters.bridge.sample import make_era5_project, make_graph

    config = make_era5_project(tmp_path_factory.mktemp("era5"), clamp=True)
    for name, archetype in GRAPHS.items():
        make_graph(config, name, archetype, mesh_grid_distance_ratio=4)
    return config


@pytest.fixture(scope="session")
def era5_dataset(era5_project: Path) -> Path:
    """The ERA5 sample as an Anemoi dataset."""
    from neural_lam_anemoi.adapters.bridge.datasets import write_dataset

    output = era5_project.parent / "era5-anemoi.zarr"
    write_dataset(era5_project, output)
    return output
