"""Data that are forecasts of several members: every member a sample, or one member alone, as in neural-lam."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from neural_lam_anemoi.adapters.bridge.processes import python_module, run_command
from neural_lam_anemoi.adapters.bridge.sample import make_graph

from ..peer.data import ANALYSES, MEMBERS, make_meps
from .runs import Runs

EVALUATION = ("--eval", "test", "--ar_steps_eval", 2, "--val_steps_to_log", 1, 2)
SPREAD = ("--sharding_strategy", "ddp", "--num_gpus_per_model", 2)
ENOUGH_FOR_FOUR = 3400
"""Megabytes; the libraries reserve 2200 of them."""


@pytest.fixture(scope="module")
def forecasts(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Starts runs on files in MEPS's layout, two members of each forecast."""
    make_meps(tmp_path_factory.mktemp("forecasts"))
    datastore = next(tmp_path_factory.getbasetemp().glob("forecasts*/**/*.datastore.yaml"))
    flags = ["--datastore_config_path", datastore, "--batch_size", 2, "--n_workers", 0]
    statistics = python_module("neural_lam.datastore.npyfilesmeps.compute_standardization_stats")
    run_command([*statistics, *flags], datastore.with_suffix(".log"), datastore.parent / "static" / "diff_std.pt")
    config = datastore.with_name("config.yaml")
    config.write_text(yaml.safe_dump({"datastore": {"kind": "npyfilesmeps", "config_path": datastore.name}}))
    make_graph(config, "multiscale", "graphcast", mesh_grid_distance_ratio=4)
    return Runs(runs.launcher, config)


@pytest.mark.full
@pytest.mark.parametrize("members", [MEMBERS, 1])
def test_as_neural_lam(members: int, forecasts: Runs, tmp_path: Path) -> None:
    """An epoch has the same steps and losses, over two groups of two ranks as well; metrics are the same."""
    chosen = ("--load_single_member",) if members == 1 else ()
    samples = members * len(ANALYSES["train"]) * MEMBERS  # neural-lam lists an analysis once per member's file
    stock = forecasts.succeed(tmp_path / "stock", *chosen, "--batch_size", 1, command="")
    ours = forecasts.succeed(tmp_path / "ours", *chosen, "--batch_size", 1)
    assert len(stock.losses) == len(ours.losses) == samples
    torch.testing.assert_close(ours.losses, stock.losses, rtol=1e-6, atol=0)
    alone = forecasts.succeed(tmp_path / "alone", *chosen, *SPREAD[:2], "--batch_size", 2)
    spread = forecasts.succeed(tmp_path / "spread", *chosen, *SPREAD, "--batch_size", 1, ranks=4)
    assert len(alone.losses) == samples // 2
    torch.testing.assert_close(spread.losses, alone.losses, rtol=1e-6, atol=0)
    given = (*EVALUATION, *chosen, "--load", stock.last)
    expected = forecasts.succeed(tmp_path / "scored by stock", *given, command="")
    found = forecasts.succeed(tmp_path / "scored", *given, *SPREAD, "--batch_size", 1, ranks=4)
    assert expected.metrics.keys() == found.metrics.keys() and expected.metrics
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.full
def test_long_rollout(forecasts: Runs, tmp_path: Path) -> None:
    """Twenty steps that gradients flow through don't fit into one process's memory; four ranks train them, as exactly."""
    given = ("--sharding_strategy", "ddp", "--ar_steps_train", 20, "--batch_size", 2)
    free = forecasts.succeed(tmp_path / "free", *given, LIMIT=2)
    one = forecasts.start(tmp_path / "one", *given, LIMIT=2, MEMORY=ENOUGH_FOR_FOUR)
    assert one.outcome.statuses != [0] and "can't allocate memory" in one.outcome.outputs[0]
    four = forecasts.succeed(
        tmp_path / "four", *given, "--num_gpus_per_model", 4, ranks=4, LIMIT=2, MEMORY=ENOUGH_FOR_FOUR
    )
    torch.testing.assert_close(four.losses, free.losses, rtol=1e-6, atol=0)
