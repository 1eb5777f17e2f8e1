"""What `plan` estimates against what is measured, on graphs drawn at random: ``python -m benchmarks.activations``.

The peak of live tensors in train steps on this CPU; writes ``activations.json`` and ``activations.md`` into
``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
from pathlib import Path

import torch

from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.networks import LamNetwork
from neural_lam_anemoi.sharding.costs import FLOAT32, PRECISIONS, Counts, activation_bytes
from tests.distributed.graphs import build_network, random_graph
from tests.test_plan import MODELS, measured_peak

from .machine import describe_machine
from .report import RESULTS, write_report

KNOBS = ("keep", "checkpoint_steps")
"""What a caller of `LamNetwork.step` can choose."""
ALLOWED = 0.15
SIZES = ("seed", "grid nodes", "edges", "layers", "batch", "rollout")
TITLES = ("model", "knob", "precision", *SIZES, "measured, MB", "estimated, MB", "error")


@dataclasses.dataclass
class Row:
    """A line of the table."""

    model: str
    knob: str
    precision: str
    seed: int
    grid_nodes: int
    edges: int
    layers: int
    batch: int
    rollout: int
    measured_mb: float
    estimated_mb: float

    @property
    def error(self) -> float:
        """Of the estimate, as a share of what was measured."""
        return self.estimated_mb / self.measured_mb - 1


def main() -> None:
    """Measure everything, print the table, write the files."""
    options = _arguments()
    torch.set_num_threads(1)
    drawn = itertools.product(range(options.draws), MODELS, KNOBS, PRECISIONS)
    rows = [_measure(options.seed + number, *chosen) for number, (_, *chosen) in enumerate(drawn)]
    machine = describe_machine()
    report = {"machine": machine, "rows": [dataclasses.asdict(row) | {"error": row.error} for row in rows]}
    text = _markdown(machine, rows)
    write_report(options.output, "activations", report, text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3, help="graphs for each network, knob and precision")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the first graph")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def _measure(seed: int, model: str, knob: str, precision: str) -> Row:
    chance = random.Random(seed)
    graph = random_graph(seed, chance.randint(800, 2000), MODELS[model], chance.uniform(2, 6))
    batch, rollout, layers = chance.randint(1, 3), chance.randint(1, 4), chance.randint(1, 5)
    network = build_network(model, graph, hidden_dim=64, processor_layers=layers)
    dtype = torch.bfloat16 if precision == "bf16-mixed" else None
    peak = measured_peak(network, batch, rollout, knob == "checkpoint_steps", dtype)
    estimate = _estimate(network, graph, knob, precision, batch, rollout)
    edges = sum(edge_set.num_edges for edge_set in graph.edge_sets().values())
    sizes = (graph.num_grid, edges, layers, batch, rollout)
    return Row(model, knob, precision, seed, *sizes, peak / 1e6, estimate / 1e6)


def _estimate(network: LamNetwork, graph: LamGraph, knob: str, precision: str, batch: int, rollout: int) -> int:
    """Of activations and, under autocast, the parameters' casts: gradients come when activations have gone."""
    counts = Counts(graph.node_sets(), {name: edges.num_edges for name, edges in graph.edge_sets().items()})
    activations = activation_bytes(
        counts, network.architecture, graph.num_levels, knob, precision, batch, rollout, "cpu"
    )
    cast = 0 if precision == "32-true" else FLOAT32 // 2
    return activations + cast * sum(parameter.numel() for parameter in network.parameters())


def _markdown(machine: dict[str, object], rows: list[Row]) -> str:
    within = sum(abs(row.error) <= ALLOWED for row in rows)
    lines = [
        "# Activations: estimated and measured",
        "",
        f"{machine['cpu']}, torch {machine['torch']}. Peak of tensors made in a train step on graphs drawn at random, "
        f"hidden 64; {within} of {len(rows)} estimates are "
        f"within {ALLOWED:.0%}, the worst is {max((row.error for row in rows), key=abs):+.1%} off.",
        "",
        "| " + " | ".join(TITLES) + " |",
        "|" + " --- |" * len(TITLES),
    ]
    for row in rows:
        names = f"{row.model} | {row.knob} | {row.precision} | {row.seed} | {row.grid_nodes} | {row.edges}"
        sizes = f"{row.layers} | {row.batch} | {row.rollout}"
        lines.append(f"| {names} | {sizes} | {row.measured_mb:.1f} | {row.estimated_mb:.1f} | {row.error:+.1%} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
