"""Graph directories are read as ``neural_lam.utils.load_graph`` reads them, and written so that it reads them again."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neural_lam.utils import load_graph
from torch import Tensor

from neural_lam_anemoi import InvalidInputError
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.graph_io import read_graph_directory, write_graph_directory
from neural_lam_anemoi.hetero import fields_from_hetero, graph_from_hetero, hetero_parts, to_hetero
from neural_lam_anemoi.weights import read_torch_file

from .distributed.graphs import grid_coordinates, write_graph
from .models import assert_same_graph, make_fields

COORDINATES = 1000 * grid_coordinates()
SPAN = 22000.0
KINDS = ("flat", "multiscale", "hierarchical")
GRID_FIRST, MESH_FIRST = "grid first", "mesh first"


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A graph directory of spec 0.1.0 for each of `KINDS`."""
    place = tmp_path_factory.mktemp("graphs")
    for kind in KINDS:
        write_graph(place / kind, kind, COORDINATES, distance=2000.0)
    return {kind: place / kind for kind in KINDS}


def read(directory: Path) -> LamGraph:
    """As for a datastore of this grid."""
    return read_graph_directory(directory, len(COORDINATES), SPAN)


def make_legacy(source: Path, target: Path, order: str) -> Path:
    """The same graph as releases before spec 0.1.0 wrote it: one sequence of node numbers, scaled coordinates."""
    shutil.copytree(source, target)
    (target / "metainfo.yaml").unlink()
    mesh = [level / SPAN for level in load(target, "mesh_features")]
    levels = [0, *itertools.accumulate(len(level) for level in mesh)]
    first_grid = levels[-1] if order == MESH_FIRST else 0
    first_mesh = 0 if order == MESH_FIRST else len(COORDINATES)
    torch.save(mesh, target / "mesh_features.pt")
    ends = {"g2m": [(first_grid, first_mesh)], "m2g": [(first_mesh, first_grid)]}
    ends["m2m"] = [(first_mesh + level, first_mesh + level) for level in levels[:-1]]
    ends["mesh_up"] = [(first_mesh + low, first_mesh + high) for low, high in itertools.pairwise(levels[:-1])]
    ends["mesh_down"] = [(high, low) for low, high in ends["mesh_up"]]
    for name, offsets in ends.items():
        if not (target / f"{name}_edge_index.pt").exists():
            continue
        content = load(target, f"{name}_edge_index")
        sets = content if isinstance(content, list) else [content]
        shifted = [edges + torch.tensor(offset).unsqueeze(1) for edges, offset in zip(sets, offsets, strict=True)]
        torch.save(shifted if isinstance(content, list) else shifted[0], target / f"{name}_edge_index.pt")
    return target


def load(directory: Path, name: str) -> Any:
    """One file of a graph directory."""
    return torch.load(directory / f"{name}.pt", weights_only=True)


