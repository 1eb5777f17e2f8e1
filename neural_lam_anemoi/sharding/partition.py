"""Who owns which node: plain data that is made, checked, saved, loaded and drawn without a process group."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..graph import GRID, LamGraph, mesh_name

FORMAT = "neural-lam-anemoi partition 1"


@dataclasses.dataclass(frozen=True)
class Partition:
    """A rank for every node.

    Parameters
    ----------
    kind : str
        How it was made, for people to read.
    ranks : int
        Number of ranks; one may own nothing.
    owners : dict of Tensor
        Per node set ``(nodes,)`` int64, the owning rank of each node.
    replicated : tuple of str
        Node sets that every rank holds whole, whoever owns them: tiny mesh levels. Never the grid.
    """

    kind: str
    ranks: int
    owners: dict[str, Tensor]
    replicated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise InvalidInputError(f"partition: {self.ranks} ranks; at least 1 is needed")
        if GRID not in self.owners:
            raise InvalidInputError(f"partition: node set {GRID!r} is missing")
        for name, owner in self.owners.items():
            if owner.ndim != 1 or owner.dtype != torch.int64:
                shape = tuple(owner.shape)
                raise InvalidInputError(f"partition: owners of {name} are {shape} {owner.dtype}; use (nodes,) int64")
            if owner.numel() and not 0 <= int(owner.min()) <= int(owner.max()) < self.ranks:
                bad = int(owner.min()) if int(owner.min()) < 0 else int(owner.max())
                raise InvalidInputError(f"partition: {name} has a node owned by rank {bad} of {self.ranks}")
        for name in self.replicated:
            if name == GRID or name not in self.owners:
                raise InvalidInputError(f"partition: {name!r} can't be replicated; only its own mesh levels can")

    def rows(self, name: str, rank: int) -> Tensor:
        """Nodes of the set ``name`` that ``rank`` holds, ascending: ``(local nodes,)`` int64."""
        if name in self.replicated:
            return torch.arange(len(self.owners[name]))
        return torch.nonzero(self.owners[name] == rank).flatten()

    def sizes(self, name: str) -> list[int]:
        """How many nodes of the set ``name`` each rank owns: Anemoi's shard sizes."""
        return torch.bincount(self.owners[name], minlength=self.ranks).tolist()

    def check(self, nodes: dict[str, int]) -> None:
        """Raise `InvalidInputError`, naming the node set, unless this partition has exactly the node sets ``nodes``."""
        for name in nodes.keys() | self.owners.keys():
            have = len(self.owners[name]) if name in self.owners else 0
            if have != nodes.get(name, 0):
                raise InvalidInputError(f"partition: it has {have} nodes of {name}, the graph {nodes.get(name, 0)}")

    def save(self, path: Path) -> None:
        """Write one safetensors file; `load` reads it."""
        header = {"format": FORMAT, "kind": self.kind, "ranks": str(self.ranks)}
        owners = {name: owner.to(torch.int32).contiguous() for name, owner in self.owners.items()}
        safetensors.torch.save_file(owners, path, header | {"replicated": json.dumps(self.replicated)})

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Inverse of `save`.

        Raises
        ------
        InvalidInputError
            If the file is missing, damaged or something else.
        """
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                owners = {name: file.get_tensor(name).to(torch.int64) for name in file.keys()}  # noqa: SIM118
        except (OSError, safetensors.SafetensorError):
            raise InvalidInputError(f"{path}: not a readable partition file; save one with Partition.save") from None
        if header.get("format") != FORMAT:
            raise InvalidInputError(f"{path}: format is {header.get('format')!r}; {FORMAT!r} is understood")
        try:
            return cls(header["kind"], int(header["ranks"]), owners, tuple(json.loads(header["replicated"])))
        except (KeyError, ValueError) as error:
            raise InvalidInputError(f"{path}: damaged partition file: {error}") from None


def plot_partition(partition: Partition, graph: LamGraph, grid_coordinates: Tensor, axes: Any = None) -> Any:
    """Draw every grid node in the colour of its owner, mesh nodes as rings on top.

    Parameters
    ----------
    partition : Partition
        Of ``graph``.
    graph : LamGraph
        Its mesh coordinates are drawn.
    grid_coordinates : Tensor
        Shape ``(num_grid, 2)``, in the unit of the mesh coordinates.
    axes : matplotlib Axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib Axes
    """
    from matplotlib import colormaps
    from matplotlib import pyplot as plt

    partition.check(graph.node_sets())
    axes = axes if axes is not None else plt.subplots(figsize=(6, 6))[1]
    colours = colormaps["tab20"]
    x, y = grid_coordinates.T.tolist()
    axes.scatter(x, y, c=colours(partition.owners[GRID].numpy() % 20), s=2, marker="s", linewidths=0)
    for level, coordinates in enumerate(graph.mesh_coordinates):
        edge = colours(partition.owners[mesh_name(level)].numpy() % 20)
        x, y = coordinates[:, :2].T.tolist()
        axes.scatter(x, y, s=6 * 3**level, facecolors="none", edgecolors=edge, linewidths=0.6)
    axes.set_aspect("equal")
    axes.set_title(f"{partition.kind}, {partition.ranks} ranks")
    return axes
