"""What is received is what the partition says, there and back, in as few exchanges as can be."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from benchmarks.graphs import reference_graph
from benchmarks.measured import Measurement, measure_network
from benchmarks.sharding import all_gather_megabytes
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.networks import LamNetwork
from neural_lam_anemoi.sharding.costs import exchanged_bytes
from neural_lam_anemoi.sharding.cuts import make_partition, passes_per_step

from .graphs import build_network, grid_coordinates
from .ranks import Ranks

PLACES = torch.tensor(grid_coordinates())


def sharded(ranks: Ranks, count: int, network: LamNetwork, **options: Any) -> list[Measurement]:
    """One step measured on every rank."""
    return ranks.run(measure_network, count, pickle.dumps(network), options, 0, ranks=count)


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"partition": "rcb"}, {"replicate": ["mesh_2"]}], ids=str)
@pytest.mark.parametrize("model", ["graph_lam", "hi_lam", "hi_lam_parallel"])
def test_every_byte_is_accounted_for(
    model: str, options: dict[str, Any], graphs: dict[str, LamGraph], ranks: Ranks
) -> None:
    graph = graphs["multiscale" if model == "graph_lam" else "hierarchical"]
    replicate = options.get("replicate", []) if graph.hierarchical else []
    network = build_network(model, graph, hidden_dim=8)
    passes = passes_per_step(graph.num_levels, network.architecture)
    partition = make_partition(graph, 4, options.get("partition", "contiguous"), PLACES, passes, replicate)
    expected = exchanged_bytes(graph, partition, network.architecture)
    found = sharded(ranks, 4, network, partition=partition, overlap=options.get("overlap", True))
    for rank, one in enumerate(found):
        assert abs(one.forward_bytes - expected[rank]) <= 16  # of rounding, an all-reduce isn't whole rows
    assert sum(one.backward_bytes for one in found) == sum(one.forward_bytes for one in found)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_layer_of_hi_lam_parallel_exchanges_once(layers: int, graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    network = build_network("hi_lam_parallel", graphs["hierarchical"], processor_layers=layers)
    around = 2 + 2 * (network.num_levels - 1)  # g2m, m2g, and up and down the levels once
    for one in sharded(ranks, 3, network, replicate=[]):
        assert one.forward_calls - layers <= around
        assert one.backward_calls == one.forward_calls


@pytest.mark.parametrize("kind", ["contiguous", "rcb"])
def test_replicated_levels_need_fewer_exchanges(kind: str, graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    network = build_network("hi_lam", graphs["hierarchical"])
    common = {"partition": kind, "grid_coordinates": PLACES}
    cut = sharded(ranks, 3, network, replicate=[], **common)
    whole = sharded(ranks, 3, network, replicate=["mesh_1", "mesh_2"], **common)
    assert whole[0].forward_calls < cut[0].forward_calls / 2


@pytest.mark.full
@pytest.mark.parametrize(("kind", "share"), [("rcb", 180), ("contiguous", 110)])
def test_the_reference_on_eight_ranks(kind: str, share: int) -> None:
    graph, places = reference_graph("multiscale")
    network = build_network("graph_lam", graph, hidden_dim=64, processor_layers=4)
    alone = measure_network(None, 1, pickle.dumps(network), {}, 0)
    with Ranks(8, timeout=300) as eight:
        found = sharded(eight, 8, network, partition=kind, grid_coordinates=places)
    nodes = 2 * (graph.num_grid + graph.num_mesh[0]) + 4 * graph.num_mesh[0]
    stock = nodes * 7 / 8 * 64 * 4  # measured in benchmarks/sharding.py: both ends of both mappers, and each layer
    assert sum(one.forward_bytes for one in found) / 8 <= stock / share
    assert sum(one.backward_bytes for one in found) == sum(one.forward_bytes for one in found)
    assert max(one.peak_bytes for one in found) <= 1.15 / 8 * alone.peak_bytes


@pytest.mark.full
@pytest.mark.parametrize("model", ["hi_lam", "hi_lam_parallel"])
def test_a_hierarchy_on_eight_ranks(model: str) -> None:
    graph, places = reference_graph("hierarchical")
    network = build_network(model, graph, hidden_dim=64, processor_layers=4)
    with Ranks(8, timeout=300) as eight:
        found = sharded(eight, 8, network, partition="rcb", grid_coordinates=places)
    gathered = all_gather_megabytes(graph, 8, network.architecture) * 1e6
    assert sum(one.forward_bytes for one in found) / 8 <= gathered / 80
    assert sum(one.backward_bytes for one in found) == sum(one.forward_bytes for one in found)
