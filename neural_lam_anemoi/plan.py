"""Memory and traffic of a graph on R ranks, before anyone rents them: no process group, no GPU, no weights."""

from __future__ import annotations

import dataclasses
import json
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
        """Lines of text for a terminal."""
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
            "params",
            "optim",
            "activations",
            "cheapest",
        ]
        lines = [titles]
        for row in self.rows:
            least = min(row.settings, key=lambda setting: setting.total_mb)
            shown = row.cheapest or least
            choice = f"{shown.knob}, {shown.precision}" if row.cheapest else f"too small: needs {least.total_mb:.0f} MB"
            cells: list[Any] = [row.ranks, row.kind, row.grid_nodes, row.mesh_nodes, row.edges, row.halo_rows]
            cells += [f"{row.exchanged_mb:.2f}", f"{row.read_amplification:.1f}", f"{row.imbalance:.2f}"]
            cells += [f"{x:.0f}" for x in (row.parameters_mb, row.optimizer_mb, shown.activations_mb)]
            lines.append([str(cell) for cell in [*cells, choice]])
        widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
        text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        found = self.cheapest
        if found is None:
            return [*text, "nothing fits; add ranks, or lower hidden_dim or the rollout"]
        row, setting = found
        return [*text, f"cheapest that fits: {row.ranks} ranks, {row.kind}, {setting.knob}, {setting.precision}"]

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
                rows = [row for row in self.rows if row.kind == last.kind]
                needed = [
                    s.total_mb / 1e3 for row in rows for s in row.settings if (s.knob, s.precision) == (knob, precision)
                ]
                right.plot([row.ranks for row in rows], needed, marker="o", label=f"{knob}, {precision}")
        right.axhline(self.gpu_memory * USABLE / 1e9, color="black", linestyle="--", label="GPU memory, nine tenths")
        right.set(xscale="log", yscale="log", xlabel="ranks", ylabel="GB on the fullest rank")
        right.legend(fontsize=7)
        figure.savefig(path)


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
        Rows in the order of ``ranks``, every kind of partition. Activations are estimates, see
        `neural_lam_anemoi.sharding.costs.activation_bytes`; the rest is exact.

    Raises
    ------
    InvalidInputError
        No ranks, or a number below 1 anywhere.
    """
    for name, value in (("ranks", min(ranks, default=0)), ("batch_size", batch_size), ("rollout", rollout)):
        if value < 1:
            raise InvalidInputError(f"plan: {name} is {value}; at least 1 is needed")
    if gpu_memory < 1:
        raise InvalidInputError(f"plan: gpu_memory is {gpu_memory} bytes; give what a GPU has, such as 80GiB")
    kinds = ("contiguous",) if grid_coordinates is None else ("contiguous", "rcb")
    passes = passes_per_step(graph.num_levels, architecture)
    partitions = {
        (count, kind): make_partition(graph, count, kind, grid_coordinates, passes, replicate=None)
        for count in ranks
        for kind in kinds
        if count > 1 or kind == "contiguous"
    }
    rows = [_row(graph, architecture, p, batch_size, rollout, gpu_memory) for p in partitions.values()]
    return Plan(architecture.model, batch_size, rollout, gpu_memory, rows, partitions, graph, grid_coordinates)


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
