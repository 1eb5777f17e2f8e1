"""What a network costs on a part of a graph: parameters, bytes exchanged, bytes of activations kept for backward.

Activations are counted from the code of the layers, row by row: every tensor that autograd keeps, in units of
``hidden_dim``. What isn't proportional to nodes or edges is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..architecture import Architecture
from ..graph import GRID, LamGraph, edge_ends
from .cuts import passes_per_step
from .partition import Partition
from .parts import halo_rows

KNOBS = ("keep", "checkpoint_layers", "checkpoint_steps")
"""Keep everything; recompute each layer, or each step of a rollout, in the backward pass."""
PRECISIONS = ("32-true", "bf16-mixed")
FLOAT32 = 4
ADAM_BYTES = 8


def count_parameters(architecture: Architecture, graph: LamGraph) -> int:
    """Trainable numbers of the network, without building it."""
    a, width, levels = architecture, architecture.hidden_dim, graph.num_levels

    def mlp(inputs: int) -> int:
        return (inputs + 1) * width + a.hidden_layers * (width + 1) * width + 2 * width

    layer = mlp(3 * width) + mlp(2 * width)
    edge, mesh = mlp(graph.g2m.features.shape[1]), mlp(graph.mesh_coordinates[0].shape[1])
    output = a.hidden_layers * (width + 1) * width + (width + 1) * a.grid_output_dim
    total = mlp(a.grid_input_dim) + 2 * edge + 2 * layer + mlp(width) + output
    if a.model == "graph_lam":
        return total + mesh + edge + a.processor_layers * layer
    total += levels * (mesh + edge) + 2 * (levels - 1) * (edge + layer)
    if a.model == "hi_lam":
        return total + a.processor_layers * (4 * levels - 2) * layer
    return total + a.processor_layers * ((3 * levels - 2) * mlp(3 * width) + levels * mlp(2 * width))


def exchanged_bytes(graph: LamGraph, partition: Partition, architecture: Architecture) -> list[int]:
    """Bytes that each rank receives in one forward step of batch 1 in float32; the backward pass receives as many.

    Sums over ranks, where a level is replicated, count as a ring all-reduce.
    """
    passes, width = passes_per_step(graph.num_levels, architecture), architecture.hidden_dim
    received = [0.0] * partition.ranks
    for name, rows in halo_rows(graph, partition).items():
        sender, receiver = edge_ends(graph.num_levels)[name]
        summed = receiver in partition.replicated and sender not in partition.replicated
        ring = 2 * (partition.ranks - 1) / partition.ranks * len(partition.owners[receiver]) if summed else 0.0
        for rank, count in enumerate(rows.tolist()):
            received[rank] += passes[name] * (count + ring) * width * FLOAT32
    return [int(x) for x in received]


@dataclasses.dataclass(frozen=True)
class Counts:
    """Nodes and edges that one rank holds, by name of their set."""

    nodes: Mapping[str, int]
    edges: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Rows of ``hidden_dim`` numbers kept: ``narrow`` ones take part in autocast, ``wide`` ones surround LayerNorms.

    ``normed`` rows also keep the two numbers they were normalised with.
    """

    narrow: float
    wide: float
    normed: float = 0.0

    def size(self, width: int, number: _Number) -> float:
        return width * (self.narrow * number.narrow + self.wide * number.wide) + 2 * FLOAT32 * self.normed


@dataclasses.dataclass(frozen=True)
class _Number:
    """Bytes of a number in either place; autocast computes LayerNorms in float32 on GPUs, not on CPUs."""

    narrow: int
    wide: int

    @classmethod
    def of(cls, precision: str, device: str) -> _Number:
        narrow = FLOAT32 if precision == "32-true" else FLOAT32 // 2
        return cls(narrow, narrow if device == "cpu" else FLOAT32)


def activation_bytes(
    counts: Counts,
    architecture: Architecture,
    levels: int,
    knob: str = "keep",
    precision: str = "32-true",
    batch_size: int = 1,
    rollout: int = 1,
    device: str = "cuda",
) -> int:
    """Estimate of the peak of activations in a train step on one rank.

    Parameters
    ----------
    counts : Counts
        Of the rank.
    architecture : Architecture
        Width and depth.
    levels : int
        Mesh levels.
    knob : {"keep", "checkpoint_layers", "checkpoint_steps"}
        What is recomputed in the backward pass.
    precision : {"32-true", "bf16-mixed"}
        As Lightning calls them.
    batch_size, rollout : int
        Samples, and steps that gradients flow through; static embeddings are made anew in each step.
    device : {"cuda", "cpu"}
        Autocast differs between them.

    Returns
    -------
    int
        Bytes, parameters and optimizer excluded.
    """
    width, applications = architecture.hidden_dim, passes_per_step(levels, architecture)
    hidden, number = architecture.hidden_layers, _Number.of(precision, device)
    static = grid = layers = inputs = largest = transient = 0.0
    embedded_rows = sum(counts.edges.values()) + sum(n for name, n in counts.nodes.items() if name != GRID)
    static += _mlp(embedded_rows, hidden).size(width, number)
    grid += _mlp(2 * counts.nodes[GRID], hidden).size(width, number) * batch_size
    freed = _Kept(2 * hidden * counts.nodes[GRID], 0).size(width, number) * batch_size  # before gradients are on edges
    grid += freed
    fields = 2.0 * counts.nodes[GRID] * (architecture.grid_input_dim + architecture.num_state) * FLOAT32 * batch_size
    for name, (_, receiver) in edge_ends(levels).items():
        updated = max(applications[name] - 1, 0)
        edges, nodes = counts.edges[name], counts.nodes[receiver]
        once = _layer(edges, nodes, hidden).size(width, number) * batch_size
        rows = width * number.wide * batch_size
        layers += applications[name] * once + updated * edges * rows
        inputs += (updated * edges + applications[name] * nodes) * rows
        largest = max(largest, once + (edges * rows if updated else 0))
        gradients = 3 if updated else 2  # alive at once: in and out of an operation, and the next edges'
        transient = max(transient, gradients * edges * width * FLOAT32 * batch_size - freed)
    step = static + grid + layers + transient
    if knob == "keep":
        return int(rollout * (step - transient + fields) + transient)
    if knob == "checkpoint_layers":
        return int(rollout * (static + grid + inputs + fields) + largest + transient)
    return int(rollout * fields + step)


def _mlp(rows: float, hidden_layers: int) -> _Kept:
    """Around SiLU before and after, the LayerNorm's input, and the output."""
    return _Kept(2 * hidden_layers * rows, 2 * rows, rows)


def _layer(edges: int, nodes: int, hidden_layers: int) -> _Kept:
    """Both MLPs of an InteractionNet with the messages' total; edge and node inputs are somebody's output."""
    return _Kept(2 * hidden_layers * (edges + nodes), edges + 3 * nodes, edges + nodes)
