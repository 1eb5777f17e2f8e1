"""Anemoi's own training starts from a converted checkpoint, and what it makes goes home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from neural_lam import metrics
from neural_lam.models.module import ForecasterModule

from neural_lam_anemoi.adapters.anemoi.losses import loss_weights
from neural_lam_anemoi.adapters.bridge.convert import read_any
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore
from neural_lam_anemoi.bundle_io import manifest
from neural_lam_anemoi.weights import read_torch_file

from ..commands import run_process
from .anemoi_training import LOG, fine_tune
from .conftest import Converted, Trained

ONE_SAMPLE = "dataloader.training.datasets.data.end='2026-03-25T12:00:00'"
SGD = (
    "training.optimization.optimizer._target_=torch.optim.SGD",
    "~training.optimization.optimizer.betas",
    "training.optimization.lr_scheduler=null",
    "training.optimization.lr=0.02",
)


def test_weights_arrive_and_go_home_with_neural_lam_s_arguments(
    trained: Trained, converted: Converted, era5_dataset: Path, tmp_path: Path
) -> None:
    """Weights only, at a learning rate of zero: nothing may change."""
    source, anemoi = trained("graph_lam"), converted("graph_lam") / "anemoi"
    options = ("training.load_weights_only=True", "training.optimization.lr=0.0")
    made = fine_tune(anemoi, era5_dataset, tmp_path / "run", *options)
    for name in ("last", "inference-last"):
        back = tmp_path / f"{name}.ckpt"
        run_process("convert", made / f"{name}.ckpt", "--to", "neural-lam", "--output", back)
        ours, theirs = (read_torch_file(path) for path in (source, back))
        assert list(ours["state_dict"]) == list(theirs["state_dict"])
        for key, tensor in ours["state_dict"].items():
            assert torch.equal(tensor, theirs["state_dict"][key]), key
        arguments = [content["hyper_parameters"]["args"].stub_state for content in (ours, theirs)]
        assert json.dumps(arguments[0], default=repr) == json.dumps(arguments[1], default=repr)


def test_what_was_fine_tuned_forecasts_the_same_in_neural_lam(
    converted: Converted, era5_project: Path, era5_dataset: Path, tmp_path: Path
) -> None:
    """A full warm start: neural-lam's optimizer state is restored and moves the weights."""
    anemoi = converted("graph_lam") / "anemoi"
    made = fine_tune(anemoi, era5_dataset, tmp_path / "run")
    assert "Restored all states from the checkpoint" in (tmp_path / "run" / LOG).read_text()
    before, after = read_any(anemoi / "last.ckpt").weights, read_any(made / "last.ckpt").weights
    assert all(torch.isfinite(value).all() for value in after.values())
    changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
    assert len(changed) > 0.9 * sum(value.numel() > 1 for value in before.values())
    options = ["--to", "neural-lam", "--output", tmp_path / "back.ckpt", "--config_path", era5_project, "--verify"]
    assert "t2m" in run_process("convert", made / "inference-last.ckpt", *options)


@pytest.mark.full
@pytest.mark.parametrize("sharded", [True, False], ids=["batch sharded", "whole batch"])
def test_two_ranks_train_the_same_model(
    sharded: bool, converted: Converted, era5_dataset: Path, tmp_path: Path
) -> None:
    """``num_gpus_per_model: 2`` of stock Anemoi against one process: SGD on one sample, every weight."""
    anemoi = converted("graph_lam") / "anemoi"
    options = (*SGD, ONE_SAMPLE, "training.load_weights_only=True")
    two = ("system.hardware.num_gpus_per_node=2", "system.hardware.num_gpus_per_model=2")
    cells = (f"model.keep_batch_sharded={sharded}", "dataloader.read_group_size=" + ("2" if sharded else "1"))
    alone = read_any(fine_tune(anemoi, era5_dataset, tmp_path / "alone", *options) / "last.ckpt").weights
    made = fine_tune(anemoi, era5_dataset, tmp_path / "shared", *options, *two, *cells)
    shared = read_any(made / "last.ckpt").weights
    before = read_any(anemoi / "last.ckpt").weights
    moved = {name: float((alone[name] - value).abs().max()) for name, value in before.items() if value.numel()}
    assert sum(change > 1e-4 for change in moved.values()) >= 40
    for name, value in alone.items():
        if value.numel():
            assert (shared[name] - value).abs().max() <= 1e-6, name
    assert_runs_alone(made / "inference-last.ckpt")


def assert_runs_alone(checkpoint: Path) -> None:
    """What a rank of several saved is the whole model."""
    interface = torch.load(checkpoint, weights_only=False).eval()
    nodes = len(interface.graph_data["data"].x)
    predicted = interface.predict_step({"data": 280 + torch.randn(1, 2, nodes, 9)})["data"]
    assert predicted.shape[-2] == nodes and torch.isfinite(predicted).all()


@pytest.mark.parametrize(("loss", "power"), [("wmse", 2), ("wmae", 1)])
def test_loss_weights_are_neural_lam_s(loss: str, power: int, converted: Converted, era5_project: Path) -> None:
    """Weighted errors in physical units against ``neural_lam.metrics`` on standardised states."""
    config, datastore = load_datastore(era5_project)
    bundle = read_any(converted("graph_lam") / "anemoi" / "last.ckpt")

    class Forecaster(torch.nn.Module):
        predicts_std = False

    module: Any = ForecasterModule(forecaster=Forecaster(), config=config, datastore=datastore, loss=loss)
    std = bundle.standardisation("state")[1]
    one, two = 3 * torch.randn(2, 50, 5, dtype=torch.float64)
    expected = getattr(metrics, loss)(one, two, module.per_var_std.double())
    content = manifest(bundle)
    content["loss"]["name"] = loss
    weights = torch.tensor(list(loss_weights(content).values()))
    errors = (((one - two) * std.double()).abs() ** power * weights).sum(-1).mean()
    torch.testing.assert_close(errors, expected, rtol=1e-6, atol=0)
