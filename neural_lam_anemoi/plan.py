"""Memory and traffic of a graph on R ranks, before anyone rents them: no process group, no GPU, no weights."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from .architecture import Architecture
from .errors import InvalidInputError
from .graph import GRID, LamGraph
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
from .sharding.partition import Partition
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
class Load:
    """What one rank holds, fetches and receives.

    Attributes
    ----------
    grid_nodes, mesh_nodes, edges : int
        Held.
    halo_rows : int
        Senders of others, fetched for one use of every edge set.
    exchanged_mb : float
        Received in a train step of the whole batch and rollout, forward and backward, in float32, nothing recomputed.
    """

    grid_nodes: int
    mesh_nodes: int
    edges: int
    halo_rows: int
    exchanged_mb: float


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One number of ranks with one kind of partition; the counts of `Load` are those of the rank that has most."""

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
    loads: list[Load]

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


def plan(
    graph: LamGraph,
    architecture: Architecture,
    ranks: Sequence[int] = (1, 2, 4, 8, 16),
    batch_size: int = 1,
    rollout: int = 1,
    gpu_memory: int = 80 * 2**30,
    grid_coordinates: Tensor | None = None,
    kinds: Sequence[str] | None = None,
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
        Shape ``(num_grid, 2)``, in the unit of the mesh coordinates; ``rcb`` needs them.
    kinds : sequence of str, optional
        Kinds of partition; if not given, all that can be made: ``metis`` if it is installed.

    Returns
    -------
    Plan
        Rows in the order of ``ranks``, one for every kind of partition. Activations are
        estimates, see `neural_lam_anemoi.sharding.costs.activation_bytes`; the rest is exact.

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
    kinds = _possible_kinds(grid_coordinates) if kinds is None else kinds
    passes = passes_per_step(graph.num_levels, architecture)
    partitions = {
        (count, kind): make_partition(graph, count, kind, grid_coordinates, passes, replicate=None)
        for count in ranks
        for kind in kinds
        if count > 1 or kind == kinds[0]
    }
    rows = [_row(graph, architecture, p, batch_size, rollout, gpu_memory) for p in partitions.values()]
    return Plan(architecture.model, batch_size, rollout, gpu_memory, rows, partitions, graph, grid_coordinates)


def _possible_kinds(grid_coordinates: Tensor | None) -> list[str]:
    kinds = ["contiguous"] if grid_coordinates is None else ["contiguous", "rcb"]
    return kinds + ["metis"] * (importlib.util.find_spec("pymetis") is not None)


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
    counts = [_counts(graph, partition, edges, rank) for rank in range(partition.ranks)]
    parameters = count_parameters(architecture, graph) * FLOAT32 / MEGABYTE
    loads = _loads(graph, architecture, partition, counts, batch_size * rollout)
    most = {field.name: max(getattr(load, field.name) for load in loads) for field in dataclasses.fields(Load)}
    return PlanRow(
        ranks=partition.ranks,
        kind=partition.kind,
        **most,
        read_amplification=read_amplification(partition),
        imbalance=imbalance(edge_work(graph, partition, passes_per_step(graph.num_levels, architecture))),
        parameters_mb=parameters,
        optimizer_mb=parameters * ADAM_BYTES / FLOAT32,
        settings=_settings(architecture, counts, parameters, (graph.num_levels, batch_size, rollout), gpu_memory),
        loads=loads,
    )


def _counts(graph: LamGraph, partition: Partition, edges: dict[str, Tensor], rank: int) -> Counts:
    nodes = {name: len(partition.rows(name, rank)) for name in graph.node_sets()}
    return Counts(nodes, {name: int(count[rank]) for name, count in edges.items()})


def _loads(
    graph: LamGraph, architecture: Architecture, partition: Partition, counts: list[Counts], forwards: int
) -> list[Load]:
    """Of every rank, for so many forward passes of one sample in a train step."""
    halo = torch.stack(list(halo_rows(graph, partition).values())).sum(0).tolist()
    received = exchanged_bytes(graph, partition, architecture)
    return [
        Load(
            grid_nodes=count.nodes[GRID],
            mesh_nodes=sum(count.nodes.values()) - count.nodes[GRID],
            edges=sum(count.edges.values()),
            halo_rows=halo[rank],
            exchanged_mb=2 * received[rank] * forwards / MEGABYTE,
        )
        for rank, count in enumerate(counts)
    ]


def _settings(
    architecture: Architecture, counts: list[Counts], parameters: float, sizes: tuple[int, int, int], gpu_memory: int
) -> list[Setting]:
    """Every precision with every knob, for parameters of so many MB; ``sizes`` are levels, batch size and rollout."""
    settings = []
    levels, batch_size, rollout = sizes
    for precision in PRECISIONS:
        for knob in KNOBS:
            options = (levels, knob, precision, batch_size, rollout)
            activations = max(activation_bytes(count, architecture, *options) for count in counts) / MEGABYTE
            total = activations + parameters * (2 + ADAM_BYTES / FLOAT32)
            settings.append(Setting(precision, knob, activations, total, total * MEGABYTE <= gpu_memory * USABLE))
    return settings


def read_amplification(partition: Partition) -> float:
    """Grid rows read over grid rows needed, if the file is chunked for the ranks in its own order; 1 is perfect."""
    owners = partition.owners[GRID]
    chunk = -(-len(owners) // partition.ranks)
    read = 0
    for rank in range(partition.ranks):
        touched = torch.unique(partition.rows(GRID, rank) // chunk)
        read += int((torch.clamp((touched + 1) * chunk, max=len(owners)) - touched * chunk).sum())
    return read / len(owners)
