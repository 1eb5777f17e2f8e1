"""What can't be run is refused in one line, before anything is written."""

from __future__ import annotations

import fcntl
import importlib.util
from pathlib import Path
from unittest import mock

import pytest

from neural_lam_anemoi.adapters.neural_lam.placement import check_rows
from neural_lam_anemoi.errors import InvalidInputError

from ..commands import run_refused
from .runs import Runs


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--num_gpus_per_model", 2), "--num_gpus_per_model 2: doesn't divide the 1 ranks"),
        (("--num_gpus_per_model", 0), "--num_gpus_per_model 0: at least 1"),
        (("--edge_chunks", 0), "--edge_chunks 0: at least 1"),
        (("--offload", "optimizer"), "--offload optimizer: needs --sharding_strategy zero1, zero2, zero3"),
        (
            ("--offload", "parameters", "--sharding_strategy", "ddp"),
            "needs --sharding_strategy zero3, fsdp2; it is ddp",
        ),
        (("--graph", "none"), "none"),
    ],
)
def test_refused(
    options: tuple[object, ...], said: str, era5_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the line says what to change."""
    given = ["train", "--config_path", era5_project, "--graph", "multiscale", "--hidden_dim", 8, "--num_workers", 0]
    given += ["--ar_steps_eval", 1, "--val_steps_to_log", 1]
    line = run_refused(capsys, *given, "--runs_root", tmp_path / "runs", "--logger_run_name", "run", *options)
    assert said in line
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--load", "nowhere.ckpt"), "--load: nowhere.ckpt: no such file"),
        (("--load", __file__), "not a checkpoint of neural-lam"),
        (("--ar_steps_eval", 10), "only provides 7 total time steps"),
    ],
)
def test_refused_by_every_rank(options: tuple[object, ...], said: str, runs: Runs, tmp_path: Path) -> None:
    """What is found out when the ranks are there already."""
    run = runs.start(tmp_path / "run", "--num_gpus_per_model", 2, *options, ranks=2)
    assert run.outcome.statuses == [2, 2]
    assert all(said in output.splitlines()[-1] and "Traceback" not in output for output in run.outcome.outputs)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_engine_not_installed(era5_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which extra has it."""
    with mock.patch.object(importlib.util, "find_spec", return_value=None):
        line = run_refused(capsys, "train", "--config_path", era5_project, "--sharding_strategy", "zero3")
    assert "pip install 'neural-lam-anemoi[deepspeed]'" in line


def test_another_architecture(runs: Runs, tmp_path: Path) -> None:
    """Every rank names what differs, and the checkpoint stays what it was."""
    first = runs.succeed(tmp_path / "first", LIMIT=1)
    before = first.last.read_bytes()
    options = ("--load", first.last, "--hidden_dim", 32, "--num_gpus_per_model", 2)
    second = runs.start(tmp_path / "second", *options, ranks=2)
    assert second.outcome.statuses == [2, 2]
    assert all(
        "--load: the checkpoint's hidden_dim is 64, --hidden_dim is 32" in said for said in second.outcome.outputs
    )
    assert first.last.read_bytes() == before


def test_another_run_writes_there(runs: Runs, tmp_path: Path) -> None:
    """Every rank is told so, and what is there stays."""
    directory = tmp_path / "runs" / "run"
    directory.mkdir(parents=True)
    with (directory / ".running").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = runs.start(tmp_path / "place", "--num_gpus_per_model", 2, "--runs_root", directory.parent, ranks=2)
    assert run.outcome.statuses == [2, 2]
    assert all(f"{directory}: another run writes there" in said for said in run.outcome.outputs)
    assert [path.name for path in directory.iterdir()] == [".running"]


def test_more_ranks_than_rows() -> None:
    """Some would have nothing to compute."""
    check_rows(7, 7)
    with pytest.raises(InvalidInputError, match="--num_gpus_per_model 8: the grid has 7 nodes"):
        check_rows(8, 7)