def assert_as_neural_lam(directory: Path) -> None:
    """Bit for bit what neural-lam's own reader gives."""
    hierarchical, theirs = load_graph(str(directory), SPAN)
    ours = read(directory).normalised()
    assert ours.hierarchical == hierarchical

    def listed(value: Any) -> list[Tensor]:
        return [value] if isinstance(value, Tensor) else list(value)

    for name in ("g2m", "m2g", "m2m", "mesh_up", "mesh_down"):
        held = getattr(ours, name)
        sets = list(held) if isinstance(held, tuple) else [held]
        index, features = listed(theirs[f"{name}_edge_index"]), listed(theirs[f"{name}_features"])
        assert len(sets) == len(index) == len(features)
        for edges, their_index, their_features in zip(sets, index, features, strict=True):
            assert torch.equal(edges.index, their_index), name
            assert torch.equal(edges.features, their_features), name
    for one, two in zip(ours.mesh_coordinates, listed(theirs["mesh_static_features"]), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_as_neural_lam_reads_it(kind: str, directories: dict[str, Path]) -> None:
    assert_as_neural_lam(directories[kind])
    assert read(directories[kind]).num_levels == (3 if kind == "hierarchical" else 1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("order", [GRID_FIRST, MESH_FIRST])
@pytest.mark.parametrize("kind", KINDS)
def test_a_legacy_directory(kind: str, order: str, directories: dict[str, Path], tmp_path: Path) -> None:
    legacy = make_legacy(directories[kind], tmp_path / "legacy", order)
    assert_as_neural_lam(legacy)
    ours, current = read(legacy), read(directories[kind])
    for name, edges in ours.edge_sets().items():
        assert torch.equal(edges.index, current.edge_sets()[name].index), name


@pytest.mark.parametrize("kind", KINDS)
def test_written_and_read_again(kind: str, directories: dict[str, Path], tmp_path: Path) -> None:
    graph = read(directories[kind])
    write_graph_directory(graph, tmp_path)
    assert_as_neural_lam(tmp_path)
    assert_same_graph(graph, read(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in directories[kind].iterdir()}


def test_scaled_coordinates_cannot_be_written_raw(directories: dict[str, Path], tmp_path: Path) -> None:
    legacy = make_legacy(directories["flat"], tmp_path / "legacy", GRID_FIRST)
    with pytest.raises(InvalidInputError, match="already scaled"):
        write_graph_directory(read(legacy), tmp_path)


@pytest.mark.parametrize("safely", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_as_anemoi_graph_and_back(kind: str, safely: bool, directories: dict[str, Path], tmp_path: Path) -> None:
    graph = read(directories[kind])
    fields = make_fields(graph)
    torch.save(to_hetero(graph, fields), tmp_path / "graph.pt")
    data = read_torch_file(tmp_path / "graph.pt") if safely else torch.load(tmp_path / "graph.pt", weights_only=False)
    parts = hetero_parts(data)
    assert_same_graph(graph, graph_from_hetero(parts))
    again = fields_from_hetero(parts)
    for name in ("latitudes", "longitudes", "coordinates", "boundary", "static"):
        assert torch.equal(getattr(fields, name), getattr(again, name)), name


Spoil = Callable[[Path], None]


def _rewrite(name: str, change: Callable[[Any], Any]) -> Spoil:
    def spoil(directory: Path) -> None:
        torch.save(change(load(directory, name)), directory / f"{name}.pt")

    return spoil


def _unlink(name: str) -> Spoil:
    return lambda directory: (directory / name).unlink()


def _metainfo(text: str) -> Spoil:
    return lambda directory: (directory / "metainfo.yaml").write_text(text) and None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_unlink("mesh_up_features.pt"), "mesh_up_features.pt: missing from the graph directory"),
        (_unlink("g2m_edge_index.pt"), "g2m_edge_index.pt: missing from the graph directory"),
        (_metainfo("spec_version: 9.0.0"), "graph spec version is '9.0.0'; 0.1.0 and legacy are understood"),
        (_metainfo("other: 1"), "graph spec version is None"),
        (_metainfo("a: ["), "metainfo.yaml: not valid YAML"),
        (_rewrite("g2m_edge_index", lambda index: index + 1000), "g2m names sender 1"),
        (_rewrite("m2g_edge_index", lambda index: index - 1), "m2g names sender -1"),
        (_rewrite("m2m_edge_index", lambda sets: [sets[1], sets[0], sets[2]]), "m2m_0 has"),
        (_rewrite("mesh_up_edge_index", lambda sets: sets[:1]), "mesh_up has 1 levels of indices, 2 of features"),
        (_rewrite("mesh_features", lambda sets: sets[:2]), "a mesh of 2 levels needs"),
        (_rewrite("mesh_features", lambda sets: "mesh"), "mesh_features.pt: holds str, not tensors"),
        (_rewrite("g2m_features", lambda features: features[1:]), "g2m has"),
        (_rewrite("g2m_edge_index", lambda index: index.float()), "edge index is (2, "),
    ],
)
def test_what_does_not_fit_is_named(spoil: Spoil, message: str, directories: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "spoilt"
    shutil.copytree(directories["hierarchical"], directory)
    spoil(directory)
    with pytest.raises(InvalidInputError) as caught:
        read(directory)
    assert message in str(caught.value) and str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_grid_is_named(directories: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="but there are only 100"):
        read_graph_directory(directories["flat"], 100, SPAN)
    with pytest.raises(InvalidInputError, match="no such graph directory"):
        read(tmp_path / "absent")
