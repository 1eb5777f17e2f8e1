"""The graphs that the tests of this directory share."""

from __future__ import annotations

from pathlib import Path

import pytest

from neural_lam_anemoi.graph import LamGraph

from .graphs import ARCHETYPES, grid_coordinates, read_graph, write_graph


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
