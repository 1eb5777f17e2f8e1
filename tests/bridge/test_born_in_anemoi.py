"""Models that Anemoi's own training makes from our configurations, and their way home to neural-lam."""

from __future__ import annotations

import os
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
import zarr
from anemoi.training.train.train import AnemoiTrainer
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from neural_lam_anemoi import InvalidInputError
from neural_lam_anemoi.adapters.anemoi.dataset import read_facts
from neural_lam_anemoi.adapters.anemoi.section import read_section
from neural_lam_anemoi.adapters.bridge.convert import read_any
from neural_lam_anemoi.adapters.bridge.processes import python_module, run_command
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore, read_fields
from neural_lam_anemoi.adapters.neural_lam.predictors import load_graph
from neural_lam_anemoi.weights import read_torch_file

from ..commands import run_process
from ..models import assert_same_graph
from ..natural_earth import make_natural_earth
from .anemoi_training import LOG, train

NARROW = ("model.neural_lam.architecture.hidden_dim=16", "model.neural_lam.architecture.processor_layers=1")
HOME = "--config-name=neural_lam"


def scores_in_neural_lam(project: Path, checkpoint: Path, graph: Path, model: str, place: Path) -> None:
    """Stock neural-lam evaluates a checkpoint on a graph directory that isn't among the project's own."""
    root = place / "project"
    (root / "graph").mkdir(parents=True)
    for path in project.parent.glob("*"):
        if path.name != "graph":
            (root / path.name).symlink_to(path)
    (root / "graph" / graph.name).symlink_to(graph)
    command = [*python_module("neural_lam.train_model"), "--config_path", root / project.name, "--model", model]
    command += ["--graph", graph.name, "--hidden_dim", 16, "--processor_layers", 1, "--num_workers", 0]
    command += ["--eval", "test", "--load", checkpoint, "--ar_steps_eval", 1, "--val_steps_to_log", 1]
    command += ["--n_example_pred", 0, "--runs_root", place, "--logger_run_name", "scores"]
    earth = make_natural_earth(place / "cartopy")
    with mock.patch.dict(os.environ, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", **earth}):
        run_command(command, place / "scores.log", place / "scores" / "test_rmse.csv")


def test_from_a_graph_directory_there_and_home(era5_project: Path, era5_dataset: Path, tmp_path: Path) -> None:
    model, directory = "hi_lam_parallel", era5_project.parent / "graph" / "hierarchical"
    options = (HOME, f"model={model}", f"graph.directory={directory}", *NARROW)
    made = train(era5_dataset, tmp_path / "run", *options)
    bundle = read_any(made / "inference-last.ckpt")
    _, datastore = load_datastore(era5_project)
    graph = load_graph(datastore, "hierarchical", datastore.num_grid_points)
    assert_same_graph(bundle.graph, graph)
    fields = read_fields(datastore, graph, bundle.variables)
    assert torch.equal(bundle.fields.boundary, fields.boundary)
    assert torch.equal(bundle.fields.coordinates, fields.coordinates)
    for ours, theirs in zip(bundle.fields.mesh_latlons, fields.mesh_latlons, strict=True):
        assert (ours - theirs).abs().max() < 0.01  # interpolated, in degrees; neural-lam projects
    assert bundle.loss.weights == (1.0,) * 5

    options = ["--to", "neural-lam", "--output", tmp_path / "home.ckpt", "--write_graph", tmp_path / "brought"]
    run_process("convert", made / "last.ckpt", *options)
    again = read_any(tmp_path / "home.ckpt", era5_project, "hierarchical")
    assert all(torch.equal(value, again.weights[name]) for name, value in bundle.weights.items())
    assert again.architecture == bundle.architecture and again.clamping == bundle.clamping
    assert again.training["global_step"] == 3 and len(again.training["optimizer_states"]) == 1
    arguments = read_torch_file(tmp_path / "home.ckpt")["hyper_parameters"]["args"].stub_state
    assert arguments["graph"] == "brought" and arguments["batch_size"] == 4  # neural-lam's own default
    scores_in_neural_lam(era5_project, tmp_path / "home.ckpt", tmp_path / "brought", model, tmp_path / "scores")


def test_from_the_dataset_alone_and_home(era5_project: Path, era5_dataset: Path, tmp_path: Path) -> None:
    """Anemoi's triangular mesh becomes a graph of neural-lam's."""
    options = (HOME, "graph=neural_lam_triangular", "graph.resolution=4", *NARROW)
    made = train(era5_dataset, tmp_path / "run", *options)
    graph = tmp_path / "triangular"
    options = ["--to", "neural-lam", "--output", tmp_path / "home.ckpt", "--write_graph", graph]
    run_process("convert", made / "last.ckpt", *options, "--config_path", era5_project)
    bundle = read_any(made / "last.ckpt")
    span = bundle.fields.coordinates.max(dim=0).values - bundle.fields.coordinates.min(dim=0).values
    assert bundle.graph.mesh_scaling == span.max()
    assert torch.equal(bundle.graph.m2g.index[1].unique(), torch.arange(bundle.graph.num_grid))
    for level, latlons in zip(bundle.graph.mesh_coordinates, bundle.fields.mesh_latlons, strict=True):
        apart = (level - latlons.flip(1)).abs()  # this datastore's projection is longitude and latitude
        assert apart.max() < 0.1
    lengths = bundle.graph.g2m.features[:, 1:].norm(dim=1)
    torch.testing.assert_close(bundle.graph.g2m.features[:, 0], lengths)
    scores_in_neural_lam(era5_project, tmp_path / "home.ckpt", graph, "graph_lam", tmp_path / "scores")


@pytest.mark.full
def test_resumed(era5_project: Path, era5_dataset: Path, tmp_path: Path) -> None:
    """Epoch, step and optimizer go on where they were: as many steps in one go end at the same weights.

    Anemoi's ``last.ckpt`` is written before its epoch counts as complete, so a resumed run repeats that epoch.
    """
    graph = f"graph.directory={era5_project.parent / 'graph' / 'flat'}"
    one = ("dataloader.training.datasets.data.end='2026-03-25T12:00:00'", *NARROW)  # a single sample: no order
    first = train(era5_dataset, tmp_path / "run", HOME, graph, *one)
    assert read_any(first / "last.ckpt").training["global_step"] == 1
    train(era5_dataset, tmp_path / "run", HOME, graph, *one, f"training.run_id={first.name}", "training.max_epochs=2")
    assert "Restored all states from the checkpoint" in (tmp_path / "run" / LOG).read_text()
    through = train(era5_dataset, tmp_path / "through", HOME, graph, *one, "training.max_epochs=3")
    resumed, whole = (read_any(place / "last.ckpt") for place in (first, through))
    assert resumed.training["epoch"] == 1 and resumed.training["global_step"] == whole.training["global_step"] == 3
    for name, value in whole.weights.items():
        assert torch.equal(value, resumed.weights[name]), name
    for ours, theirs in zip(
        *(held.training["optimizer_states"][0]["state"].values() for held in (resumed, whole)), strict=True
    ):
        assert all(torch.equal(ours[name], theirs[name]) for name in ("step", "exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("+model.neural_lam.architecture.width=3", "architecture: unknown key 'width'; known are model, num_state"),
        ("model.neural_lam.architecture.mesh_aggr=max", "architecture: mesh_aggr is 'max'; use one of sum, mean"),
        ("+model.neural_lam.windows=1", "model.neural_lam: unknown key 'windows', known are architecture"),
        ("model.neural_lam.gradient_checkpointing=yes", "gradient_checkpointing is 'yes'; use True or False"),
        ("~model.neural_lam.clamping", "model.neural_lam: 'clamping' is missing"),
    ],
)
def test_a_wrong_key_or_value_is_named(change: str, said: str, era5_project: Path, era5_dataset: Path) -> None:
    graph = f"graph.directory={era5_project.parent / 'graph' / 'flat'}"
    read_section(configuration(era5_dataset, graph))
    with pytest.raises(InvalidInputError, match=re.escape(said)):
        read_section(configuration(era5_dataset, graph, change))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("model=hi_lam", "graph.directory={flat}"), "hi_lam needs a mesh of several levels, the graph has one"),
        (("model=graph_lam", "graph.directory={hierarchical}"), "graph_lam does not use a hierarchical mesh graph"),
        (("graph.directory={flat}", "model.neural_lam.loss.name=nll"), "'nll'; use one of wmse, mse, wmae, mae"),
    ],
    ids=["flat graph", "hierarchical graph", "loss"],
)
def test_what_does_not_fit_is_named(
    options: tuple[str, ...], said: str, era5_project: Path, era5_dataset: Path
) -> None:
    """In this process, which spares most of a start."""
    graphs = {name: era5_project.parent / "graph" / name for name in ("flat", "hierarchical")}
    with pytest.raises(Exception, match=re.escape(said)):
        build(era5_dataset, *(option.format(**graphs) for option in options))


def test_a_foreign_dataset_is_named(era5_project: Path, tmp_path: Path) -> None:
    zarr.open(str(tmp_path / "foreign.zarr"), mode="w").attrs["variables"] = ["t2m"]
    with pytest.raises(InvalidInputError, match=r"foreign.zarr: not written by neural-lam-anemoi dataset"):
        read_facts(tmp_path / "foreign.zarr")
    with pytest.raises(Exception, match=r"absent.zarr: no dataset can be opened there"):
        build(tmp_path / "absent.zarr", f"graph.directory={era5_project.parent / 'graph' / 'flat'}")


def build(dataset: Path, *overrides: str) -> torch.nn.Module:
    """The model that stock anemoi-training would train."""
    return AnemoiTrainer(configuration(dataset, *overrides)).model


def configuration(dataset: Path, *overrides: str) -> DictConfig:
    """What Hydra makes of ours."""
    given = [f"system.input.dataset={dataset}", "system.output.root=/nowhere", "system.hardware.accelerator=cpu"]
    with initialize_config_module("anemoi.training.config", version_base=None):
        return compose("neural_lam", overrides=[*given, *overrides])
