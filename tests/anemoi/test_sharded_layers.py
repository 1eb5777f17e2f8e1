"""Our layers, cut by Anemoi's shard information, equal themselves alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from anemoi.models.distributed.graph import shard_tensor
from anemoi.models.distributed.khop_edges import shard_edges_1hop
from torch import Tensor

from benchmarks.observe import counted_traffic
from neural_lam_anemoi.errors import InvalidInputError

from ..distributed.comparison import BOUNDS
from ..distributed.ranks import Place, Ranks
from .cases import LAYERS, WIDTH, Inputs, build, call, loss_of, make_inputs, outputs_of, relative, run

OUTPUTS, GRADIENTS = BOUNDS[torch.float64]
HOWS = ("as in training", "whole nodes and edges", "unsorted edges")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"gradient_checkpointing": True, "num_chunks": 2})


@dataclasses.dataclass
class Shard:
    """What a rank found: whole outputs, gradients of parameters and of whole inputs as this rank knows them."""

    outputs: tuple[Tensor, ...]
    parameters: dict[str, Tensor | None]
    inputs: list[Tensor | None]


def run_rank(place: Place, count: int, name: str, inputs: Inputs, how: str, options: dict[str, Any]) -> Shard:
    """Forwards and backwards on one rank. Losses are Anemoi's: this rank's rows of the sum, or the whole of it."""
    group = place.groups[count]
    layer = build(name, **options)
    leaves = [x.clone().requires_grad_() for x in inputs.leaves()]
    asked, sizes = dataclasses.replace(inputs, nodes=tuple(leaves[:-1]), attributes=leaves[-1]), (None, None, None)
    if how == "as in training":
        asked, sizes = cut(asked, group)
    if how == "unsorted edges":
        order = torch.randperm(len(inputs.attributes), generator=torch.Generator().manual_seed(7))
        asked = dataclasses.replace(asked, attributes=asked.attributes[order], index=inputs.index[:, order])
    extra = {"keep_x_dst_sharded": how == "as in training", "edges_are_dst_sorted": how != "unsorted edges"}
    outputs = outputs_of(call(layer, asked, sizes, model_comm_group=group, **extra))
    loss_of(outputs, asked.weights).backward()
    gradients = {key: parameter.grad for key, parameter in layer.named_parameters()}
    found = tuple(x.detach() for x in outputs)
    if how == "as in training":
        totals = [len(x) for x in inputs.nodes][-len(found) :]
        found = tuple(whole(x, total, group) for x, total in zip(found, totals, strict=True))
    return Shard(found, gradients, [x.grad for x in leaves])


def cut(inputs: Inputs, group: Any) -> tuple[Inputs, tuple[Any, ...]]:
    """A rank's part, as Anemoi's model and graph provider make it, and the sizes of all parts."""
    totals = len(inputs.nodes[0]), len(inputs.nodes[-1])
    senders, receivers = (get_balanced_partition_sizes(total, group.size()) for total in totals)
    nodes = [shard_tensor(x, 0, s, group) for x, s in zip(inputs.nodes, (senders, receivers), strict=False)]
    attributes, index, edges = shard_edges_1hop(inputs.attributes, inputs.index, *totals, group)
    weights = shard_tensor(inputs.weights, 0, receivers, group)
    return Inputs(tuple(nodes), attributes, index, weights), (senders, receivers, edges)


def whole(rows: Tensor, total: int, group: Any) -> Tensor:
    """Every rank's rows, without gradients."""
    start = sum(get_balanced_partition_sizes(total, group.size())[: group.rank()])
    filled = rows.new_zeros(total, *rows.shape[1:])
    filled[start : start + len(rows)] = rows
    dist.all_reduce(filled, group=group)
    return filled


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", LAYERS)
def test_equal_to_itself_alone(name: str, how: str, ranks: Ranks) -> None:
    """Gradients of parameters are summed over the ranks, as Anemoi's strategy does; those of inputs that every rank has
    whole, such as trainable node and edge attributes, are whole on every rank."""
    inputs = make_inputs(name)
    expected = run(build(name), inputs)
    for count in (2, 3):
        for options in OPTIONS:
            shards = ranks.run(run_rank, count, name, inputs, how, options, ranks=count)
            for shard in shards:
                for one, two in zip(shard.outputs, expected.outputs, strict=True):
                    assert relative(one, two) <= OUTPUTS
                for one, two in zip(shard.inputs, expected.inputs, strict=True):
                    assert relative(one, two) <= GRADIENTS
            for key, gradient in expected.parameters.items():
                total = torch.stack([shard.parameters[key] for shard in shards]).sum(0)
                assert relative(total, gradient) <= GRADIENTS, key


