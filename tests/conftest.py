"""What the tests share: real ERA5 projects, processes and a current PyG, made once per session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .distributed.ranks import Ranks

os.environ.update({"WANDB_MODE": "disabled", "MPLBACKEND": "Agg"})

GRAPHS: dict[str, tuple[str, dict[str, float]]] = {
    "multiscale": ("graphcast", {"mesh_grid_distance_ratio": 4}),
    "flat": ("keisler", {"mesh_grid_distance_ratio": 4}),
    "hierarchical": (
        "hierarchical",
        {"mesh_grid_distance_ratio": 7, "level_refinement_factor": 2, "max_num_levels": 3},
    ),
}
"""Archetype and options of each graph; coarse, and of unequal extent in x and y."""
MOST_RANKS = 7
CURRENT_PYG = Path(__file__).parents[1] / ".cache" / "pyg-current"


@pytest.fixture(scope="session")
def era5_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """neural-lam configuration of the ERA5 sample with graphs flat, multiscale and hierarchical (three levels).

    ERA5_PROJECT names a directory where an earlier session's project is kept, which saves a minute.
    """
    from neural_lam_anemoi.adapters.bridge.sample import make_era5_project, make_graph

    kept = os.environ.get("ERA5_PROJECT")
    if kept and (Path(kept) / "config.yaml").exists():
        return Path(kept) / "config.yaml"
    config = make_era5_project(Path(kept) if kept else tmp_path_factory.mktemp("era5"), clamp=True)
    for name, (archetype, options) in GRAPHS.items():
        make_graph(config, name, archetype, **options)
    return config


@pytest.fixture(scope="session")
def era5_dataset(era5_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ERA5 sample as an Anemoi dataset."""
    from neural_lam_anemoi.adapters.bridge.datasets import write_dataset

    output = tmp_path_factory.mktemp("anemoi") / "era5.zarr"
    write_dataset(era5_project, output)
    return output


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes; a task that fails ends them all, and with them the tests that follow."""
    from .distributed.ranks import Ranks

    with Ranks(MOST_RANKS) as processes:
        yield processes


@pytest.fixture(scope="session")
def current_pyg() -> Path:
    """A directory with the newest PyG of the package index, to be put first on the path."""
    if not CURRENT_PYG.exists():
        made = CURRENT_PYG.with_name(f"{CURRENT_PYG.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", made, "torch_geometric"]
        subprocess.run([str(part) for part in command], check=True, timeout=300)
        made.rename(CURRENT_PYG)
    return CURRENT_PYG
