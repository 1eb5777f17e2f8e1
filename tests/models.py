"""Bundles for the tests that need no host: real archetypes of graphs, random weights and fields."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import torch

from neural_lam_anemoi.bundle import STATISTICS, Fields, Loss, ModelBundle, Variables
from neural_lam_anemoi.forcing import ForcingWindow
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.clamping import Clamping

from .distributed.graphs import build_network, grid_coordinates, read_graph, write_graph

VARIABLES = Variables(("t", "u", "q"), ("sun", "snow"), ("land", "height"), {"t": "K", "q": "kg kg-1"})
WINDOW = ForcingWindow(1, 0)


def make_graph(directory: Path, kind: str) -> LamGraph:
    """A flat, multiscale or hierarchical graph on a small grid, by way of a neural-lam directory."""
    write_graph(directory, kind, grid_coordinates())
    return read_graph(directory, grid_coordinates())


def make_fields(graph: LamGraph, num_static: int = 2) -> Fields:
    """Random fields; the first hundred nodes are boundary."""
    generator = torch.Generator().manual_seed(2)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    n = graph.num_grid
    return Fields(
        latitudes=40 + 20 * uniform(n),
        longitudes=10 * uniform(n),
        coordinates=1e5 * uniform(n, 2),
        boundary=torch.arange(n) < 100,
        static=uniform(n, num_static).float(),
        mesh_latlons=tuple(40 + 10 * uniform(nodes, 2) for nodes in graph.num_mesh),
    )


def make_bundle(graph: LamGraph, model: str, **changes: Any) -> ModelBundle:
    """A model with random weights, and something in every optional part."""
    network = build_network(model, graph)
    counts = {name: len(getattr(VARIABLES, name.split("_")[0])) for name in STATISTICS}
    generator = torch.Generator().manual_seed(3)
    parts: dict[str, Any] = {
        "architecture": network.architecture,
        "weights": dict(network.state_dict()),
        "graph": graph,
        "variables": VARIABLES,
        "statistics": {
            name: 0.5 + torch.rand(count, generator=generator, dtype=torch.float64) for name, count in counts.items()
        },
        "fields": make_fields(graph),
        "forcing_window": WINDOW,
        "clamping": Clamping({"t": -4.0, "q": -4.0}, {"u": 4.0, "q": 5.0}),
        "time_step": datetime.timedelta(hours=3),
        "loss": Loss("wmse", (0.5, 0.25, 0.25)),
        "provenance": [{"file": "random.ckpt"}],
        "averaged_weights": {name: value + 1 for name, value in network.state_dict().items()},
        "training": {"epoch": 3, "optimizer_states": [{"state": {0: {"step": torch.tensor(7.0)}}}]},
        "host": {"other": {"args": (1, None, float("nan")), "names": ["a"]}},
    }
    return ModelBundle(**(parts | changes))


def assert_same_graph(first: LamGraph, second: LamGraph) -> None:
    """Equal in every number, bit for bit."""
    assert (first.num_grid, first.mesh_scaling) == (second.num_grid, second.mesh_scaling)
    for one, two in zip(first.mesh_coordinates, second.mesh_coordinates, strict=True):
        assert torch.equal(one, two)
    assert list(first.edge_sets()) == list(second.edge_sets())
    for name, edges in first.edge_sets().items():
        other = second.edge_sets()[name]
        assert torch.equal(edges.index, other.index), name
        assert torch.equal(edges.features, other.features), name
