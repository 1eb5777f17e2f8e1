"""What Anemoi's training offers beside training: averaged weights, transfer to another dataset."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
import zarr

from neural_lam_anemoi.adapters.bridge import sample
from neural_lam_anemoi.adapters.bridge.convert import read_any
from neural_lam_anemoi.adapters.bridge.datasets import write_dataset
from neural_lam_anemoi.weights import read_torch_file

from ..commands import run_process
from .anemoi_training import fine_tune, train
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


@pytest.mark.full
def test_transfer_to_a_dataset_with_one_more_variable(era5_project: Path, era5_dataset: Path, tmp_path: Path) -> None:
    """Anemoi's own behaviour: what fits is loaded, what doesn't starts anew; our constants are the new dataset's.

    It wants the variables that were there before to come first, hence ``reorder``.
    """
    with mock.patch.object(sample, "STATE", sample.STATE[:-1]):
        config = sample.make_era5_project(tmp_path / "fewer")
    write_dataset(config, tmp_path / "fewer.zarr")
    graph = f"graph.directory={era5_project.parent / 'graph' / 'multiscale'}"
    born = ("--config-name=neural_lam", graph, "model.neural_lam.architecture.hidden_dim=16")
    first = train(tmp_path / "fewer.zarr", tmp_path / "first", *born)
    transfer = ("training.transfer_learning=True", "training.load_weights_only=True", "training.optimization.lr=0.0")
    order = [*zarr.open(str(tmp_path / "fewer.zarr"), mode="r").attrs["variables"], sample.STATE[-1]]
    reordered = [
        f"+dataloader.{split}.datasets.data.dataset_config.reorder=[{','.join(order)}]"
        for split in ("training", "validation", "test")
    ]
    warm = f"system.input.warm_start={first / 'last.ckpt'}"
    second = train(era5_dataset, tmp_path / "second", *born, warm, *transfer, *reordered)
    before, after = (read_any(place / "last.ckpt") for place in (first, second))
    assert after.variables.state == sample.STATE and before.variables.state == sample.STATE[:-1]
    same = {name for name, value in before.weights.items() if torch.equal(value, after.weights[name])}
    fresh = {name for name, value in before.weights.items() if value.shape != after.weights[name].shape}
    assert {"grid_embedder.0.weight", "output_map.2.weight", "output_map.2.bias"} <= fresh
    constants = {name for name in before.weights if name.endswith(("_lims", "_idx"))}
    assert same | fresh | constants == set(before.weights) and len(same) > 80
