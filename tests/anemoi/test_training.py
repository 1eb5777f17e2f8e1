"""Stock ``anemoi-training`` and ``anemoi-inference`` with the README's layers; training on one rank and on two."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
import yaml
from torch import Tensor

from neural_lam_anemoi.adapters.bridge.processes import executable, run_command

from ..bridge.anemoi_training import configure_stock_model, fine_tune
from ..bridge.test_fine_tuning import ONE_SAMPLE, SGD
from .mixes import SMALL, readme_configuration

ROOT = Path(__file__).parents[2]
TWO_RANKS = (
    "system.hardware.num_gpus_per_node=2",
    "system.hardware.num_gpus_per_model=2",
    "dataloader.read_group_size=2",
)


def weights_in(directory: Path) -> dict[str, Tensor]:
    """The parameters in Anemoi's last training checkpoint."""
    content = torch.load(directory / "last.ckpt", weights_only=False, map_location="cpu")["state_dict"]
    kept = {name: value for name, value in content.items() if name.startswith("model.model.") and "latlons" not in name}
    return {name: value for name, value in kept.items() if value.is_floating_point()}


@pytest.mark.full
def test_two_ranks_train_the_same_model(
    era5_project: Path, era5_dataset: Path, current_pyg: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGD on one sample: every weight to a thousandth of how far it moved. Both start from a run that moved nothing."""
    readme = readme_configuration()
    processor = SMALL["processor"] | readme["model"].pop("processor")
    model = SMALL | readme["model"] | {"processor": processor, "bounding": []}
    anemoi = configure_stock_model(tmp_path, era5_project, "gnn", model, readme["config_validation"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (current_pyg, ROOT))))
    still = fine_tune(anemoi, era5_dataset, tmp_path / "still", *SGD, ONE_SAMPLE, "training.optimization.lr=0.0")
    start = (*SGD, ONE_SAMPLE, f"system.input.warm_start={still / 'last.ckpt'}", "training.load_weights_only=True")
    before = weights_in(still)
    alone = weights_in(fine_tune(anemoi, era5_dataset, tmp_path / "alone", *start))
    made = fine_tune(anemoi, era5_dataset, tmp_path / "shared", *start, *TWO_RANKS)
    shared = weights_in(made)
    assert {"encoder", "processor", "decoder"} <= {name.split(".")[2] for name in before}
    for name, value in before.items():
        moved = (alone[name] - value).abs().max()
        assert moved > 0, name
        assert (shared[name] - alone[name]).abs().max() <= 1e-3 * moved, name
    forecast(made / "inference-last.ckpt", era5_dataset, tmp_path)


def forecast(checkpoint: Path, dataset: Path, place: Path) -> None:
    """Stock ``anemoi-inference run`` makes numbers of it."""
    output = place / "forecast.nc"
    run: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "date": "2026-03-30T06:00:00",
        "lead_time": "12h",
        "device": "cpu",
    }
    run |= {"input": {"dataset": {"dataset": str(dataset)}}, "output": {"netcdf": {"path": str(output)}}}
    (place / "inference.yaml").write_text(yaml.safe_dump(run))
    command = [executable("anemoi-inference"), "run", place / "inference.yaml"]
    run_command(command, place / "inference.log", output)
    with xr.open_dataset(output) as written:
        assert {"t2m", "msl"} <= set(written) and all(bool(written[name].notnull().all()) for name in ("t2m", "msl"))
