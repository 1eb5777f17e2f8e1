"""Checkpoints are neural-lam's own, whatever wrote them: another strategy goes on from them, stock neural-lam scores them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from .runs import Run, Runs

START = ("--sharding_strategy", "ddp")
EVALUATION = ("--eval", "test", "--ar_steps_eval", 2, "--val_steps_to_log", 1, 2)
STRATEGIES: dict[str, tuple[tuple[object, ...], int, int]] = {
    "ddp": (("--num_gpus_per_model", 2), 2, 4),
    "zero1": (("--sharding_strategy", "zero1"), 2, 2),
    "zero3": (("--sharding_strategy", "zero3", "--num_gpus_per_model", 2), 2, 4),
    "fsdp2": (("--sharding_strategy", "fsdp2", "--num_gpus_per_model", 2), 2, 4),
}
"""Options, ranks, and samples per model group."""


@pytest.fixture(scope="module")
def uninterrupted(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two epochs of two steps on one rank."""
    return runs.succeed(tmp_path_factory.mktemp("whole") / "run", *START, "--epochs", 2, LIMIT=2)


@pytest.fixture(scope="module")
def first_half(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The first epoch of it."""
    return runs.succeed(tmp_path_factory.mktemp("half") / "run", *START, "--epochs", 1, LIMIT=2)


def spread(runs: Runs, strategy: str, place: Path, *options: object) -> Run:
    """A run of two steps per epoch, spread over ranks."""
    given, ranks, batch = STRATEGIES[strategy]
    return runs.succeed(place, *given, "--batch_size", batch, *options, ranks=ranks, LIMIT=2)


def moments(run: Run) -> dict[int, dict[str, Any]]:
    """State of AdamW by position of the parameter."""
    state: dict[int, dict[str, Any]] = run.checkpoint["optimizer_states"][0]["state"]
    return state


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goes_on(strategy: str, uninterrupted: Run, first_half: Run, runs: Runs, tmp_path: Path) -> None:
    """From one rank's checkpoint to several ranks, and from theirs to one: losses as if nothing had happened."""
    there = spread(runs, strategy, tmp_path / "there", "--epochs", 2, "--load", first_half.last, "--restore_opt")
    torch.testing.assert_close(there.losses, uninterrupted.losses[2:], rtol=1e-6, atol=0)
    begun = spread(runs, strategy, tmp_path / "begun", "--epochs", 1)
    back = runs.succeed(tmp_path / "back", *START, "--epochs", 2, "--load", begun.last, "--restore_opt", LIMIT=2)
    torch.testing.assert_close(back.losses, uninterrupted.losses[2:], rtol=1e-6, atol=0)
    for run in (there, back):
        held, expected = moments(run), moments(uninterrupted)
        assert held.keys() == expected.keys()
        assert all(int(held[place]["step"]) == 4 for place in held)
        for place, state in expected.items():
            for name in ("exp_avg", "exp_avg_sq"):
                scale = float(state[name].abs().max())
                torch.testing.assert_close(held[place][name], state[name], rtol=0, atol=1e-3 * scale)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_evaluation_of_several_groups(size: int, first_half: Run, runs: Runs, tmp_path: Path) -> None:
    """Stock neural-lam and two groups of two ranks give the same numbers and maps; five samples don't fill the groups.

    In a group of four the first and last rank have nothing of the interior, on which numbers are based.
    """
    given = (*EVALUATION, "--load", first_half.last)
    expected = runs.succeed(tmp_path / "stock", *given, command="")
    options = ("--num_gpus_per_model", size, "--sharding_strategy", "ddp", "--batch_size", 2)
    found = runs.succeed(tmp_path / "groups", *given, *options, ranks=4)
    assert expected.metrics.keys() == found.metrics.keys() and expected.metrics
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-5), name
    files = {
        path.relative_to(expected.place) for path in expected.place.rglob("*") if path.suffix in (".pt", ".pdf", ".csv")
    }
    assert files and files == {
        path.relative_to(found.place) for path in found.place.rglob("*") if path.suffix in (".pt", ".pdf", ".csv")
    }
    maps = [torch.load(next(run.place.rglob("mean_spatial_loss.pt"))) for run in (expected, found)]
    torch.testing.assert_close(maps[1], maps[0], rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.full
def test_best_checkpoint(runs: Runs, tmp_path: Path) -> None:
    """The best of four validations is another rank's best too: the same epoch, score and weights, in one file."""
    given = (*START, "--epochs", 4, "--val_interval", 1, "--batch_size")
    descent = {"LIMIT": 2, "SGD": 0.05}
    alone = runs.succeed(tmp_path / "alone", *given, 4, **descent)
    spread = runs.succeed(tmp_path / "spread", *given, 2, "--num_gpus_per_model", 2, ranks=4, **descent)
    best = []
    for run in (alone, spread):
        (file,) = run.last.parent.glob("min_val_loss*.ckpt")
        content = torch.load(file, weights_only=False)
        ((_, state),) = [item for item in content["callbacks"].items() if "val_mean_loss" in item[0]]
        best.append((content["epoch"], content["global_step"], float(state["best_model_score"]), content["state_dict"]))
    (epoch, step, score, weights), found = best
    assert found[:2] == (epoch, step)
    assert found[2] == pytest.approx(score, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(found[3][name], value, rtol=0, atol=1e-5)


def test_stock_scores_what_was_spread(runs: Runs, tmp_path: Path) -> None:
    """The file of parameters spread over ranks is an ordinary one."""
    run = spread(runs, "fsdp2", tmp_path / "spread", "--epochs", 1)
    given = (*EVALUATION, "--load", run.last)
    stock = runs.succeed(tmp_path / "stock", *given, command="")
    ours = runs.succeed(tmp_path / "ours", *given)
    for name, value in stock.metrics.items():
        assert ours.metrics[name] == pytest.approx(value, rel=1e-5), name


def test_without_new_flags(runs: Runs, tmp_path: Path) -> None:
    """The same losses and checkpoint as stock neural-lam."""
    stock, ours = (
        runs.succeed(tmp_path / name, "--epochs", 4, command=command)
        for name, command in (("stock", ""), ("ours", "train"))
    )
    assert len(ours.losses) >= 10
    torch.testing.assert_close(ours.losses, stock.losses, rtol=1e-6, atol=0)
    assert ours.checkpoint["state_dict"].keys() == stock.checkpoint["state_dict"].keys()
    assert ours.checkpoint.keys() == stock.checkpoint.keys()


SAVE = """
import sys, torch
from neural_lam_anemoi.adapters.neural_lam.saving import CheckpointFiles
state = torch.load(sys.argv[1], weights_only=False)
state["state_dict"]["more"] = torch.zeros(20_000_000)
print("ready", flush=True)
while True:
    CheckpointFiles().save_checkpoint(state, sys.argv[1])
"""


def test_killed_while_saving(first_half: Run, runs: Runs, tmp_path: Path) -> None:
    """Whenever that is, the checkpoint is whole and another run goes on from it."""
    saved = tmp_path / "last.ckpt"
    for wait in (0.02, 0.05, 0.11, 0.17):
        saved.write_bytes(first_half.last.read_bytes())
        process = subprocess.Popen([sys.executable, "-c", SAVE, str(saved)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        weights = torch.load(saved, weights_only=False)["state_dict"]
        assert all(torch.equal(weights[name], value) for name, value in first_half.checkpoint["state_dict"].items())
    saved.write_bytes(first_half.last.read_bytes())
    runs.succeed(tmp_path / "on", *START, "--epochs", 2, "--load", saved, "--restore_opt", LIMIT=1)
