"""Memory and traffic of a graph on R ranks, before anyone rents them: no process group, no GPU, no weights."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .architecture import Architecture
from .errors import InvalidInputError
from .graph import GRID, LamGraph, mesh_name
from .sharding.costs import (
    ADAM_BYTES,
    FLOAT32,
    KNOBS,
    PRECISIONS,
    Counts,
    activation_bytes,
    count_parameters,
    exchanged_bytes,
)
from .sharding.cuts import make_partition, passes_per_step
from .sharding.partition import Partition, plot_partition
from .sharding.parts import edge_work, edges_per_rank, halo_rows, imbalance

USABLE = 0.9
"""Share of a GPU's memory that is planned with: the rest is the runtime's, and lost between blocks."""
MEGABYTE = 1e6
UNITS = {"": 1, "B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
"""Bytes of the units that people give memory in."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A precision and a memory knob, what the fullest rank then needs, and whether that fits."""

    precision: str
    knob: str
    activations_mb: float
    total_mb: float
    fits: bool


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One number of ranks with one kind of partition; counts are those of the rank that has most."""

    ranks: int
    kind: str
    grid_nodes: int
    mesh_nodes: int
    edges: int
    halo_rows: int
    exchanged_mb: float
    read_amplification: float
    imbalance: float
    parameters_mb: float
    optimizer_mb: float
    settings: list[Setting]

    @property
    def cheapest(self) -> Setting | None:
        """The setting that fits with the least recomputed, float32 before bf16; None if none fits."""
        fitting = [setting for setting in self.settings if setting.fits]
        return min(fitting, key=lambda s: (KNOBS.index(s.knob), PRECISIONS.index(s.precision)), default=None)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `plan` found out."""

    model: str
    batch_size: int
    rollout: int
    gpu_memory: int
    rows: list[PlanRow]
    partitions: dict[tuple[int, str], Partition]
    graph: LamGraph
    grid_coordinates: Tensor | None

    @property
    def cheapest(self) -> tuple[PlanRow, Setting] | None:
        """Fewest ranks, least recomputed, least exchanged; None if nothing fits."""
        fitting = [(row, setting) for row in self.rows if (setting := row.cheapest)]
        return min(fitting, key=lambda f: (f[0].ranks, KNOBS.index(f[1].knob), f[0].exchanged_mb), default=None)

    def to_json(self) -> str:
        """Everything but graph and partitions."""
        found = self.cheapest
        cheapest = None if found is None else {"ranks": found[0].ranks, "kind": found[0].kind, **vars(found[1])}
        head = {name: getattr(self, name) for name in ("model", "batch_size", "rollout", "gpu_memory")}
        rows = [dataclasses.asdict(row) for row in self.rows]
        return json.dumps(head | {"cheapest": cheapest, "rows": rows}, indent=1)

    def table(self) -> list[str]:
        """Lines of text for a terminal: counts and the choice, then the memory of every setting."""
        titles = [
            "ranks",
            "kind",
            "grid",
            "mesh",
            "edges",
            "halo",
            "MB/step",
            "read",
            "imbalance",
            "cheapest that fits",
        ]
        lines = [titles]
        for row in self.rows:
            least = min(row.settings, key=lambda setting: setting.total_mb)
            found = row.cheapest
            choice = f"{found.knob}, {found.precision}" if found else f"too small: needs {least.total_mb:.0f} MB"
            cells: list[Any] = [row.ranks, row.kind, row.grid_nodes, row.mesh_nodes, row.edges, row.halo_rows]
            cells += [f"{row.exchanged_mb:.2f}", f"{row.read_amplification:.1f}", f"{row.imbalance:.2f}", choice]
            lines.append([str(cell) for cell in cells])
        settings = self.rows[0].settings
        memory = [["ranks", "kind", "params", "optimizer", *(f"{s.knob}, {s.precision}" for s in settings)]]
        for row in self.rows:
            sizes = [row.parameters_mb, row.optimizer_mb, *(setting.activations_mb for setting in row.settings)]
            memory.append([str(row.ranks), row.kind, *(f"{size:.0f}" for size in sizes)])
        return [
            *_aligned(lines),
            "",
            "MB on the fullest rank; activations for each setting:",
            *_aligned(memory),
            self.advice,
        ]

    @property
    def advice(self) -> str:
        """What to do, in one line."""
        found = self.cheapest
        if found is None:
            return "nothing fits; add ranks, or lower hidden_dim or the rollout"
        row, setting = found
        return f"cheapest that fits: {row.ranks} ranks, {row.kind}, {setting.knob}, {setting.precision}"

    def plot(self, path: Path) -> None:
        """Draw the partition of most ranks on the map and memory against ranks, into an image file.

        Raises
        ------
        InvalidInputError
            If the plan was made without grid coordinates.
        """
        if self.grid_coordinates is None:
            raise InvalidInputError("plan: a map needs grid_coordinates")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        last = self.rows[-1]
        plot_partition(self.partitions[last.ranks, last.kind], self.graph, self.grid_coordinates, left)
        for knob in KNOBS:
            for precision in PRECISIONS:
                rows = [row for row in self.rows if row.kind == last.kind or row.ranks == 1]
                needed = [
                    s.total_mb / 1e3 for row in rows for s in row.settings if (s.knob, s.precision) == (knob, precision)
                ]
                right.plot([row.ranks for row in rows], needed, marker="o", label=f"{knob}, {precision}")
        right.axhline(self.gpu_memory * USABLE / 1e9, color="black", linestyle="--", label="GPU memory, nine tenths")
        right.set(xscale="log", yscale="log", xlabel="ranks", ylabel="GB on the fullest rank")
        right.set_xticks(shown := [row.ranks for row in rows], labels=map(str, shown), minor=False)
        right.minorticks_off()
        right.legend(fontsize=7)
        figure.savefig(path)


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]


