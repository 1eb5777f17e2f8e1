"""Kinds of partition against each other, without a process group: ``python -m benchmarks.partitions``.

Recursive bisection and contiguous ranges against strips in x and in y, the Hilbert curve and, where pymetis is
installed, METIS: what ranks receive in a forward step and how evenly edge work is spread. Writes ``partitions.json``
and ``partitions.md`` into ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.sharding.costs import exchanged_bytes
from neural_lam_anemoi.sharding.cuts import joined_edges, make_partition, node_work, passes_per_step
from neural_lam_anemoi.sharding.partition import Partition
from neural_lam_anemoi.sharding.parts import edge_work, imbalance
from tests.distributed.graphs import read_graph, write_graph
from tests.test_partition import along_a_key, irregular_coordinates

from .graphs import CACHE, NUM_X, NUM_Y, reference_graph
from .machine import describe_machine
from .report import RESULTS, write_report
from .sharding import NUM_FORCING, NUM_STATE, NUM_STATIC

GRAPHS = {"multiscale": "graph_lam", "irregular": "graph_lam", "hierarchical": "hi_lam"}
"""What is cut, and the network that says how often each edge set is used."""
ORDERINGS = {"strips in x": "x", "strips in y": "y", "Hilbert": "hilbert"}
IRREGULAR_SCALE, MESH_DISTANCE = 4, 3.3
"""The tests' irregular points, drawn out to the reference's extent; mesh nodes as far apart as the reference's."""


@dataclasses.dataclass
class Row:
    """A line of the table: received in a forward step of batch 1 in float32."""

    graph: str
    ranks: int
    kind: str
    received_mb: float
    largest_mb: float
    imbalance: float
    to_best: float = 1.0


def main() -> None:
    """Measure everything, print the table, write the files."""
    options = _arguments()
    rows = [row for name in options.graphs for row in _measure(name, options)]
    report = {
        "machine": describe_machine(),
        "settings": {name: value for name, value in vars(options).items() if name != "output"},
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    text = _markdown(rows, options)
    write_report(options.output, "partitions", report, text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--hidden_dim", type=int, default=64)
    parser.add_argument("--processor_layers", type=int, default=4)
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def irregular_graph(cache: Path = CACHE) -> tuple[LamGraph, Tensor]:
    """As many grid nodes as the reference, denser towards one corner, and their coordinates ``(num_grid, 2)``."""
    directory = cache / f"irregular_{NUM_X}x{NUM_Y}"
    places = irregular_coordinates(NUM_X * NUM_Y) * IRREGULAR_SCALE
    if not directory.exists():
        write_graph(directory, "multiscale", places, MESH_DISTANCE)
    return read_graph(directory, places), torch.tensor(places)


def _measure(name: str, options: argparse.Namespace) -> list[Row]:
    graph, places = irregular_graph() if name == "irregular" else reference_graph(name)
    widths = {"hidden_dim": options.hidden_dim, "processor_layers": options.processor_layers}
    architecture = Architecture(GRAPHS[name], NUM_STATE, NUM_FORCING, NUM_STATIC, **widths)
    passes = passes_per_step(graph.num_levels, architecture)
    rows = []
    for ranks in options.ranks:
        found = []
        for kind, partition in _partitions(graph, places, ranks, passes):
            received = [size / 1e6 for size in exchanged_bytes(graph, partition, architecture)]
            uneven = imbalance(edge_work(graph, partition, passes))
            found.append(Row(name, ranks, kind, mean(received), max(received), uneven))
        best = min(row.received_mb for row in found)
        rows += [dataclasses.replace(row, to_best=row.received_mb / best) for row in found]
    return rows


def _partitions(graph: LamGraph, places: Tensor, ranks: int, passes: dict[str, int]) -> Iterator[tuple[str, Partition]]:
    """Every kind, nothing replicated."""
    for kind in ("contiguous", "rcb"):
        yield kind, make_partition(graph, ranks, kind, places, passes)
    if importlib.util.find_spec("pymetis") is not None:
        yield "METIS, volume", make_partition(graph, ranks, "metis", places, passes)
        yield "METIS, edge cut weighted by uses", _least_weighted_cut(graph, ranks, passes)
    for name, key in ORDERINGS.items():
        yield name, along_a_key(graph, places, ranks, key)


def _least_weighted_cut(graph: LamGraph, ranks: int, passes: dict[str, int]) -> Partition:
    """METIS's other objective, which knows how often each edge is used."""
    import pymetis

    sizes = graph.node_sets()
    joined = [(torch.cat([index, index.flip(0)], dim=1), used) for index, used in joined_edges(graph, passes)]
    total = sum(sizes.values())
    keys = torch.cat([both[0] * total + both[1] for both, _ in joined])
    uses = torch.cat([torch.full((both.shape[1],), used) for both, used in joined])
    uses, keys = uses[keys // total != keys % total], keys[keys // total != keys % total]
    pairs, where = torch.unique(keys, return_inverse=True)
    weights = torch.zeros(len(pairs), dtype=torch.int64).index_add_(0, where, uses)
    starts = torch.searchsorted(pairs, torch.arange(total + 1) * total)
    work = torch.cat(list(node_work(graph, passes).values())).round().long()
    adjacency = pymetis.CSRAdjacency(starts.tolist(), (pairs % total).tolist())
    _, owner = pymetis.part_graph(ranks, adjacency, vweights=work.tolist(), eweights=weights.tolist())
    owners = torch.tensor(owner, dtype=torch.int64).split(list(sizes.values()))
    return Partition("metis, edge cut", ranks, dict(zip(sizes, owners, strict=True)))


def _markdown(rows: list[Row], options: argparse.Namespace) -> str:
    lines = [
        "# Partitions",
        "",
        f"{describe_machine()['cpu']}. Counted from edge lists, nothing replicated: hidden {options.hidden_dim}, "
        f"{options.processor_layers} processor layers, float32, batch 1, one forward step; the backward pass receives "
        f"as much. multiscale, hierarchical: {NUM_X} x {NUM_Y} grid by neural_lam.create_graph; irregular: as many "
        "points, denser to one corner. 'to the best' compares the mean with the least of the same graph and ranks. "
        "Strips and Hilbert cut every node set by itself into equal work.",
        "",
        "| graph | ranks | kind | MB received per rank | of the busiest rank | to the best | edge work imbalance |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        numbers = f"{row.received_mb:.3f} | {row.largest_mb:.3f} | {row.to_best:.2f} | {row.imbalance:.3f}"
        lines.append(f"| {row.graph} | {row.ranks} | {row.kind} | {numbers} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
