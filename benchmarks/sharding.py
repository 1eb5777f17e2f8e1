"""Graph sharding against Anemoi's stock GNN layers and against an all-gather: ``python -m benchmarks.sharding``.

Counts what every rank receives and how often it exchanges, the peak of live tensors and the imbalance on many ranks, and
the time of a train step on few; writes ``sharding.json`` and ``sharding.md`` into ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.networks import NETWORKS, StateStatistics
from neural_lam_anemoi.sharding.cuts import make_partition, passes_per_step
from neural_lam_anemoi.sharding.parts import edge_work, imbalance
from tests.distributed.ranks import Ranks

from .graphs import CACHE, NUM_X, NUM_Y, reference_graph
from .machine import describe_machine
from .measured import Measurement, measure_network, measure_stock
from .report import RESULTS, write_report

NUM_STATE, NUM_FORCING, NUM_STATIC = 17, 15, 4
MODELS = {"graph_lam": "multiscale", "hi_lam": "hierarchical", "hi_lam_parallel": "hierarchical"}
ONE_BY_ONE: dict[str, Any] = {"overlap": False, "replicate": ()}
VARIANTS: dict[str, dict[str, Any]] = {
    "contiguous": {"partition": "contiguous"},
    "rcb": {"partition": "rcb"},
    "rcb, nothing replicated": {"partition": "rcb", "replicate": ()},
    "rcb, Anemoi's halo_exchange, nothing replicated": {"partition": "rcb"} | ONE_BY_ONE,
}


@dataclasses.dataclass
class Row:
    """A line of the table."""

    model: str
    ranks: int
    how: str
    received_mb: float | None = None
    largest_mb: float | None = None
    backward_mb: float | None = None
    exchanges: int | None = None
    peak_mb: float | None = None
    imbalance: float | None = None
    seconds: float | None = None
    less: float | None = None


def main() -> None:
    """Measure everything, print the table, write the files."""
    options = _arguments()
    _use_current_pyg()
    rows: list[Row] = []
    for model in options.models:
        rows += _measure_model(model, options)
    report = {
        "machine": describe_machine(),
        "settings": {name: value for name, value in vars(options).items() if name != "output"},
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    text = _markdown(report, rows)
    write_report(options.output, "sharding", report, text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=int, nargs=2, default=[NUM_X, NUM_Y], metavar=("X", "Y"))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--hidden_dim", type=int, default=64)
    parser.add_argument("--processor_layers", type=int, default=4)
    parser.add_argument("--counted", type=int, default=8, help="ranks on which bytes are counted")
    parser.add_argument("--timed", type=int, nargs="*", default=[1, 2, 4], help="ranks on which steps are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def _use_current_pyg() -> None:
    """Anemoi's stock layers need it; it comes first on the path here and in the ranks."""
    target = CACHE / "pyg"
    if not (target / "torch_geometric").exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        subprocess.run([*install, "torch-geometric>=2.6"], check=True)
    sys.path.insert(0, str(target))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])


def _measure_model(model: str, options: argparse.Namespace) -> list[Row]:
    graph, places = reference_graph(MODELS[model], *options.grid)
    architecture = Architecture(
        model,
        NUM_STATE,
        NUM_FORCING,
        NUM_STATIC,
        hidden_dim=options.hidden_dim,
        processor_layers=options.processor_layers,
    )
    ones = torch.ones(NUM_STATE)
    statistics = StateStatistics([f"v{i}" for i in range(NUM_STATE)], 0 * ones, ones, 0 * ones, ones)
    torch.manual_seed(0)
    network = pickle.dumps(NETWORKS[model](architecture, graph, statistics))
    torch.set_num_threads(1)
    alone = measure_network(None, 1, network, {}, options.repeats if 1 in options.timed else 0)
    rows = [Row(model, 1, "whole", peak_mb=alone.peak_bytes / 1e6, seconds=_median([alone]))]
    for ranks in sorted({*options.timed, options.counted} - {1}):
        rows += _measure_ranks(model, ranks, graph, places, network, architecture, options)
    return rows


