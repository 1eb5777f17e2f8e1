"""What Anemoi's training offers beside training: averaged weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from neural_lam_anemoi.weights import read_torch_file

from ..commands import run_process
from .anemoi_training import fine_tune
from .conftest import Converted

AVERAGED = (
    "training.weight_averaging._target_=anemoi.training.diagnostics.callbacks.weight_averaging.EMAWeightAveraging",
    "+training.weight_averaging.decay=0.5",
)


@pytest.mark.full
def test_averaged_weights_are_the_model(converted: Converted, era5_dataset: Path, tmp_path: Path) -> None:
    """Anemoi keeps the average as the model, and so does a conversion; at the end of training it is all there is."""
    made = fine_tune(converted("graph_lam") / "anemoi", era5_dataset, tmp_path / "run", *(f"+{a}" for a in AVERAGED))
    (epoch,) = made.glob("anemoi-by_epoch-*.ckpt")
    content = read_torch_file(epoch)
    name = "model.model.network.output_map.0.weight"
    assert not torch.equal(content["state_dict"][name], content["current_model_state"][name])
    run_process("convert", epoch, "--to", "neural-lam", "--output", tmp_path / "home.ckpt")
    home = read_torch_file(tmp_path / "home.ckpt")["state_dict"]["forecaster.predictor.output_map.0.weight"]
    assert torch.equal(home, content["state_dict"][name])
