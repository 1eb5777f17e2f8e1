"""Any graph: asymmetric, unsorted, doubled edges, isolated nodes, levels with fewer nodes than ranks."""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from neural_lam_anemoi.graph import GRID, mesh_name
from neural_lam_anemoi.sharding.partition import Partition

from .comparison import assert_equal
from .graphs import build_network, pickled, random_graph, random_sample
from .ranks import Ranks
from .tasks import Options, run_sharded, run_whole

EXAMPLES = int(os.environ.get("SHARDING_EXAMPLES", "25"))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, object]:
    """A graph, a network on it, and a partition of any kind, unbalanced and with empty ranks too."""
    model = draw(st.sampled_from(["graph_lam", "hi_lam", "hi_lam_parallel"]))
    levels = 1 if model == "graph_lam" else draw(st.integers(2, 3))
    num_mesh = tuple(draw(st.integers(1, 9)) for _ in range(levels))
    graph = random_graph(
        draw(st.integers(0, 10**6)), draw(st.integers(1, 20)), num_mesh, draw(st.sampled_from([0.3, 1.0, 3.0]))
    )
    count = draw(st.sampled_from([2, 3, 4, 7]))
    partition = draw(st.sampled_from(["contiguous", "rcb", "any"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    coordinates = torch.rand(graph.num_grid, 2, generator=generator)
    coarse = [mesh_name(level) for level in range(levels)]
    replicate = tuple(draw(st.lists(st.sampled_from(coarse), unique=True, max_size=levels)))
    if partition == "any":
        owners = {
            name: torch.randint(0, count, (nodes,), generator=generator) for name, nodes in graph.node_sets().items()
        }
        owners[GRID] = owners[GRID].clamp(max=draw(st.integers(0, count - 1)))
        partition = Partition("any", count, owners)
    kinds = {"g2m_gnn_type": draw(st.sampled_from(["InteractionNet", "PropagationNet"]))}
    kinds["mesh_up_gnn_type"] = draw(st.sampled_from(["InteractionNet", "PropagationNet"]))
    overlap, steps = draw(st.booleans()), draw(st.integers(1, 2))
    options = Options(partition, coordinates, replicate, overlap=overlap, checkpointed=steps == 2)
    network = build_network(model, graph, hidden_dim=4, **kinds)
    return {"network": network, "count": count, "options": options, "batch": draw(st.integers(1, 2)), "steps": steps}


def check(case: dict, ranks: Ranks) -> None:
    """As on the regular graphs, in float64."""
    network, count, options = case["network"], case["count"], case["options"]
    sample = random_sample(network.num_grid, case["batch"], case["steps"])
    expected = run_whole(pickled(network), sample, options)
    results = ranks.run(run_sharded, count, pickled(network), sample, options, ranks=count)
    assert_equal(expected, results, torch.float64)


@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(case=cases())
def test_equals_the_whole_network_on_random_graphs(case: dict, ranks: Ranks) -> None:
    check(case, ranks)


@pytest.mark.full
@pytest.mark.timeout(3600)
@hypothesis.settings(
    max_examples=20 * EXAMPLES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(case=cases())
def test_equals_the_whole_network_on_many_random_graphs(case: dict, ranks: Ranks) -> None:
    check(case, ranks)


def test_a_rank_without_anything_takes_part(ranks: Ranks) -> None:
    graph = random_graph(3, 12, (5, 2), 1.5)
    owners = {name: torch.zeros(nodes, dtype=torch.int64) for name, nodes in graph.node_sets().items()}
    owners[GRID][6:] = 2
    network = build_network("hi_lam", graph)
    options = Options(Partition("lopsided", 4, owners))
    sample = random_sample(network.num_grid)
    results = ranks.run(run_sharded, 4, pickled(network), sample, options, ranks=4)
    assert_equal(run_whole(pickled(network), sample, options), results, torch.float64)
    assert len(results[1].rows) == len(results[3].rows) == 0
    assert all(float(gradient.abs().max()) == 0 for gradient in results[3].gradients.values())
