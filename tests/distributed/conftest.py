"""Seven processes for all tests of this directory, and the graphs they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neural_lam_anemoi.graph import LamGraph

from .graphs import ARCHETYPES, grid_coordinates, read_graph, write_graph
from .ranks import Ranks

MOST_RANKS = 7


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes; a task that fails ends them all, and with them the tests that follow."""
    with Ranks(MOST_RANKS) as processes:
        yield processes


@pytest.fixture(scope="session")
def graph_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graph directories flat, multiscale and hierarchical of a small regular grid."""
    root = tmp_path_factory.mktemp("graphs")
    for kind in ARCHETYPES:
        write_graph(root / "graph" / kind, kind, grid_coordinates())
    return root


@pytest.fixture(scope="session")
def graphs(graph_directory: Path) -> dict[str, LamGraph]:
    """The same graphs in memory."""
    return {kind: read_graph(graph_directory / "graph" / kind, grid_coordinates()) for kind in ARCHETYPES}
