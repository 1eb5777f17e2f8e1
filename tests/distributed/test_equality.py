"""A sharded network equals the whole one: outputs and every gradient, on any number of ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from neural_lam_anemoi.graph import LamGraph

from .comparison import assert_equal
from .graphs import build_network, grid_coordinates, pickled, random_sample
from .ranks import Ranks
from .tasks import Options, run_sharded, run_whole

RANKS = (1, 2, 3, 4, 7)
PROPAGATION = {"g2m_gnn_type": "PropagationNet", "m2g_gnn_type": "PropagationNet"}
PROPAGATION_ALL = PROPAGATION | {"mesh_up_gnn_type": "PropagationNet", "mesh_down_gnn_type": "PropagationNet"}
COORDINATES = torch.tensor(grid_coordinates())


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, its graph, and how it is run."""

    model: str
    graph: str
    architecture: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch: int = 1
    steps: int = 1
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        named = {**self.architecture, "batch": self.batch, "steps": self.steps, **self.options}
        return "-".join([self.model, self.graph, *(f"{name}={value}" for name, value in named.items())])


RCB = {"partition": "rcb"}
CASES = [
    Case("graph_lam", "flat", batch=3),
    Case("graph_lam", "multiscale", PROPAGATION | {"mesh_aggr": "mean", "output_std": True}, options=RCB),
    Case("graph_lam", "multiscale", steps=4, options={"checkpointed": True, "shared_static": True}),
    Case("hi_lam", "hierarchical", batch=3, options={"replicate": None, "checkpoint_layers": True}),
    Case("hi_lam", "hierarchical", PROPAGATION_ALL, options=RCB | {"replicate": ("mesh_2",)}),
    Case("hi_lam", "hierarchical", {"processor_layers": 0}, options={"overlap": False}),
    Case("hi_lam", "hierarchical", PROPAGATION_ALL, steps=4, options={"replicate": ("mesh_1", "mesh_2")}),
    Case("hi_lam_parallel", "hierarchical", {"output_std": True}, batch=3, options=RCB),
    Case(
        "hi_lam_parallel",
        "hierarchical",
        PROPAGATION_ALL,
        options={"replicate": ("mesh_2",), "checkpoint_layers": True},
    ),
    Case("hi_lam_parallel", "hierarchical", {"processor_layers": 0, "hidden_layers": 2}, options={"overlap": False}),
]


def check(case: Case, graphs: dict[str, LamGraph], ranks: Ranks, count: int, dtype: torch.dtype) -> None:
    """Run the case whole and sharded and compare."""
    network = build_network(case.model, graphs[case.graph], **case.architecture)
    options = Options(grid_coordinates=COORDINATES, **case.options)
    sample = random_sample(network.num_grid, case.batch, case.steps).to(dtype)
    expected = run_whole(pickled(network, dtype), sample, options)
    results = ranks.run(run_sharded, count, pickled(network, dtype), sample, options, ranks=count)
    assert_equal(expected, results, dtype)


QUICK = [(case, count) for i, case in enumerate(CASES) for count in {3, RANKS[i % len(RANKS)]}]
"""Every case on three ranks and on one other number of them."""


@pytest.mark.parametrize(("case", "count"), QUICK, ids=str)
def test_equals_the_whole_network(case: Case, count: int, graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    check(case, graphs, ranks, count, torch.float64)


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_equals_the_whole_network_in_float32(case: Case, graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    check(case, graphs, ranks, 4, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_whole_network_everywhere(
    case: Case, count: int, batch: int, overlap: bool, graphs: dict[str, LamGraph], ranks: Ranks
) -> None:
    case = dataclasses.replace(case, batch=batch, options=case.options | {"overlap": overlap})
    check(case, graphs, ranks, count, torch.float64)
    check(case, graphs, ranks, count, torch.float32)
