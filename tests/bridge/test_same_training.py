"""A step of stock Anemoi training has neural-lam's gradients: every parameter's, up to the documented constant.

AdamW's first moment after one step is a tenth of the gradient, so both hosts' own checkpoints tell it.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from unittest import mock

import pytest
import yaml
import zarr
from torch import Tensor

from neural_lam_anemoi.adapters.bridge import sample
from neural_lam_anemoi.adapters.bridge.convert import read_any
from neural_lam_anemoi.adapters.bridge.datasets import write_dataset
from neural_lam_anemoi.adapters.bridge.processes import python_module, run_command
from neural_lam_anemoi.nn.clamping import BUFFER_NAMES

from ..commands import run_process
from .anemoi_training import fine_tune

NUM_STATE = len(sample.STATE)
"""Anemoi averages over variables where neural-lam sums."""
FIRST_MOMENT = 0.1
"""AdamW's share of the gradient in its first moment after a step: 1 - beta_1."""


@dataclasses.dataclass(frozen=True)
class Start:
    """A model to go on with, and all that both hosts need to do so."""

    config: Path
    dataset: Path
    checkpoint: Path
    anemoi: Path

    def gradients(self, checkpoint: Path) -> dict[str, Tensor]:
        """Of every parameter, in float64, after the one step that led to ``checkpoint``."""
        bundle = read_any(checkpoint, self.config)
        names = [name for name in bundle.weights if name not in BUFFER_NAMES]
        state = bundle.training["optimizer_states"][0]["state"]
        assert len(state) == len(names) and {int(held["step"]) for held in state.values()} == {1}
        return {name: state[i]["exp_avg"].double() / FIRST_MOMENT for i, name in enumerate(names)}


@pytest.fixture(scope="module")
def start(era5_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """graph_lam, 64 wide, on a training split of five dates: one sample of two steps, or two of one.

    Its variables have different weights, its outputs are clamped. The static field is one that float32 can hold, as an
    Anemoi dataset does.
    """
    place = tmp_path_factory.mktemp("same")
    with mock.patch.dict(sample.SPLIT_LENGTHS, {"train": 5}):
        config = sample.make_era5_project(place, clamp=True)
    static = zarr.open(str(place / "era5.datastore.zarr"), mode="r+")["static"]
    static[:] = static[:].astype("float32")
    content = yaml.safe_load(config.read_text())
    content["training"]["state_feature_weighting"]["weights"] = {name: 1 + i for i, name in enumerate(sample.STATE)}
    config.write_text(yaml.safe_dump(content, sort_keys=False))
    shutil.copytree(era5_project.parent / "graph" / "multiscale", place / "graph" / "multiscale")
    write_dataset(config, place / "anemoi.zarr")
    checkpoint = train_in_neural_lam(config, place / "start", "--epochs", 1)
    run_process("convert", checkpoint, "--config_path", config, "--to", "anemoi", "--output", place / "anemoi")
    return Start(config, place / "anemoi.zarr", checkpoint, place / "anemoi")


def train_in_neural_lam(config: Path, place: Path, *options: object) -> Path:
    """``last.ckpt`` of stock ``neural_lam.train_model``; both samples are in a batch."""
    command = [*python_module("neural_lam.train_model"), "--config_path", config, "--model", "graph_lam"]
    command += ["--graph", "multiscale", "--hidden_dim", 64, "--processor_layers", 2, "--batch_size", 2]
    command += ["--num_workers", 0, "--ar_steps_eval", 1, "--val_steps_to_log", 1, "--num_sanity_val_steps", 0]
    command += ["--runs_root", place, "--logger_run_name", "run", *options]
    with mock.patch.dict(os.environ, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}):
        run_command(command, place / "log", place / "run" / "checkpoints" / "last.ckpt")
    return place / "run" / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("rollout", "precision", "ranks", "sharded"),
    [
        pytest.param(1, 64, 1, True, id="float64", marks=pytest.mark.full),
        pytest.param(2, 64, 2, True, id="float64, two ranks, rollout"),
        pytest.param(1, 64, 2, False, id="float64, two ranks, whole batch", marks=pytest.mark.full),
        pytest.param(2, 64, 1, True, id="float64, rollout", marks=pytest.mark.full),
        pytest.param(1, 32, 1, True, id="float32", marks=pytest.mark.full),
        pytest.param(1, 32, 2, True, id="float32, two ranks", marks=pytest.mark.full),
    ],
)
def test_gradients(rollout: int, precision: int, ranks: int, sharded: bool, start: Start, tmp_path: Path) -> None:
    """To 1e-9 of each parameter's maximum in float64.

    In float32 the distance from neural-lam's float64 gradients is at most twice that of its own float32 ones, which is
    about 1e-4 for the bias of a LayerNorm over many edges.
    """
    options = ("--epochs", 2, "--load", start.checkpoint, "--ar_steps_train", rollout)
    gradients = {
        bits: start.gradients(train_in_neural_lam(start.config, tmp_path / str(bits), *options, "--precision", bits))
        for bits in {precision, 64}
    }
    theirs, exact = gradients[precision], gradients[64]
    allowed = 1e-9 if precision == 64 else 2 * max(apart(gradient, exact[name]) for name, gradient in theirs.items())
    assert 0 < allowed < 1e-3
    made = fine_tune(
        start.anemoi,
        start.dataset,
        tmp_path / "anemoi",
        "training.load_weights_only=True",
        f"training.precision={precision}-true",
        f"dataloader.batch_size.training={3 - rollout}",
        f"task.rollout={{start: {rollout}, epoch_increment: 0, maximum: {rollout}}}",
        f"system.hardware.num_gpus_per_node={ranks}",
        f"system.hardware.num_gpus_per_model={ranks}",
        f"model.keep_batch_sharded={sharded}",
        f"+model.neural_lam.gradient_checkpointing={rollout == 2}",
        f"dataloader.read_group_size={ranks if sharded else 1}",
    )
    for name, gradient in start.gradients(made / "last.ckpt").items():
        assert apart(NUM_STATE * gradient, exact[name]) <= allowed, name


def apart(one: Tensor, two: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    assert two.abs().max() > 0
    return float((one - two).abs().max() / two.abs().max())
