"""Graphs on disk: neural-lam's graph directories, and the HeteroData files of Anemoi.

A neural-lam directory holds indices and features of every edge set and the mesh coordinates, one ``.pt`` file each: a
tensor for the edges between grid and mesh, a list of tensors, one per level, for the rest. Spec 0.1.0
(``metainfo.yaml``) counts every node set from 0 and stores raw mesh coordinates; a legacy directory has no
``metainfo.yaml``, numbers the nodes of the whole graph in one sequence and stores mesh coordinates already divided.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from .errors import InvalidInputError
from .graph import LamGraph, join_graph
from .weights import read_torch_file

METAINFO = "metainfo.yaml"
SPEC_VERSION = "0.1.0"
LEGACY = "legacy"
FLAT_SETS = ("m2m", "g2m", "m2g")
HIERARCHY_SETS = ("mesh_up", "mesh_down")


def read_graph_directory(directory: Path, num_grid: int | None, grid_span: float) -> LamGraph:
    """Read a neural-lam graph directory.

    Parameters
    ----------
    directory : Path
        As written by ``neural_lam.create_graph`` or ``neural_lam.create_graph_with_wmg``.
    num_grid : int or None
        Grid nodes of the datastore it was made for (the directory doesn't say). None: as many as its edges from the mesh
        reach; neural-lam's graphs give every grid node some.
    grid_span : float
        The larger of the grid's extents in x and y: neural-lam divides raw mesh coordinates by it.

    Returns
    -------
    LamGraph
        With features as stored and all indices counted from 0.

    Raises
    ------
    InvalidInputError
        A file is missing, the version is unknown, an index is out of range or levels don't fit.
    """
    if not directory.is_dir():
        raise InvalidInputError(f"{directory}: no such graph directory; make one with neural_lam.create_graph_with_wmg")
    version = _spec_version(directory)
    mesh = _tensor_list(directory, "mesh_features.pt")
    names = (*FLAT_SETS, *HIERARCHY_SETS) if len(mesh) > 1 else FLAT_SETS
    index = {name: _tensor_list(directory, f"{name}_edge_index.pt") for name in names}
    features = {name: _tensor_list(directory, f"{name}_features.pt") for name in names}
    for name in names:
        if len(index[name]) != len(features[name]):
            counts = f"{len(index[name])} levels of indices, {len(features[name])} of features"
            raise InvalidInputError(f"{directory}: {name} has {counts}")
    if version == LEGACY:
        index = _count_from_zero(index, mesh)
    if num_grid is None:
        num_grid = int(index["m2g"][0][1].max()) + 1
    scaling = _mesh_scaling(version, grid_span)
    try:
        return _assemble(mesh, index, features, num_grid, scaling)
    except InvalidInputError as error:
        raise InvalidInputError(f"{directory}: {error}") from None


def read_lone_graph_directory(directory: Path) -> tuple[LamGraph, Tensor | None]:
    """Read a graph directory without the datastore it was made for.

    Parameters
    ----------
    directory : Path

    Returns
    -------
    graph : LamGraph
    grid_coordinates : Tensor or None
        Shape ``(num_grid, 2)``, in the unit of the mesh coordinates: where the vectors from the mesh say that each grid
        node is. None for a legacy directory, whose vectors are in another unit.

    Raises
    ------
    InvalidInputError
        As `read_graph_directory`, or the vectors of a grid node contradict each other.
    """
    graph = read_graph_directory(directory, None, grid_span=1.0)
    if _spec_version(directory) == LEGACY:
        return graph, None
    coordinates = _grid_coordinates(graph)
    if coordinates is None:
        raise InvalidInputError(f"{directory}: m2g features contradict each other; make the graph anew")
    return dataclasses.replace(graph, mesh_scaling=float(coordinates.max() - coordinates.min())), coordinates


def _grid_coordinates(graph: LamGraph) -> Tensor | None:
    senders, receivers = graph.m2g.index
    mesh, vectors = graph.mesh_coordinates[0][senders, :2].double(), graph.m2g.features[:, 1:3].double()
    edges = torch.bincount(receivers, minlength=graph.num_grid).clamp(min=1).unsqueeze(1)
    for said in (mesh + vectors, mesh - vectors):
        places = torch.zeros(graph.num_grid, 2, dtype=torch.float64).index_add_(0, receivers, said) / edges
        if (said - places[receivers]).abs().max() <= 1e-3 * vectors.abs().max():
            return places
    return None


def write_graph_directory(graph: LamGraph, directory: Path) -> None:
    """Write ``graph`` as a neural-lam graph directory of spec 0.1.0 into the existing, empty ``directory``.

    Raises
    ------
    InvalidInputError
        If the graph came from a legacy directory: its mesh coordinates are already divided by a number that is lost.
    """
    if graph.mesh_scaling == 1.0:
        raise InvalidInputError("graph: mesh coordinates are already scaled (legacy); spec 0.1.0 stores raw ones")
    for name, edges in (("g2m", graph.g2m), ("m2g", graph.m2g)):
        torch.save(edges.index, directory / f"{name}_edge_index.pt")
        torch.save(edges.features, directory / f"{name}_features.pt")
    levels = {"m2m": graph.m2m, "mesh_up": graph.mesh_up, "mesh_down": graph.mesh_down}
    for name, sets in levels.items():
        if sets:
            torch.save([edges.index for edges in sets], directory / f"{name}_edge_index.pt")
            torch.save([edges.features for edges in sets], directory / f"{name}_features.pt")
    torch.save(list(graph.mesh_coordinates), directory / "mesh_features.pt")
    (directory / METAINFO).write_text(yaml.safe_dump({"spec_version": SPEC_VERSION}))


def _spec_version(directory: Path) -> str:
    path = directory / METAINFO
    if not path.exists():
        return LEGACY
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        raise InvalidInputError(f"{path}: not valid YAML; make the graph anew") from None
    version = content.get("spec_version") if isinstance(content, dict) else None
    if version != SPEC_VERSION:
        raise InvalidInputError(f"{path}: graph spec version is {version!r}; {SPEC_VERSION} and legacy are understood")
    return SPEC_VERSION


def _tensor_list(directory: Path, name: str) -> list[Tensor]:
    path = directory / name
    if not path.exists():
        raise InvalidInputError(f"{path}: missing from the graph directory; make the graph anew")
    content: Any = read_torch_file(path)
    tensors = list(content) if isinstance(content, list | tuple) else [content]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise InvalidInputError(f"{path}: holds {type(content).__name__}, not tensors; make the graph anew")
    return tensors


def _mesh_scaling(version: str, grid_span: float) -> float:
    """What neural-lam 0.7.0 divides by: the span, 1 where the span is 0 or coordinates are stored divided."""
    return 1.0 if version == LEGACY or grid_span == 0 else grid_span


def _count_from_zero(index: dict[str, list[Tensor]], mesh: list[Tensor]) -> dict[str, list[Tensor]]:
    """Turn legacy node numbers into per-set ones, as ``neural_lam.utils.load_graph`` (0.7.0) does."""
    (m2g,), (g2m,) = index["m2g"], index["g2m"]
    low = m2g.min(dim=1).values
    if low[0] < low[1]:  # mesh nodes come first in the sequence, grid nodes after all levels
        total = sum(len(level) for level in mesh)
        zeroed = {"m2g": [m2g - torch.tensor([[0], [total]])], "g2m": [g2m - torch.tensor([[total], [0]])]}
    else:
        zeroed = {
            "m2g": [m2g - torch.tensor([[int(m2g[1].max()) + 1], [0]])],
            "g2m": [g2m - torch.tensor([[0], [int(g2m[0].max()) + 1]])],
        }
    for name in index.keys() - zeroed.keys():
        zeroed[name] = [edges - edges.min(dim=1, keepdim=True).values for edges in index[name]]
    return zeroed


def _assemble(
    mesh: list[Tensor],
    index: dict[str, list[Tensor]],
    features: dict[str, list[Tensor]],
    num_grid: int,
    scaling: float,
) -> LamGraph:
    levels = len(mesh)
    expected = {"g2m": 1, "m2g": 1, "m2m": levels, "mesh_up": levels - 1, "mesh_down": levels - 1}
    edges = {}
    for name, sets in index.items():
        if len(sets) != expected[name]:
            raise InvalidInputError(f"{name} has {len(sets)} levels; a mesh of {levels} levels needs {expected[name]}")
        for level, pair in enumerate(zip(sets, features[name], strict=True)):
            edges[name if name in ("g2m", "m2g") else f"{name}_{level}"] = pair
    return join_graph(num_grid, tuple(mesh), edges, scaling)
