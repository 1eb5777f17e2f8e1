"""The drop-in classes equal neural-lam's own on a real datastore: names, outputs, losses and every gradient."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import neural_lam.models
import neural_lam.train_model
import pytest
import pytorch_lightning
import torch
from neural_lam.models import ForecasterModule
from torch import Tensor

import neural_lam_anemoi
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore

from .cases import CASES, CLASSES, MORE_CASES, Case, Pair, build_pair, build_predictor

BOUNDS = {torch.float64: (1e-12, 1e-12), torch.float32: (1e-5, 5e-5)}
FLAT = Case("graph_lam", "flat")


def loss_and_gradients(module: ForecasterModule, batch: Any) -> tuple[Tensor, Tensor | None, Tensor, dict[str, Tensor]]:
    """Prediction, spread, loss and gradients by name (parameters without one are left out)."""
    module.zero_grad()
    prediction, _, std, losses = module._compute_prediction_and_loss(batch)
    losses.mean().backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return prediction.detach(), std.detach(), losses.mean().detach(), gradients


def assert_equal(pair: Pair, dtype: torch.dtype) -> None:
    """Outputs and loss to the first bound of their scale, gradients to the second of each parameter's maximum."""
    pair = pair.to(dtype)
    own, ours = (loss_and_gradients(module, pair.batch) for module in (pair.own, pair.ours))
    output_bound, gradient_bound = BOUNDS[dtype]
    for one, two in zip(own[:3], ours[:3], strict=True):
        assert (one - two).abs().max() <= output_bound * one.abs().max()
    assert own[3].keys() == ours[3].keys()
    for name, gradient in own[3].items():
        difference = (gradient - ours[3][name]).abs().max()
        assert difference <= gradient_bound * gradient.abs().max(), f"{name}: {difference / gradient.abs().max():.1e}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equal_to_neural_lam(case: Case, era5_project: Path) -> None:
    pair = build_pair(case, era5_project, batch_size=1)
    assert_equal(pair, torch.float64)
    assert_equal(pair, torch.float32)


@pytest.mark.parametrize("model", CLASSES)
def test_equal_to_neural_lam_in_a_batch(model: str, era5_project: Path) -> None:
    case = FLAT if model == "graph_lam" else Case(model, "hierarchical")
    pair = build_pair(case, era5_project, batch_size=3, steps=1)
    assert_equal(pair, torch.float64)
    assert_equal(pair, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("case", CASES + MORE_CASES, ids=str)
def test_equal_to_neural_lam_everywhere(case: Case, batch_size: int, era5_project: Path) -> None:
    pair = build_pair(case, era5_project, batch_size)
    assert_equal(pair, torch.float64)
    assert_equal(pair, torch.float32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_names_order_shapes_and_initial_values(case: Case, era5_project: Path) -> None:
    config, datastore = load_datastore(era5_project)
    if case.without:
        pytest.skip("the same parameters as with all categories")
    torch.manual_seed(3)
    own = build_predictor(case, datastore, config, neural_lam.models)
    torch.manual_seed(3)
    ours = build_predictor(case, datastore, config, neural_lam_anemoi)
    assert list(own.state_dict()) == list(ours.state_dict())
    assert [name for name, _ in own.named_parameters()] == [name for name, _ in ours.named_parameters()]
    for name, value in own.state_dict().items():
        assert value.dtype == ours.state_dict()[name].dtype
        assert torch.equal(value, ours.state_dict()[name]), name
    ours.load_state_dict(own.state_dict(), strict=True)
    own.load_state_dict(ours.state_dict(), strict=True)
    assert isinstance(ours, type(own))
    assert isinstance(ours.g2m_gnn, type(own.g2m_gnn))


def test_clamping_in_all_three_ways_is_part_of_it(era5_project: Path) -> None:
    predictor = build_pair(FLAT, era5_project, 1).ours.forecaster.predictor
    for name in ("clamp_lower_upper_idx", "clamp_lower_idx", "clamp_upper_idx"):
        assert getattr(predictor, name).numel() > 0


@pytest.mark.parametrize("model", CLASSES)
def test_every_input_matters(model: str, era5_project: Path) -> None:
    case = FLAT if model == "graph_lam" else Case(model, "hierarchical")
    pair = build_pair(case, era5_project, 1, steps=1)
    initial, _, forcing, _ = pair.batch
    predictor = pair.ours.forecaster.predictor
    inputs = [initial[:, 1], initial[:, 0], forcing[:, 0]]
    with torch.no_grad():
        before, _ = predictor(*inputs)
        for position, values in enumerate(inputs):
            for column in range(values.shape[-1]):
                changed = [x.clone() for x in inputs]
                changed[position][..., column] += 1
                assert (predictor(*changed)[0] - before).abs().max() > 1e-3, (position, column)


@pytest.mark.parametrize("model", CLASSES)
def test_copies_pickles_and_is_deterministic(model: str, era5_project: Path) -> None:
    case = FLAT if model == "graph_lam" else Case(model, "hierarchical")
    pair = build_pair(case, era5_project, 1, steps=1)
    copies = [pair.ours, copy.deepcopy(pair.ours)]
    copies[1].forecaster.predictor = pickle.loads(pickle.dumps(pair.ours.forecaster.predictor))
    torch.use_deterministic_algorithms(True)
    try:
        first, second, again = (loss_and_gradients(module, pair.batch) for module in (*copies, pair.ours))
    finally:
        torch.use_deterministic_algorithms(False)
    for other in (second, again):
        assert torch.equal(first[0], other[0])
        assert all(torch.equal(gradient, other[3][name]) for name, gradient in first[3].items())


def test_neural_lam_loads_a_checkpoint_into_our_class(
    era5_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = build_pair(FLAT, era5_project, 1, steps=1)
    config, datastore = load_datastore(era5_project)
    arguments = neural_lam.train_model.Namespace(
        model="graph_lam",
        graph="flat",
        hidden_dim=64,
        hidden_layers=1,
        processor_layers=2,
        mesh_aggr="sum",
        num_past_forcing_steps=1,
        num_future_forcing_steps=1,
        output_std=False,
    )
    own = ForecasterModule(forecaster=pair.own.forecaster, config=config, datastore=datastore, args=arguments)
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", max_epochs=0, logger=False, enable_checkpointing=False, default_root_dir=tmp_path
    )
    trainer.strategy.connect(own)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    monkeypatch.setitem(neural_lam.models.MODELS, "graph_lam", neural_lam_anemoi.GraphLAM)
    load = neural_lam.train_model.load_forecaster_module_from_checkpoint
    loaded = load(str(tmp_path / "own.ckpt"), config, datastore)
    assert type(loaded.forecaster.predictor) is neural_lam_anemoi.GraphLAM
    with torch.no_grad():
        expected, _, _, _ = pair.own.common_step(pair.batch)
        result, _, _, _ = loaded.common_step(pair.batch)
    assert (expected - result).abs().max() <= 1e-5 * expected.abs().max()
