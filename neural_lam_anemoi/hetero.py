"""Graph and fields of a model as the HeteroData object that Anemoi keeps in ``graph.pt`` and in its checkpoints.

Node types are `GRID` (Anemoi's dataset name) and ``mesh_0``, ``mesh_1``, …, finest first; edge types are ``(sender, "to",
receiver)``. Features are stored as `LamGraph` holds them, so that nothing is lost on the way back. Every node type has
``x``, latitude and longitude in radians, as Anemoi's own graphs have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from .bundle import Fields
from .errors import InvalidInputError
from .graph import GRID as GRID_SET
from .graph import LamGraph, edge_ends, join_graph, mesh_name
from .weights import Stub, find_stub_state

GRID = "data"
INTERIOR = "interior_mask"


@dataclasses.dataclass(frozen=True)
class HeteroParts:
    """The stores of a HeteroData object, or of the inert stand-in for one."""

    attributes: dict[str, Any]
    nodes: dict[str, dict[str, Any]]
    edges: dict[tuple[str, str, str], dict[str, Any]]


def edge_types(levels: int) -> dict[str, tuple[str, str, str]]:
    """Anemoi's edge type for the name of every edge set of a graph with so many levels."""
    here = {GRID_SET: GRID}
    return {name: (here.get(one, one), "to", here.get(two, two)) for name, (one, two) in edge_ends(levels).items()}


def to_hetero(graph: LamGraph, fields: Fields) -> HeteroData:
    """A HeteroData object with everything in ``graph`` and ``fields``."""
    data = HeteroData()
    put_fields(data, fields)
    put_graph(data, graph, fields.mesh_latlons)
    return data


def put_fields(data: HeteroData, fields: Fields) -> None:
    """Put what belongs to the grid nodes into ``data``; the mesh in ``fields`` is left aside."""
    _put_latlons(data, GRID, torch.stack([fields.latitudes, fields.longitudes], dim=1))
    data[GRID].coordinates = fields.coordinates
    data[GRID].static_fields = fields.static
    data[GRID][INTERIOR] = ~fields.boundary.unsqueeze(1)


def put_graph(data: HeteroData, graph: LamGraph, mesh_latlons: Sequence[Tensor]) -> None:
    """Put the mesh and all edges into ``data``; ``mesh_latlons`` holds ``(nodes, 2)`` degrees per level."""
    for level, (coordinates, latlons) in enumerate(zip(graph.mesh_coordinates, mesh_latlons, strict=True)):
        _put_latlons(data, mesh_name(level), latlons)
        data[mesh_name(level)].coordinates = coordinates
    types = edge_types(graph.num_levels)
    for name, edges in graph.edge_sets().items():
        data[types[name]].edge_index = edges.index
        data[types[name]].edge_attr = edges.features
    data.mesh_scaling = graph.mesh_scaling


def _put_latlons(data: HeteroData, name: str, degrees: Tensor) -> None:
    data[name].x = torch.deg2rad(degrees).float()
    data[name].latlons = degrees


def graph_from_hetero(parts: HeteroParts) -> LamGraph:
    """The graph in what `to_hetero` made.

    Raises
    ------
    InvalidInputError
        A node or edge type, or an attribute of one, is missing.
    """
    levels = sum(name.startswith("mesh_") for name in parts.nodes)
    if GRID not in parts.nodes or levels == 0:
        raise InvalidInputError(f"graph: node types {', '.join(parts.nodes)}; need {GRID} and mesh_0, …")
    mesh = tuple(_tensor(parts.nodes, mesh_name(level), "coordinates") for level in range(levels))
    edges = {
        name: (_tensor(parts.edges, key, "edge_index"), _tensor(parts.edges, key, "edge_attr"))
        for name, key in edge_types(levels).items()
    }
    scaling = float(parts.attributes.get("mesh_scaling", 1.0))
    return join_graph(len(_tensor(parts.nodes, GRID, "x")), mesh, edges, scaling)


def fields_from_hetero(parts: HeteroParts) -> Fields:
    """The fields in what `to_hetero` made.

    Raises
    ------
    InvalidInputError
        An attribute is missing.
    """
    levels = sum(name.startswith("mesh_") for name in parts.nodes)
    latlons = _tensor(parts.nodes, GRID, "latlons")
    return Fields(
        latitudes=latlons[:, 0],
        longitudes=latlons[:, 1],
        coordinates=_tensor(parts.nodes, GRID, "coordinates"),
        boundary=~_tensor(parts.nodes, GRID, INTERIOR).squeeze(1),
        static=_tensor(parts.nodes, GRID, "static_fields"),
        mesh_latlons=tuple(_tensor(parts.nodes, mesh_name(level), "latlons") for level in range(levels)),
    )


def hetero_parts(data: Any) -> HeteroParts:
    """Take a HeteroData object, or the stand-in read from an untrusted file, apart.

    Raises
    ------
    InvalidInputError
        If it is neither.
    """
    if isinstance(data, HeteroData):
        stores = {kind: dict(store.items()) for kind, store in zip(data.node_types, data.node_stores, strict=True)}
        edges = {kind: dict(store.items()) for kind, store in zip(data.edge_types, data.edge_stores, strict=True)}
        return HeteroParts(dict(data._global_store.items()), stores, edges)
    if isinstance(data, Stub) and data.stub_name.endswith("HeteroData"):
        state = find_stub_state(data)

        def mapping(store: Any) -> dict[str, Any]:
            return dict(find_stub_state(store).get("_mapping", {}))

        nodes = {key: mapping(store) for key, store in state.get("_node_store_dict", {}).items()}
        edges = {key: mapping(store) for key, store in state.get("_edge_store_dict", {}).items()}
        return HeteroParts(mapping(state.get("_global_store")), nodes, edges)
    raise InvalidInputError(f"graph: a {type(data).__name__}, not a HeteroData")


def _tensor(stores: dict[Any, dict[str, Any]], key: Any, attribute: str) -> Tensor:
    value = stores.get(key, {}).get(attribute)
    if not isinstance(value, Tensor):
        name = " ".join(key) if isinstance(key, tuple) else key
        raise InvalidInputError(f"graph: {name} has no {attribute}; make the graph with neural-lam-anemoi convert")
    return value
