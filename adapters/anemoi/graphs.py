"""Builders for anemoi-graphs: neural-lam's graphs from a dataset, and from a graph directory or Anemoi's own mesh.

Named as ``_target_`` in the configurations under ``config/graph``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from anemoi.graphs.nodes import AnemoiDatasetNodes
from scipy.interpolate import RBFInterpolator
from torch import Tensor
from torch_geometric.data import HeteroData

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.graph import LamGraph, join_graph, mesh_name
from neural_lam_anemoi.graph_io import read_graph_directory
from neural_lam_anemoi.hetero import GRID, edge_types, put_fields, put_graph

from .dataset import read_fields

NEIGHBOURS = 32
"""Grid nodes between which a place is interpolated."""


class DatasetNodes(AnemoiDatasetNodes):
    """Grid nodes of a dataset that ``neural-lam-anemoi dataset`` wrote, with boundary, coordinates and static fields."""

    def register_nodes(self, graph: HeteroData) -> HeteroData:
        """Add the nodes; ``interior_mask`` is True where the state isn't prescribed."""
        graph = super().register_nodes(graph)
        dataset: Any = self.dataset
        path = dataset if isinstance(dataset, str) else dataset["dataset"]
        fields = read_fields(path)
        if len(fields.latitudes) != graph[self.name].num_nodes:
            have = f"{graph[self.name].num_nodes} grid nodes are left of the {len(fields.latitudes)} in {path}"
            raise InvalidInputError(f"graph: {have}; a neural-lam model needs the whole dataset")
        put_fields(graph, fields)
        return graph


class AddGraphDirectory:
    """Adds mesh levels and edges from a neural-lam graph directory.

    Parameters
    ----------
    directory : str or Path
        Made for the datastore of which the dataset was written.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def update_graph(self, graph: HeteroData, graph_config: Any = None) -> HeteroData:
        """Add them to a graph that has `DatasetNodes`.

        Raises
        ------
        InvalidInputError
            The directory is damaged or was made for another grid.
        """
        coordinates = graph[GRID].coordinates
        made = read_graph_directory(self.directory, len(coordinates), _span(coordinates))
        latlons = _unit_sphere(torch.deg2rad(graph[GRID].latlons))
        scale = float(coordinates.abs().max()) if made.mesh_scaling == 1.0 else 1.0  # legacy: stored divided
        places = [_interpolate(coordinates, latlons, level[:, :2] * scale) for level in made.mesh_coordinates]
        put_graph(graph, made, [torch.rad2deg(_latlon(place)) for place in places])
        return graph


class AddFeatures:
    """Turns a graph of Anemoi's builders into one of neural-lam's: coordinates and edge features in the grid's projection.

    The graph has `DatasetNodes` under ``data``, mesh levels ``mesh_0``, … and edges between them.
    """

    def update_graph(self, graph: HeteroData, graph_config: Any = None) -> HeteroData:
        """Add what is missing.

        Raises
        ------
        InvalidInputError
            An edge set is missing.
        """
        names = [name for name in graph.node_types if name.startswith("mesh_")]
        grid = _unit_sphere(graph[GRID].x)
        plane = _tangent_plane(grid)
        places = {GRID: graph[GRID].coordinates}
        for name in names:
            places[name] = _interpolate(grid @ plane, places[GRID], _unit_sphere(graph[name].x) @ plane)
        latlons = [torch.rad2deg(graph[name].x.double()) for name in names]
        put_graph(graph, _with_features(graph, places, len(names)), latlons)
        return graph


def _with_features(graph: HeteroData, places: dict[str, Tensor], levels: int) -> LamGraph:
    edges = {}
    for name, key in edge_types(levels).items():
        if key not in graph.edge_types:
            raise InvalidInputError(f"graph: no edges from {key[0]} to {key[2]}; add an edge builder for them")
        senders, receivers = graph[key].edge_index.long()
        vectors = places[key[0]][senders] - places[key[2]][receivers]
        features = torch.cat([vectors.norm(dim=1, keepdim=True), vectors], dim=1).float()
        edges[name] = (torch.stack([senders, receivers]), features)
    mesh = tuple(places[mesh_name(level)].float() for level in range(levels))
    return join_graph(len(places[GRID]), mesh, edges, _span(places[GRID]))


def _span(coordinates: Tensor) -> float:
    """The larger of the extents in x and y, by which neural-lam divides mesh coordinates."""
    return float((coordinates.max(dim=0).values - coordinates.min(dim=0).values).max())


def _interpolate(known: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """Values at ``wanted (m, 2)`` from those at ``known (n, 2)``, by thin plate splines, linear outside."""
    neighbours = min(NEIGHBOURS, len(known))
    shift, scale = known.mean(dim=0), known.std()
    inside, there = ((places.double() - shift) / scale for places in (known, wanted))
    spline = RBFInterpolator(inside.numpy(), values.double().numpy(), neighbors=neighbours, degree=1)
    return torch.from_numpy(spline(there.numpy()))


def _unit_sphere(latlon: Tensor) -> Tensor:
    lat, lon = latlon.double().unbind(1)
    return torch.stack([lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()], dim=1)


def _tangent_plane(points: Tensor) -> Tensor:
    """Two axes, ``(3, 2)``, of the plane that touches the sphere amid ``points``."""
    centre = points.mean(dim=0, keepdim=True)
    return torch.linalg.svd(centre).Vh[1:].T


def _latlon(place: Tensor) -> Tensor:
    x, y, z = place.unbind(1)
    return torch.stack([torch.atan2(z, torch.hypot(x, y)), torch.atan2(y, x)], dim=1)
