"""A trained neural-lam model goes to Anemoi, forecasts there with Anemoi's command, and comes back unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import yaml

from neural_lam_anemoi.adapters.bridge.convert import read_any
from neural_lam_anemoi.adapters.bridge.demo import ALLOWED, interior_differences, require_identical
from neural_lam_anemoi.adapters.bridge.forecast import anemoi_forecast, neural_lam_forecast
from neural_lam_anemoi.adapters.bridge.processes import executable, python_module, run_command
from neural_lam_anemoi.hetero import INTERIOR
from neural_lam_anemoi.weights import read_torch_file

from ..commands import run_process
from ..natural_earth import make_natural_earth
from .conftest import GRAPHS, SAID, Converted, Trained

MODELS = [pytest.param(model, marks=[] if model == "graph_lam" else pytest.mark.full) for model in GRAPHS]
FILES = {"inference-last.ckpt", "last.ckpt", "graph.pt", "fine_tuning.yaml"}


@pytest.mark.parametrize("model", GRAPHS)
def test_there_and_back(model: str, trained: Trained, converted: Converted, tmp_path: Path) -> None:
    source, place = trained(model), converted(model)
    said, anemoi = (place / SAID).read_text(), place / "anemoi"
    for name in ("t2m", "u10", "v10", "msl", "tp"):
        row = next(line for line in said.splitlines() if line.startswith(f"{name} "))
        assert 0 <= float(row.split()[1]) < ALLOWED[1]
    assert {path.name for path in anemoi.iterdir()} == FILES
    _comes_back(source, anemoi / "last.ckpt", tmp_path / "back.ckpt")
    assert_same_weights(source, anemoi / "inference-last.ckpt")


@pytest.mark.parametrize("model", MODELS)
def test_through_a_bundle(model: str, trained: Trained, era5_project: Path, tmp_path: Path) -> None:
    source, bundle, anemoi = trained(model), tmp_path / "bundle", tmp_path / "anemoi"
    run_process("convert", source, "--to", "bundle", "--output", bundle, "--config_path", era5_project)
    run_process("convert", bundle, "--to", "anemoi", "--output", anemoi)
    _comes_back(source, anemoi / "last.ckpt", tmp_path / "anemoi.ckpt")
    _comes_back(source, bundle, tmp_path / "bundle.ckpt")


@pytest.mark.parametrize("model", MODELS)
def test_same_forecast_in_both(
    model: str, trained: Trained, converted: Converted, era5_project: Path, era5_dataset: Path, tmp_path: Path
) -> None:
    bundle = read_any(trained(model), era5_project)
    ours = neural_lam_forecast(bundle, era5_project, steps=4)
    checkpoint, names = converted(model) / "anemoi" / "inference-last.ckpt", bundle.variables.state
    theirs = anemoi_forecast(checkpoint, era5_dataset, ours.start, "24h", names, tmp_path / "inference")
    standardised = interior_differences(bundle, ours, theirs) / bundle.statistics["state_std"].double().numpy()
    for steps, allowed in ALLOWED.items():
        assert standardised[:steps].max() < allowed
    changes = np.abs(np.diff(ours.states, axis=0)).max(axis=(1, 2))
    assert (changes > 0).all(), "a forecast that stands still agrees with anything"


def test_graph_file(trained: Trained, converted: Converted, era5_project: Path) -> None:
    bundle = read_any(trained("graph_lam"), era5_project)
    graph = torch.load(converted("graph_lam") / "anemoi" / "graph.pt", weights_only=False)
    interior = graph["data"][INTERIOR].squeeze()
    assert interior.dtype == torch.bool and torch.equal(interior, ~bundle.fields.boundary)
    assert 0 < interior.sum() < len(interior)
    degrees = torch.rad2deg(graph["data"].x)
    torch.testing.assert_close(degrees[:, 0].double(), bundle.fields.latitudes, rtol=0, atol=1e-4)
    apart = (degrees[:, 1].double() - bundle.fields.longitudes + 180) % 360 - 180
    assert apart.abs().max() < 1e-4
    edges = {(ends[0], ends[2]): store for ends, store in graph.edge_items()}
    assert len(edges) == 3
    assert sum(store.edge_index.shape[1] for store in edges.values()) == sum(
        held.num_edges for held in bundle.graph.edge_sets().values()
    )


@pytest.mark.full
def test_a_hierarchy_in_anemoi_graphs_own_inspection(converted: Converted, tmp_path: Path) -> None:
    """Levels are node types, declared in the configuration, and every pair of levels has its plot."""
    anemoi = converted("hi_lam") / "anemoi"
    levels = yaml.safe_load((anemoi / "fine_tuning.yaml").read_text())["model"]["model"]["hidden_nodes_name"]
    assert levels == ["mesh_0", "mesh_1", "mesh_2"]
    command = [executable("anemoi-graphs"), "inspect", anemoi / "graph.pt", tmp_path / "plots"]
    run_command(command, tmp_path / "log", tmp_path / "plots" / "distribution_edge_attributes.png")
    pairs = [(one, two) for one in levels for two in levels if abs(levels.index(one) - levels.index(two)) <= 1]
    pairs += [("data", "mesh_0"), ("mesh_0", "data")]
    plotted = {path.stem for path in (tmp_path / "plots").glob("*_to_*.html")}
    assert plotted == {f"{one}_to_{two}" for one, two in pairs}


@pytest.mark.parametrize("model", MODELS)
def test_scores_in_neural_lam_as_before(
    model: str, trained: Trained, converted: Converted, era5_project: Path, tmp_path: Path
) -> None:
    source, back = trained(model), tmp_path / "back.ckpt"
    inference = converted(model) / "anemoi" / "inference-last.ckpt"
    run_process("convert", inference, "--to", "neural-lam", "--output", back)
    before, after = (
        _scores(era5_project, model, checkpoint, tmp_path / name)
        for name, checkpoint in (("before", source), ("after", back))
    )
    there = _scores_in_anemoi(era5_project, inference, tmp_path / "there")
    assert before.keys() == after.keys() == there.keys() == {"test_mae.csv", "test_rmse.csv"}
    for name, values in before.items():
        assert values.shape == (2, 5) and (values > 0).all()
        np.testing.assert_allclose(after[name], values, rtol=1e-6)
        np.testing.assert_allclose(there[name], values, rtol=1e-4)


def _scores(config: Path, model: str, checkpoint: Path, place: Path) -> dict[str, np.ndarray]:
    """What ``neural_lam.train_model --eval test`` says about a checkpoint: (steps, variables) by file."""
    command = [*python_module("neural_lam.train_model"), "--config_path", config, "--model", model]
    command += ["--graph", GRAPHS[model], "--hidden_dim", 64, "--processor_layers", 2, "--num_workers", 0]
    command += ["--eval", "test", "--load", checkpoint, "--ar_steps_eval", 2, "--val_steps_to_log", 1, 2]
    command += ["--n_example_pred", 0, "--runs_root", place, "--logger_run_name", "scores"]
    earth = make_natural_earth(place / "cartopy")
    with mock.patch.dict(os.environ, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", **earth}):
        run_command(command, place / "scores.log", place / "scores" / "test_rmse.csv")
    return _metrics(place / "scores")


def _scores_in_anemoi(config: Path, checkpoint: Path, place: Path) -> dict[str, np.ndarray]:
    """What ``neural-lam-anemoi eval`` says about an Anemoi checkpoint."""
    with mock.patch.dict(os.environ, make_natural_earth(place / "cartopy")):
        options = ["--ar_steps_eval", 2, "--val_steps_to_log", 1, 2, "--n_example_pred", 0, "--num_workers", 0]
        run_process("eval", "--config_path", config, "--load", checkpoint, "--output", place / "scores", *options)
    return _metrics(place / "scores")


def _metrics(place: Path) -> dict[str, np.ndarray]:
    return {path.name: np.loadtxt(path, delimiter=",") for path in place.glob("*.csv")}


def _comes_back(source: Path, converted: Path, back: Path) -> None:
    run_process("convert", converted, "--to", "neural-lam", "--output", back)
    same = require_identical(read_torch_file(source), read_torch_file(back))
    assert same.tensors > 100 and same.values > 100


def assert_same_weights(source: Path, inference: Path) -> None:
    """Every weight of a neural-lam checkpoint is in an Anemoi inference checkpoint, bit for bit."""
    theirs = read_any(inference).weights
    ours = read_torch_file(source)["state_dict"]
    assert [name.removeprefix("forecaster.predictor.") for name in ours] == list(theirs)
    for name, tensor in zip(theirs, ours.values(), strict=True):
        assert theirs[name].dtype == tensor.dtype and torch.equal(theirs[name], tensor), name
