"""The plan: counts against real networks, activations against measured ones, choices, files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.observe import LiveTensors
from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.networks import LamNetwork
from neural_lam_anemoi.plan import plan, read_amplification
from neural_lam_anemoi.plan_drawing import draw_plan
from neural_lam_anemoi.plan_report import plan_json, plan_table
from neural_lam_anemoi.sharding.costs import Counts, activation_bytes, count_parameters
from neural_lam_anemoi.sharding.cuts import make_partition

from .distributed.graphs import build_network, random_graph, random_sample

MODELS = {"graph_lam": (300,), "hi_lam": (300, 60, 9), "hi_lam_parallel": (300, 60, 9)}


def measured_peak(network: LamNetwork, batch: int, steps: int, checkpointed: bool, dtype: torch.dtype | None) -> int:
    """Peak bytes of tensors made in a train step on this device."""
    sample = random_sample(network.num_grid, batch, steps).to(torch.float32)
    older, newer = sample.initial.unbind(1)
    with LiveTensors() as live:
        loss = torch.zeros(())
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            for step in range(steps):
                arguments = (newer, older, sample.forcing[:, step], sample.static)
                if checkpointed:
                    state = checkpoint(network.step, *arguments, use_reentrant=False)[0]
                else:
                    state = network.step(*arguments)[0]
                older, newer, loss = newer, state, loss + state.square().sum()
        loss.backward()
    return live.peak


@pytest.mark.parametrize("options", [{}, {"hidden_layers": 2, "processor_layers": 3}], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_counted(model: str, options: dict[str, int]) -> None:
    network = build_network(model, random_graph(0, 30, MODELS[model][-1:] * len(MODELS[model]), 1.0), **options)
    graph = random_graph(0, 30, MODELS[model][-1:] * len(MODELS[model]), 1.0)
    assert count_parameters(network.architecture, graph) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("batch", "steps", "knob", "precision"),
    [
        (1, 1, "keep", "32-true"),
        (2, 2, "keep", "32-true"),
        (1, 3, "checkpoint_steps", "32-true"),
        (2, 2, "checkpoint_layers", "32-true"),
        (1, 1, "keep", "bf16-mixed"),
        (2, 3, "keep", "bf16-mixed"),
        (2, 2, "checkpoint_steps", "bf16-mixed"),
        (1, 3, "checkpoint_layers", "bf16-mixed"),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_activations_are_estimated_within_15_percent(
    model: str, batch: int, steps: int, knob: str, precision: str
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    generator = torch.Generator().manual_seed(seed)
    density = 2.0 + 4 * float(torch.rand(1, generator=generator))
    num_grid = int(torch.randint(800, 2000, (1,), generator=generator))
    graph = random_graph(seed, num_grid, MODELS[model], density)
    layers = int(torch.randint(1, 5, (1,), generator=generator))
    network = build_network(model, graph, hidden_dim=64, processor_layers=layers)
    counts = Counts(graph.node_sets(), {name: edges.num_edges for name, edges in graph.edge_sets().items()})
    arguments = (graph.num_levels, knob, precision, batch, steps, "cpu")
    estimate = activation_bytes(counts, network.architecture, *arguments)
    estimate += sum(p.numel() for p in network.parameters()) * (0 if precision == "32-true" else 2)  # autocast's casts
    dtype = torch.bfloat16 if precision == "bf16-mixed" else None
    network.checkpoint_layers = knob == "checkpoint_layers"
    peak = measured_peak(network, batch, steps, knob == "checkpoint_steps", dtype)
    assert 0.85 <= estimate / peak <= 1.15, f"seed {seed}: {estimate / peak:.3f}"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sizes don't depend on it, and others may be busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def architecture(**options: int) -> Architecture:
    """A wide hi_lam."""
    return Architecture("hi_lam", 17, 15, 4, **({"hidden_dim": 256, "processor_layers": 4} | options))


def graph_and_places() -> tuple[LamGraph, torch.Tensor]:
    """A random graph and places for its grid."""
    return random_graph(1, 500, (90, 30, 6), 3.0), torch.rand(500, 2, generator=torch.Generator().manual_seed(0))


def test_more_ranks_less_memory_and_the_cheapest_that_fits() -> None:
    graph, places = graph_and_places()
    ample = plan(graph, architecture(), [1, 2, 4], gpu_memory=2**40, grid_coordinates=places)
    assert [(row.ranks, row.kind) for row in ample.rows] == [
        (1, "contiguous"),
        *((ranks, kind) for ranks in (2, 4) for kind in ("contiguous", "rcb")),
    ]
    assert ample.cheapest is not None
    assert (ample.cheapest[0].ranks, ample.cheapest[1].knob, ample.cheapest[1].precision) == (1, "keep", "32-true")
    needed = {(row.ranks, row.kind): row.settings[0].total_mb for row in ample.rows}
    assert needed[4, "contiguous"] < needed[2, "contiguous"] < needed[1, "contiguous"]
    between = int((needed[1, "contiguous"] + needed[2, "contiguous"]) / 2 / 0.9 * 1e6)
    tight = plan(graph, architecture(), [1, 2, 4], gpu_memory=between, grid_coordinates=places)
    assert tight.cheapest is not None
    assert (tight.cheapest[0].ranks, tight.cheapest[1].precision) != (1, "32-true") or tight.cheapest[1].knob != "keep"
    nothing = plan(graph, architecture(), [1], gpu_memory=2**20)
    assert nothing.cheapest is None
    assert "nothing fits" in plan_table(nothing)[-1]
    assert "too small" in plan_table(nothing)[1]


def test_json_table_and_plot(tmp_path: Path) -> None:
    graph, places = graph_and_places()
    found = plan(graph, architecture(), [1, 2], rollout=4, grid_coordinates=places)
    again = json.loads(plan_json(found))
    assert again["rollout"] == 4
    assert [row["ranks"] for row in again["rows"]] == [1, 2, 2]
    assert again["rows"][0]["exchanged_mb"] == 0
    assert len([line for line in plan_table(found) if "contiguous" in line]) == 5
    assert plan_table(found)[-1] == "cheapest that fits: 1 ranks, contiguous, keep, 32-true"
    draw_plan(found, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    with pytest.raises(InvalidInputError, match="grid_coordinates"):
        draw_plan(plan(graph, architecture(), [2]), tmp_path / "none.png")


def test_reading_costs_more_where_the_file_has_another_order() -> None:
    x, y = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    places = torch.stack([x.flatten(), y.flatten()], 1) / 32
    graph = random_graph(0, 1024, (20,), 1.0)
    assert read_amplification(make_partition(graph, 4)) == 1
    assert 1.8 < read_amplification(make_partition(graph, 4, "rcb", places)) < 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": []}, "ranks is 0"),
        ({"ranks": [2, 0]}, "ranks is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rollout": -1}, "rollout is -1"),
        ({"gpu_memory": 0}, "gpu_memory is 0"),
    ],
)
def test_what_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        plan(graph_and_places()[0], architecture(), **options)  # type: ignore[arg-type]
