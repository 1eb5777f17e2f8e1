"""Converted models in stock ``anemoi-inference run``: on two ranks, and with a predicted spread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neural_lam_anemoi.adapters.bridge.convert import read_any
from neural_lam_anemoi.adapters.bridge.demo import ALLOWED, interior_differences
from neural_lam_anemoi.adapters.bridge.forecast import anemoi_forecast, neural_lam_forecast

from ..commands import run_process
from .conftest import GRAPHS, Converted, Trained
from .random_models import write_random_checkpoint

LEAD_TIME = "24h"
SCALED = 1e-5
"""Of a variable's largest value: what sharding may change in float32."""


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=[] if model == "hi_lam" else pytest.mark.full) for model in GRAPHS]
)
def test_two_ranks_forecast_as_one(
    model: str, trained: Trained, converted: Converted, era5_project: Path, era5_dataset: Path, tmp_path: Path
) -> None:
    """``runner: parallel`` under torchrun: each rank computes its part of every step."""
    bundle = read_any(trained(model), era5_project)
    ours = neural_lam_forecast(bundle, era5_project, steps=4)
    arguments = (
        converted(model) / "anemoi" / "inference-last.ckpt",
        era5_dataset,
        ours.start,
        LEAD_TIME,
        bundle.variables.state,
    )
    one, two = (anemoi_forecast(*arguments, tmp_path / str(ranks), ranks) for ranks in (1, 2))
    assert "world_size=2" in (tmp_path / "2" / "inference.log").read_text()
    assert one.states.shape == two.states.shape and not np.array_equal(one.states, ours.states)
    assert (np.abs(one.states - two.states).max(axis=(0, 1)) <= SCALED * np.abs(one.states).max(axis=(0, 1))).all()
    standardised = interior_differences(bundle, ours, two) / bundle.statistics["state_std"].double().numpy()
    for steps, allowed in ALLOWED.items():
        assert standardised[:steps].max() < allowed


def test_a_predicted_spread_stays_out_of_the_forecast(era5_project: Path, era5_dataset: Path, tmp_path: Path) -> None:
    """With ``output_std`` the mean is what is written; weights are random, so that every step changes much."""
    source = tmp_path / "random.ckpt"
    write_random_checkpoint(era5_project, source, "graph_lam", "multiscale", output_std=True)
    run_process("convert", source, "--to", "anemoi", "--output", tmp_path / "anemoi", "--config_path", era5_project)
    bundle = read_any(source, era5_project)
    assert bundle.architecture.output_std
    ours = neural_lam_forecast(bundle, era5_project, steps=2)
    checkpoint, names = tmp_path / "anemoi" / "inference-last.ckpt", bundle.variables.state
    theirs = anemoi_forecast(checkpoint, era5_dataset, ours.start, "12h", names, tmp_path / "inference")
    scale = bundle.statistics["state_std"].double().numpy()
    assert (interior_differences(bundle, ours, theirs)[0] / scale).max() < ALLOWED[1]
    assert (np.abs(np.diff(ours.states, axis=0)).max(axis=(0, 1)) > 0.1 * scale).all()
