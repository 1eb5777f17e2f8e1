"""What every rank measures: traffic, exchanges, live tensors and time of one train step."""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from torch import Tensor, nn

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.networks import LamNetwork
from neural_lam_anemoi.sharding.shard import shard
from tests.distributed.ranks import Place

from .observe import LiveTensors, counted_traffic


@dataclasses.dataclass
class Measurement:
    """Of one rank: bytes received and collectives called forward and backward, peak bytes, seconds per step."""

    forward_bytes: int
    backward_bytes: int
    forward_calls: int
    backward_calls: int
    peak_bytes: int
    seconds: list[float]


def measure(model: nn.Module, forward: Callable[[], Tensor], barrier: Callable[[], Any], repeats: int) -> Measurement:
    """One step counted, one step watched, ``repeats`` steps timed; all on the caller's rows."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        forward().square().sum().backward()

    with counted_traffic() as traffic:
        loss = forward().square().sum()
        there = dataclasses.replace(traffic)
        loss.backward()
    model.zero_grad(set_to_none=True)
    with LiveTensors() as live:
        step()
    seconds = []
    for _ in range(repeats):
        barrier()
        start = time.perf_counter()
        step()
        barrier()
        seconds.append(time.perf_counter() - start)
    return Measurement(
        there.received,
        traffic.received - there.received,
        there.calls,
        traffic.calls - there.calls,
        live.peak,
        seconds,
    )


def measure_network(
    place: Place | None, ranks: int, pickled: bytes, options: dict[str, Any], repeats: int
) -> Measurement:
    """One of our networks, sharded with ``options``, on random rows."""
    model: LamNetwork = pickle.loads(pickled)
    group = None
    if place is not None:
        group = place.groups[ranks]
        shard(model, group, **options)
    generator = torch.Generator().manual_seed(ranks)
    a, rows = model.architecture, len(model.grid_rows)
    widths = (a.num_state, a.num_state, a.num_forcing, a.num_static)
    fields = [torch.randn(1, rows, width, generator=generator) for width in widths]
    return measure(model, lambda: model.step(*fields)[0], _barrier(group), repeats)


def measure_stock(place: Place, ranks: int, architecture: Architecture, graph: LamGraph, repeats: int) -> Measurement:
    """Anemoi's stock layers, on random rows."""
    from .stock import StockGNN

    torch.manual_seed(0)
    model, group = StockGNN(architecture, graph), place.groups[ranks]
    rows = get_balanced_partition_sizes(graph.num_grid, ranks)[place.rank]
    grid = torch.randn(rows, architecture.grid_input_dim, generator=torch.Generator().manual_seed(place.rank))
    return measure(model, lambda: model(grid, group), _barrier(group), repeats)


def _barrier(group: Any) -> Callable[[], Any]:
    return (lambda: dist.barrier(group)) if group is not None else (lambda: None)