@pytest.mark.parametrize("name", LAYERS)
def test_halos_are_all_that_is_exchanged(name: str, ranks: Ranks) -> None:
    """Once per layer, there and back; and before, once, which rows they are."""
    inputs, count, number = make_inputs(name), 3, 8
    passes = 2 if name.endswith("Processor") else 1
    owner = [
        torch.repeat_interleave(torch.arange(count), torch.tensor(get_balanced_partition_sizes(len(x), count)))
        for x in (inputs.nodes[0], inputs.nodes[-1])
    ]
    reader = owner[1][inputs.index[1]]
    reads = torch.unique(torch.stack([reader, inputs.index[0]])[:, reader != owner[0][inputs.index[0]]], dim=1)
    rows = passes * reads.shape[1] * WIDTH * number
    names = (reads.shape[1] + count * (count - 1)) * number
    found = ranks.run(run_counted, count, name, inputs, ranks=count)
    assert [sum(received) for received in zip(*found, strict=True)] == [names + rows, rows]


def run_counted(place: Place, count: int, name: str, inputs: Inputs) -> tuple[int, int]:
    """Bytes that a rank receives on the way there and on the way back."""
    layer, (mine, sizes) = build(name), cut(inputs, place.groups[count])
    mine.nodes = tuple(x.requires_grad_() for x in mine.nodes)
    with counted_traffic() as there:
        outputs = outputs_of(call(layer, mine, sizes, model_comm_group=place.groups[count], keep_x_dst_sharded=True))
    with counted_traffic() as back:
        loss_of(outputs, mine.weights).backward()
    return there.received, back.received


@pytest.mark.parametrize("name", ("InteractionNetProcessor", "PropagationNetForwardMapper"))
def test_hardly_any_nodes(name: str, ranks: Ranks) -> None:
    """A rank without receivers, senders or edges waits for nobody and is waited for by nobody."""
    inputs = make_inputs(name)
    few = [x[:2] for x in inputs.nodes]
    index = torch.tensor([[1, 0], [0, 0]])
    tiny = Inputs(tuple(few), inputs.attributes[:2], index, inputs.weights[:2])
    expected = run(build(name), tiny)
    shards = ranks.run(run_rank, 3, name, tiny, "as in training", OPTIONS[1], ranks=3)
    for shard in shards:
        assert relative(shard.outputs[-1], expected.outputs[-1]) <= OUTPUTS
        assert relative(shard.inputs[0], expected.inputs[0]) <= GRADIENTS


def test_receivers_cut_unequally_are_refused(ranks: Ranks) -> None:
    """By every rank: Anemoi would give each the edges of other receivers."""
    said = ranks.run(run_unequal, ranks=2)
    assert said == ["the receivers are cut into [16, 1] rows; Anemoi cuts edges for equal parts"] * 2


def run_unequal(place: Place) -> str:
    """Sizes that Anemoi wouldn't choose, and what is said to them."""
    inputs, sizes = make_inputs("Processor"), [16, 1]
    start = sum(sizes[: place.rank])
    mine = dataclasses.replace(inputs, nodes=(inputs.nodes[0][start : start + sizes[place.rank]],))
    with pytest.raises(InvalidInputError) as refusal:
        call(build("InteractionNetProcessor"), mine, (sizes, sizes, None), model_comm_group=place.groups[2])
    return str(refusal.value)