def plan(
    graph: LamGraph,
    architecture: Architecture,
    ranks: Sequence[int] = (1, 2, 4, 8, 16),
    batch_size: int = 1,
    rollout: int = 1,
    gpu_memory: int = 80 * 2**30,
    grid_coordinates: Tensor | None = None,
) -> Plan:
    """Work out what training costs on so many ranks.

    Parameters
    ----------
    graph : LamGraph
        As stored.
    architecture : Architecture
        Of the network.
    ranks : sequence of int
        Numbers of ranks that share one sample.
    batch_size, rollout : int
        Samples per group of ranks, and steps that gradients flow through.
    gpu_memory : int
        Bytes of one GPU.
    grid_coordinates : Tensor, optional
        Shape ``(num_grid, 2)``, in the unit of the mesh coordinates; without them only ``contiguous`` is planned.

    Returns
    -------
    Plan
        Rows in the order of ``ranks``, every kind of partition (``metis`` if it is installed). Activations are estimates, see
        `neural_lam_anemoi.sharding.costs.activation_bytes`; the rest is exact.

    Raises
    ------
    InvalidInputError
        No ranks, a number below 1 anywhere, or a model for another kind of mesh.
    """
    for name, value in (("ranks", min(ranks, default=0)), ("batch_size", batch_size), ("rollout", rollout)):
        if value < 1:
            raise InvalidInputError(f"plan: {name} is {value}; at least 1 is needed")
    architecture.check_levels(graph.num_levels)
    if gpu_memory < 1:
        raise InvalidInputError(f"plan: gpu_memory is {gpu_memory} bytes; give what a GPU has, such as 80GiB")
    kinds = ["contiguous"] if grid_coordinates is None else ["contiguous", "rcb"]
    kinds += ["metis"] * (importlib.util.find_spec("pymetis") is not None)
    passes = passes_per_step(graph.num_levels, architecture)
    partitions = {
        (count, kind): make_partition(graph, count, kind, grid_coordinates, passes, replicate=None)
        for count in ranks
        for kind in kinds
        if count > 1 or kind == "contiguous"
    }
    rows = [_row(graph, architecture, p, batch_size, rollout, gpu_memory) for p in partitions.values()]
    return Plan(architecture.model, batch_size, rollout, gpu_memory, rows, partitions, graph, grid_coordinates)


def parse_bytes(text: str) -> int:
    """Bytes in a text such as ``80GiB``.

    Raises
    ------
    InvalidInputError
        If it isn't a number with one of `UNITS`.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\w*)", text.strip())
    if found is None or found[2] not in UNITS:
        raise InvalidInputError(f"{text!r} is no amount of memory; use a number with one of {', '.join(UNITS)[2:]}")
    return int(float(found[1]) * UNITS[found[2]])


def _row(
    graph: LamGraph, architecture: Architecture, partition: Partition, batch_size: int, rollout: int, gpu_memory: int
) -> PlanRow:
    edges = edges_per_rank(graph, partition)
    halo = torch.stack(list(halo_rows(graph, partition).values())).sum(0)
    parameters = count_parameters(architecture, graph) * FLOAT32 / MEGABYTE
    counts = [_counts(graph, partition, edges, rank) for rank in range(partition.ranks)]
    settings = []
    for precision in PRECISIONS:
        for knob in KNOBS:
            options = (graph.num_levels, knob, precision, batch_size, rollout)
            activations = max(activation_bytes(c, architecture, *options) for c in counts) / MEGABYTE
            total = activations + parameters * (2 + ADAM_BYTES / FLOAT32)
            fits = total * MEGABYTE <= gpu_memory * USABLE
            settings.append(Setting(precision, knob, activations, total, fits))
    received = max(exchanged_bytes(graph, partition, architecture)) / MEGABYTE
    return PlanRow(
        ranks=partition.ranks,
        kind=partition.kind,
        grid_nodes=max(c.nodes[GRID] for c in counts),
        mesh_nodes=max(sum(n for name, n in c.nodes.items() if name != GRID) for c in counts),
        edges=max(sum(c.edges.values()) for c in counts),
        halo_rows=int(halo.max()),
        exchanged_mb=2 * received * batch_size * rollout,
        read_amplification=read_amplification(partition),
        imbalance=imbalance(edge_work(graph, partition, passes_per_step(graph.num_levels, architecture))),
        parameters_mb=parameters,
        optimizer_mb=parameters * ADAM_BYTES / FLOAT32,
        settings=settings,
    )


def _counts(graph: LamGraph, partition: Partition, edges: dict[str, Tensor], rank: int) -> Counts:
    nodes = {name: len(partition.rows(name, rank)) for name in graph.node_sets()}
    assert mesh_name(0) in nodes
    return Counts(nodes, {name: int(count[rank]) for name, count in edges.items()})


def read_amplification(partition: Partition) -> float:
    """Grid rows read over grid rows needed, if the file is chunked for the ranks in its own order; 1 is perfect."""
    owners = partition.owners[GRID]
    chunk = -(-len(owners) // partition.ranks)
    read = 0
    for rank in range(partition.ranks):
        touched = torch.unique(partition.rows(GRID, rank) // chunk)
        read += int((torch.clamp((touched + 1) * chunk, max=len(owners)) - touched * chunk).sum())
    return read / len(owners)