def _measure_ranks(
    model: str,
    ranks: int,
    graph: LamGraph,
    places: torch.Tensor,
    network: bytes,
    architecture: Architecture,
    options: argparse.Namespace,
) -> list[Row]:
    repeats = options.repeats if ranks in options.timed else 0
    rows = []
    with Ranks(ranks, timeout=600) as processes:
        if model == "graph_lam":
            found = processes.run(measure_stock, ranks, architecture, graph.normalised(), repeats, ranks=ranks)
            rows.append(_row(model, ranks, "Anemoi's stock layers", found))
        else:
            rows.append(
                Row(
                    model,
                    ranks,
                    "all-gather of the senders (computed)",
                    all_gather_megabytes(graph, ranks, architecture),
                )
            )
        for how, variant in VARIANTS.items():
            if not graph.hierarchical and "replicated" in how and "Anemoi" not in how:
                continue
            arguments = variant | {"grid_coordinates": places}
            found = processes.run(measure_network, ranks, network, arguments, repeats, ranks=ranks)
            row = _row(model, ranks, how, found)
            passes = passes_per_step(graph.num_levels, architecture)
            partition = make_partition(graph, ranks, variant["partition"], places, passes, variant.get("replicate"))
            row.imbalance = imbalance(edge_work(graph, partition, passes))
            rows.append(row)
    for row in rows:
        row.less = (rows[0].received_mb or 0) / row.received_mb if row.received_mb else None
    return rows


def _row(model: str, ranks: int, how: str, found: list[Measurement]) -> Row:
    return Row(
        model,
        ranks,
        how,
        received_mb=mean(m.forward_bytes for m in found) / 1e6,
        largest_mb=max(m.forward_bytes for m in found) / 1e6,
        backward_mb=mean(m.backward_bytes for m in found) / 1e6,
        exchanges=found[0].forward_calls,
        peak_mb=max(m.peak_bytes for m in found) / 1e6,
        seconds=_median(found),
    )


def _median(found: list[Measurement]) -> float | None:
    return median(found[0].seconds) if found[0].seconds else None


def all_gather_megabytes(graph: LamGraph, ranks: int, architecture: Architecture) -> float:
    """MB that each rank would receive if all senders of every edge set were gathered before every use."""
    passes = passes_per_step(graph.num_levels, architecture)
    rows = sum(passes[name] * edges.num_senders for name, edges in graph.edge_sets().items())
    return rows * (ranks - 1) / ranks * architecture.hidden_dim * 4 / 1e6


def _markdown(report: dict[str, Any], rows: list[Row]) -> str:
    machine, settings = report["machine"], report["settings"]
    columns = {
        "model": "model",
        "ranks": "ranks",
        "how": "how",
        "received_mb": "MB received per rank, forward",
        "largest_mb": "of the busiest rank",
        "backward_mb": "backward",
        "less": "times less",
        "exchanges": "collectives, forward",
        "peak_mb": "peak of live tensors, MB",
        "imbalance": "edge work imbalance",
        "seconds": "s per train step",
    }
    lines = [
        "# Sharding",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']}, torch {machine['torch']}; gloo, one thread "
        f"per rank, float32, batch 1, grid {settings['grid'][0]} x {settings['grid'][1]}, hidden {settings['hidden_dim']}, "
        f"{settings['processor_layers']} processor layers. Bytes and collectives are counted at torch.distributed, all "
        "included; 'times less' compares received bytes with the first line of the same model and ranks. More ranks than "
        "cores share them: times of those say nothing about speed-up.",
        "",
        "| " + " | ".join(columns.values()) + " |",
        "|" + " --- |" * len(columns),
    ]
    for row in rows:
        values = (getattr(row, name) for name in columns)
        lines.append("| " + " | ".join(_cell(value) for value in values) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
