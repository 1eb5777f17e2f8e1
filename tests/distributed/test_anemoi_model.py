"""An Anemoi model equals itself on any number of ranks: cut by `shard`, or by Anemoi's own communication group."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from torch import Tensor

from neural_lam_anemoi import gather_grid, shard
from neural_lam_anemoi.adapters.anemoi.checkpoint import build_interface
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.hetero import GRID, to_hetero

from ..models import make_bundle
from .comparison import BOUNDS
from .ranks import Place, Ranks, RanksFailedError

HOWS = ("shard", "group with sharded rows", "group with whole fields")
MODELS = {"graph_lam": "multiscale", "hi_lam": "hierarchical", "hi_lam_parallel": "hierarchical"}
Found = tuple[Tensor, dict[str, Tensor], list[str]]


def run(model: Any, inputs: Tensor, weights: Tensor, **options: Any) -> Found:
    """Prediction, gradients and names in the state_dict."""
    prediction = model({GRID: inputs}, **options)[GRID]
    (prediction * weights).sum().backward()
    return prediction.detach(), {name: p.grad for name, p in model.named_parameters()}, list(model.state_dict())


def run_rank(place: Place, ranks: int, saved: bytes, inputs: Tensor, weights: Tensor, how: str) -> Found:
    """On one of the ranks; whole predictions, and gradients that have to be summed over the ranks."""
    model, group = torch.load(io.BytesIO(saved), weights_only=False), place.groups[ranks]
    if how == "shard":
        shard(model, group)
        take = model.take_rows
        prediction, gradients, names = run(model, take(inputs), take(weights))
        return gather_grid(prediction, model), gradients, names
    if how == "group with whole fields":
        found = run(model, inputs, weights, model_comm_group=group)
    else:
        sizes = get_balanced_partition_sizes(inputs.shape[-2], ranks)
        part = (slice(None), slice(None), slice(None), slice(sum(sizes[: place.rank]), sum(sizes[: place.rank + 1])))
        options = {"model_comm_group": group, "grid_shard_sizes": {GRID: sizes}}
        prediction, *rest = run(model, inputs[part], weights[part], **options)
        whole = torch.zeros_like(weights)
        whole[part] = prediction
        torch.distributed.all_reduce(whole, group=group)
        found = whole, *rest
    again = io.BytesIO()
    torch.save(model, again)  # what Anemoi writes while it trains has to be the whole model
    again.seek(0)
    with torch.no_grad():
        alone = torch.load(again, weights_only=False)({GRID: inputs})[GRID]
    assert (alone - found[0]).abs().max() <= 1e-4 * alone.abs().max()
    return found


@pytest.fixture(scope="module")
def saved(graphs: dict[str, LamGraph]) -> dict[str, bytes]:
    """Anemoi's model object of every network, as it is saved."""
    made = {}
    for model, kind in MODELS.items():
        bundle = make_bundle(graphs[kind], model)
        interface, _ = build_interface(bundle, to_hetero(bundle.graph, bundle.fields))
        file = io.BytesIO()
        torch.save(interface.model, file)
        made[model] = file.getvalue()
    return made


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("model", MODELS)
def test_equal_on_any_number_of_ranks(model: str, how: str, saved: dict[str, bytes], ranks: Ranks) -> None:
    dtype = torch.float64
    whole = torch.load(io.BytesIO(saved[model]), weights_only=False).to(dtype)
    file = io.BytesIO()
    torch.save(whole, file)
    generator = torch.Generator().manual_seed(4)
    batch, nodes = 2, whole.network.num_grid
    inputs = torch.randn(batch, 2, 1, nodes, 3 + 4 + 2, generator=generator, dtype=dtype)
    weights = torch.randn(batch, 1, 1, nodes, 3, generator=generator, dtype=dtype) / nodes
    expected = run(whole, inputs, weights)
    for count in (1, 2, 3, 7):
        found = ranks.run(run_rank, count, file.getvalue(), inputs, weights, how, ranks=count)
        for prediction, gradients, names in found:
            assert (prediction - expected[0]).abs().max() <= BOUNDS[dtype][0] * expected[0].abs().max()
            assert gradients.keys() == expected[1].keys() and names == expected[2]
        for name, gradient in expected[1].items():
            total = torch.stack([gradients[name] for _, gradients, _ in found]).sum(0)
            assert (total - gradient).abs().max() <= BOUNDS[dtype][1] * gradient.abs().max(), name


def test_rows_cut_differently_are_refused(saved: dict[str, bytes]) -> None:
    """By every rank, so that none waits."""
    with Ranks(2) as ranks, pytest.raises(RanksFailedError, match=r"the grid is cut into \[300, 137\] rows"):
        ranks.run(run_cut_differently, saved["graph_lam"], ranks=2)


def run_cut_differently(place: Place, saved: bytes) -> None:
    """Pass sizes that Anemoi wouldn't choose."""
    model = torch.load(io.BytesIO(saved), weights_only=False)
    inputs = torch.zeros(1, 2, 1, (300, 137)[place.rank], 9)
    model({GRID: inputs}, model_comm_group=place.groups[2], grid_shard_sizes={GRID: [300, 137]})


def test_as_it_was_alone(saved: dict[str, bytes]) -> None:
    """A group of one, and no group at all, run the whole network."""
    model = torch.load(io.BytesIO(saved["graph_lam"]), weights_only=False)
    assert torch.equal(model.grid_rows, torch.arange(model.network.num_grid))
    shard(model, None)
    assert model.network.sharding is None
