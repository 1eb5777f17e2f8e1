"""The graph a network runs on: node sets, edge sets and their features, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from .errors import InvalidInputError

GRID = "grid"


def mesh_name(level: int) -> str:
    """Name of the node set of a mesh level, 0 being the finest."""
    return f"mesh_{level}"


def edge_ends(levels: int) -> dict[str, tuple[str, str]]:
    """Node sets of senders and receivers of every edge set of a graph with so many mesh levels."""
    ends = {"g2m": (GRID, mesh_name(0)), "m2g": (mesh_name(0), GRID)}
    ends |= {f"m2m_{level}": (mesh_name(level), mesh_name(level)) for level in range(levels)}
    ends |= {f"mesh_up_{level}": (mesh_name(level), mesh_name(level + 1)) for level in range(levels - 1)}
    return ends | {f"mesh_down_{level}": (mesh_name(level + 1), mesh_name(level)) for level in range(levels - 1)}


@dataclasses.dataclass(frozen=True)
class EdgeSet:
    """Directed edges from one node set to another.

    Parameters
    ----------
    index : Tensor
        Shape ``(2, E)``, int64: row 0 counts senders from 0, row 1 receivers from 0.
    features : Tensor
        Shape ``(E, F)``: length and vector difference, in the unit of the coordinates.
    num_senders, num_receivers : int
        Sizes of the two node sets; nodes without edges count.
    """

    index: Tensor
    features: Tensor
    num_senders: int
    num_receivers: int

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.index.shape[1]

    def check(self, name: str) -> None:
        """Raise `InvalidInputError`, naming the edge set, unless shapes and indices fit."""
        if self.index.ndim != 2 or self.index.shape[0] != 2 or self.index.dtype != torch.int64:
            shape, dtype = tuple(self.index.shape), self.index.dtype
            raise InvalidInputError(f"graph: {name} edge index is {shape} {dtype}; it must be (2, edges) int64")
        if self.features.ndim != 2 or self.features.shape[0] != self.num_edges:
            shape = tuple(self.features.shape)
            raise InvalidInputError(f"graph: {name} has {self.num_edges} edges but features of shape {shape}")
        for row, count, role in ((0, self.num_senders, "sender"), (1, self.num_receivers, "receiver")):
            if self.num_edges == 0:
                continue
            low, high = int(self.index[row].min()), int(self.index[row].max())
            if low < 0 or high >= count:
                bad = low if low < 0 else high
                raise InvalidInputError(f"graph: {name} names {role} {bad}, but there are only {count}")


@dataclasses.dataclass(frozen=True)
class LamGraph:
    """Grid, mesh levels and the edges between them, with features as they are stored on disk.

    Networks read `normalised`; keeping the stored numbers here makes every conversion of a graph exact.

    Parameters
    ----------
    num_grid : int
        Number of grid nodes.
    mesh_coordinates : tuple of Tensor
        One ``(nodes, 2)`` tensor of x and y per mesh level, finest first.
    g2m, m2g : EdgeSet
        Grid to finest mesh level and back.
    m2m : tuple of EdgeSet
        Edges inside each level.
    mesh_up, mesh_down : tuple of EdgeSet
        Edges from level l to l+1 and from l+1 to l; empty for a flat mesh.
    mesh_scaling : float
        What mesh coordinates are divided by before use: neural-lam's larger x-y span of the grid; 1 for a legacy graph,
        whose coordinates are stored divided.
    """

    num_grid: int
    mesh_coordinates: tuple[Tensor, ...]
    g2m: EdgeSet
    m2g: EdgeSet
    m2m: tuple[EdgeSet, ...]
    mesh_up: tuple[EdgeSet, ...] = ()
    mesh_down: tuple[EdgeSet, ...] = ()
    mesh_scaling: float = 1.0

    def __post_init__(self) -> None:
        levels = self.num_levels
        for name, sets, expected in (
            ("m2m", self.m2m, levels),
            ("mesh_up", self.mesh_up, levels - 1),
            ("mesh_down", self.mesh_down, levels - 1),
        ):
            if len(sets) != expected:
                raise InvalidInputError(
                    f"graph: {levels} mesh levels need {expected} {name} edge sets, not {len(sets)}"
                )
        sizes, edge_sets = self.node_sets(), self.edge_sets()
        for name, ends in edge_ends(levels).items():
            edges, (senders, receivers) = edge_sets[name], (sizes[end] for end in ends)
            if (edges.num_senders, edges.num_receivers) != (senders, receivers):
                have = f"{edges.num_senders} to {edges.num_receivers}"
                raise InvalidInputError(
                    f"graph: {name} joins {have} nodes, its node sets have {senders} and {receivers}"
                )
            edges.check(name)

    @property
    def num_levels(self) -> int:
        """Number of mesh levels."""
        return len(self.mesh_coordinates)

    @property
    def hierarchical(self) -> bool:
        """Whether the mesh has more than one level."""
        return self.num_levels > 1

    @property
    def num_mesh(self) -> tuple[int, ...]:
        """Mesh nodes per level, finest first."""
        return tuple(len(level) for level in self.mesh_coordinates)

    def node_sets(self) -> dict[str, int]:
        """Sizes of the node sets by name: ``grid``, ``mesh_0``, ``mesh_1``, …."""
        return {GRID: self.num_grid} | {mesh_name(level): nodes for level, nodes in enumerate(self.num_mesh)}

    def edge_sets(self) -> dict[str, EdgeSet]:
        """All edge sets by name: ``g2m``, ``m2g``, ``m2m_0``, …, ``mesh_up_0``, …, ``mesh_down_0``, …."""
        ordered = (self.g2m, self.m2g, *self.m2m, *self.mesh_up, *self.mesh_down)
        return dict(zip(edge_ends(self.num_levels), ordered, strict=True))

    def reordered(self, order: Tensor) -> LamGraph:
        """The graph with grid node ``order[i]`` in place i; ``order`` is ``(num_grid,)`` int64."""
        place = torch.argsort(order)
        to_mesh, to_grid = self.g2m.index, self.m2g.index
        return dataclasses.replace(
            self,
            g2m=dataclasses.replace(self.g2m, index=torch.stack([place[to_mesh[0]], to_mesh[1]])),
            m2g=dataclasses.replace(self.m2g, index=torch.stack([to_grid[0], place[to_grid[1]]])),
        )

    def normalised(self) -> LamGraph:
        """The graph with features as the networks read them.

        Edge features are divided by the longest mesh edge, mesh coordinates by `mesh_scaling`; the float32 operations
        are those of ``neural_lam.utils.load_graph`` (0.7.0), one by one, so that the numbers agree to the last bit.
        """
        longest = max(torch.max(edges.features[:, 0]) for edges in self.m2m)
        reciprocal = 1.0 / longest

        def multiplied(sets: tuple[EdgeSet, ...]) -> tuple[EdgeSet, ...]:
            return tuple(dataclasses.replace(edges, features=edges.features * reciprocal) for edges in sets)

        coordinates = tuple(level.clone() for level in self.mesh_coordinates)
        if self.mesh_scaling != 1.0:
            for level in coordinates:
                level[:, :2] /= self.mesh_scaling
        return dataclasses.replace(
            self,
            mesh_coordinates=coordinates,
            g2m=dataclasses.replace(self.g2m, features=self.g2m.features / longest),
            m2g=dataclasses.replace(self.m2g, features=self.m2g.features / longest),
            m2m=multiplied(self.m2m),
            mesh_up=multiplied(self.mesh_up),
            mesh_down=multiplied(self.mesh_down),
            mesh_scaling=1.0,
        )


def join_graph(
    num_grid: int,
    mesh_coordinates: tuple[Tensor, ...],
    edges: Mapping[str, tuple[Tensor, Tensor]],
    mesh_scaling: float = 1.0,
) -> LamGraph:
    """A graph from the index and the features of each edge set, under the names of `edge_ends`.

    Parameters
    ----------
    num_grid : int
    mesh_coordinates : tuple of Tensor
        One ``(nodes, 2)`` tensor per level: its length is the number of nodes.
    edges : mapping of str to (Tensor, Tensor)
        ``(2, E)`` and ``(E, F)``.
    mesh_scaling : float

    Raises
    ------
    InvalidInputError
        An index is out of range, or shapes don't fit.
    """
    levels = len(mesh_coordinates)
    sizes = {GRID: num_grid} | {mesh_name(level): len(nodes) for level, nodes in enumerate(mesh_coordinates)}
    sets = {name: EdgeSet(*edges[name], sizes[ends[0]], sizes[ends[1]]) for name, ends in edge_ends(levels).items()}
    return LamGraph(
        num_grid=num_grid,
        mesh_coordinates=mesh_coordinates,
        g2m=sets["g2m"],
        m2g=sets["m2g"],
        m2m=tuple(sets[f"m2m_{level}"] for level in range(levels)),
        mesh_up=tuple(sets[f"mesh_up_{level}"] for level in range(levels - 1)),
        mesh_down=tuple(sets[f"mesh_down_{level}"] for level in range(levels - 1)),
        mesh_scaling=mesh_scaling,
    )
