"""Anemoi models in neural-lam's evaluation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from neural_lam_anemoi import InvalidInputError
from neural_lam_anemoi.adapters.anemoi.inference import load_inference_model
from neural_lam_anemoi.adapters.bridge.forecast import anemoi_forecast
from neural_lam_anemoi.adapters.bridge.predictor import AnemoiPredictor, forcing_window, read_columns
from neural_lam_anemoi.adapters.bridge.sample import STATE
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore, read_variables
from neural_lam_anemoi.forcing import ForcingWindow
from neural_lam_anemoi.hetero import GRID, INTERIOR

from ..commands import run_process, run_refused
from ..natural_earth import make_natural_earth
from .anemoi_training import configure_stock_model, fine_tune
from .conftest import Converted, Trained

ROOT = Path(__file__).parents[2]
START = np.datetime64("2026-03-30T06:00:00")
"""The last input of the first sample of the test split."""
STEPS = 4
SMALL_LAYER = {"num_heads": 4, "num_chunks": 1, "graph_attention_backend": "pyg"}
GRAPH_TRANSFORMER: dict[str, Any] = {
    "num_channels": 16,
    "model": {"hidden_nodes_name": "mesh_0"},
    "processor": SMALL_LAYER | {"num_layers": 2},
    "encoders": {"0": {"mapper": SMALL_LAYER}},
    "decoders": {"0": {"mapper": SMALL_LAYER}},
    "node_trainable_parameters": {GRID: 2, "mesh_0": 2},
    "attributes": {"edges": ["edge_attr"]},
    "compile": [],
}
"""What fits Anemoi's own configuration to our graph, and makes it small."""


def test_stock_graph_transformer_forecasts_as_in_anemoi(
    era5_project: Path, era5_dataset: Path, current_pyg: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained for a few steps by stock anemoi-training, it is plotted and scored by neural-lam's own evaluation."""
    anemoi = configure_stock_model(tmp_path, era5_project, "graphtransformer", GRAPH_TRANSFORMER, validation=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (current_pyg, ROOT))))
    made = fine_tune(anemoi, era5_dataset, tmp_path / "run", "training.optimization.lr=0.01")
    checkpoint, output = made / "inference-last.ckpt", tmp_path / "scores"
    options = ["--ar_steps_eval", STEPS, "--val_steps_to_log", 1, STEPS, "--num_workers", 0, "--n_example_pred", 1]
    with mock.patch.dict(os.environ, make_natural_earth(tmp_path / "cartopy")):
        run_process("eval", "--config_path", era5_project, "--load", checkpoint, "--output", output, *options)
    scores = np.loadtxt(output / "test_rmse.csv", delimiter=",")
    assert scores.shape == (STEPS, len(STATE)) and (scores > 0).all()
    assert (output / "spatial_loss_maps").is_dir()
    theirs = anemoi_forecast(checkpoint, era5_dataset, START, "24h", STATE, tmp_path / "inference").states
    ours, truth = (torch.load(output / f"example_{name}_1.pt").double().numpy() for name in ("pred", "target"))
    interior = torch.load(anemoi / "graph.pt", weights_only=False)[GRID][INTERIOR].squeeze().numpy()
    scale = truth[:, interior].std(axis=(0, 1))
    assert (np.abs(ours - theirs)[:, interior].max(axis=(0, 1)) < 1e-4 * scale).all()
    assert np.array_equal(ours[:, ~interior], truth[:, ~interior])
    assert (np.abs(np.diff(ours, axis=0))[:, interior].max(axis=1) > 0).all()


def test_reads_what_the_model_reads(converted: Converted, era5_project: Path) -> None:
    """Moving an input moves the prediction; a forcing step that only the last input date has is read there alone."""
    model = load_inference_model(converted("graph_lam") / "anemoi" / "inference-last.ckpt")
    _, datastore = load_datastore(era5_project)
    columns = read_columns(model, read_variables(datastore), datastore.step_length)
    window = forcing_window(columns, model.input_steps)
    assert window == ForcingWindow(past=2, future=1)
    predictor = AnemoiPredictor(datastore, model, window.past, window.future)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, datastore.num_grid_points, columns, generator=generator) for columns in (5, 5, 4)]
    inputs[0][..., 0] = inputs[0][..., 0].clamp(-1, 1)  # inside the clamping limits
    before, none = predictor(*inputs)
    assert none is None and before.shape == inputs[0].shape
    for place, column, moves in [(0, 0, True), (1, 4, True), (2, 0, False), (2, 1, True), (2, 2, True), (2, 3, True)]:
        changed = [value.clone() for value in inputs]
        changed[place][..., column] += 0.1
        after, _ = predictor(*changed)
        assert torch.equal(after, before) != moves, (place, column)
    with pytest.raises(InvalidInputError, match="reads 2 forcing steps before and 1 after the predicted time; given"):
        AnemoiPredictor(datastore, model, 1, 1)


def test_wrong_arguments_are_named(
    trained: Trained, converted: Converted, era5_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anemoi, output = converted("graph_lam") / "anemoi", tmp_path / "scores"

    def refused(checkpoint: Path, *options: object) -> str:
        given = ["--config_path", era5_project, "--load", checkpoint, "--output", output, *options]
        said = run_refused(capsys, "eval", *given)
        assert not output.exists()
        return said

    assert "give the inference-last.ckpt that stands beside it" in refused(anemoi / "last.ckpt")
    assert "not an Anemoi inference checkpoint" in refused(trained("graph_lam"))
    inference = anemoi / "inference-last.ckpt"
    assert "--hidden_dim: decided by the checkpoint" in refused(inference, "--hidden_dim=32")
    assert "must be between 1 and 2" in refused(inference, "--ar_steps_eval", 2, "--val_steps_to_log", 3)
    output.mkdir()
    given = ["--config_path", era5_project, "--load", inference, "--output", output]
    assert "exists already; use --force" in run_refused(capsys, "eval", *given)
