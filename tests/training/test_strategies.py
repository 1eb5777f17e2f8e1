"""Whatever is spread, and over how many ranks, gradients and the steps that follow are those of one process.

DDP runs in float64. DeepSpeed and Lightning's FSDP2 strategy run in float32 at most; there neural-lam's own gradients are
further than `LIMIT` from their float64 values in one LayerNorm's bias; two such may be twice as far apart as that.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .runs import Run, Runs

RATE, EPOCHS, STEPS = 0.003, 5, 10
LIMIT = 5e-5
LIMIT_64 = 1e-9
WEIGHTS = 1e-6
SAMPLES = 4
"""In a step, over all ranks."""
MODELS: dict[str, tuple[object, ...]] = {
    "graph_lam": (),
    "hi_lam": (),
    "hi_lam without layers": ("--processor_layers", 0),
    "hi_lam_parallel": (),
}
Case = tuple[str, str, int, int, tuple[str, ...]]
"""Model, strategy, ranks, ranks per model group, further options."""
CROSS_SECTION: list[Case] = [
    ("graph_lam", "ddp", 4, 2, ("--partition", "rcb")),
    ("graph_lam", "ddp", 2, 2, ("--checkpoint_activations", "both", "--edge_chunks", "3", "--offload_activations")),
    ("graph_lam", "fsdp2", 4, 2, ()),
    ("graph_lam", "fsdp2", 2, 1, ("--offload", "parameters")),
    ("graph_lam", "zero1", 2, 2, ()),
    ("graph_lam", "zero2", 2, 1, ("--offload", "optimizer")),
    ("graph_lam", "zero3", 4, 2, ()),
    ("hi_lam without layers", "ddp", 2, 1, ()),
]
OFFLOADS = {
    "zero1": ("none", "optimizer"),
    "zero2": ("none", "optimizer"),
    "zero3": ("none", "optimizer", "parameters"),
}
MATRIX: list[Case] = [
    ("graph_lam", strategy, 4, size, ("--offload", offload))
    for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp2")
    for offload in OFFLOADS.get(strategy, ("none", "parameters") if strategy == "fsdp2" else ("none",))
    for size in (1, 2, 4)
] + [
    (model, strategy, ranks, 2, ())
    for model in MODELS
    if model != "graph_lam"
    for strategy in ("ddp", "zero2", "zero3", "fsdp2")
    for ranks in (2, 4)
]
_REFERENCES: dict[tuple[str, str], Run] = {}


def train(runs: Runs, place: Path, model: str, *options: object, ranks: int = 1, groups: int = 1) -> Run:
    """Steps of plain gradient descent."""
    given = ["--batch_size", SAMPLES // groups, "--epochs", EPOCHS, *MODELS[model], *options]
    return runs.succeed(place, *given, model=model.split()[0], ranks=ranks, SGD=RATE, LIMIT=STEPS // EPOCHS)


def reference(runs: Runs, factory: pytest.TempPathFactory, model: str, precision: str) -> Run:
    """The run of one process, in which samples come in the same order."""
    if (model, precision) not in _REFERENCES:
        place = factory.mktemp("one") / "run"
        options = ("--sharding_strategy", "ddp", "--precision", precision)
        _REFERENCES[model, precision] = train(runs, place, model, *options)
    return _REFERENCES[model, precision]


def furthest(run: Run, other: Run) -> tuple[float, str]:
    """Largest difference of gradients, over the largest of the parameter's, and where it is."""
    gradients, expected = run.gradients, other.gradients
    assert gradients.keys() == expected.keys()
    return max(
        (float((gradients[name].double() - expected[name].double()).abs().max() / expected[name].abs().max()), name)
        for name in expected
    )


def assert_same(run: Run, expected: Run, limit: float) -> None:
    """Gradients, weights at the end, losses; and the weights have moved by much more than they may differ."""
    difference, where = furthest(run, expected)
    print(f"gradients differ by {difference:.1e} in {where}")
    assert difference <= limit, where
    assert len(run.losses) == len(expected.losses) == STEPS
    torch.testing.assert_close(run.losses, expected.losses, rtol=1e-6, atol=0)
    weights, others = run.checkpoint["state_dict"], expected.checkpoint["state_dict"]
    assert weights.keys() == others.keys()
    for name, value in others.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=WEIGHTS)
    assert float(expected.losses[0] - expected.losses[-1]) > 1e-3 * float(expected.losses[0])


@pytest.mark.parametrize(
    "case", [*CROSS_SECTION, *(pytest.param(case, marks=pytest.mark.full) for case in MATRIX)], ids=str
)
def test_equals_one_process(case: Case, runs: Runs, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Loss, gradients and weights after ten steps."""
    model, strategy, ranks, size, options = case
    precision = "64" if strategy == "ddp" else "32"
    expected = reference(runs, tmp_path_factory, model, precision)
    given = ("--sharding_strategy", strategy, "--num_gpus_per_model", size, "--precision", precision, *options)
    run = train(runs, tmp_path / "run", model, *given, ranks=ranks, groups=ranks // size)
    if precision == "64":
        assert_same(run, expected, LIMIT_64)
        return
    rounding, _ = furthest(expected, reference(runs, tmp_path_factory, model, "64"))
    assert_same(run, expected, max(LIMIT, 2 * rounding))
