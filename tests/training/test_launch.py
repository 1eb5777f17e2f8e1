"""The command as users start it: alone, and by torchrun on two nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from neural_lam_anemoi.adapters.bridge.processes import executable

from .launcher import free_port

RUN = ("--graph", "multiscale", "--hidden_dim", "64", "--processor_layers", "1", "--batch_size", "2", "--epochs", "1")
REST = ("--ar_steps_eval", "1", "--val_steps_to_log", "1", "--num_workers", "0", "--logger_run_name", "run")
LIMIT = 280


def command(config: Path, place: Path, *options: str) -> list[str]:
    """A run with its files in ``place``."""
    given = [*RUN, *REST, "--config_path", str(config), "--runs_root", str(place), *options]
    return [executable("neural-lam-anemoi"), "train", *given]


def environment() -> dict[str, str]:
    """One thread per rank."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}


def test_by_itself(era5_project: Path, tmp_path: Path) -> None:
    """``--devices`` is a number of processes on CPUs."""
    line = command(era5_project, tmp_path, "--devices", "2", "--num_gpus_per_model", "2")
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, env=environment())
    assert done.returncode == 0, done.stderr[-2000:]
    assert "train: 2 ranks in 1 groups of 2, strategy ddp" in done.stdout
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def test_one_rank_refused_ends_the_other(era5_project: Path, tmp_path: Path) -> None:
    """With the error's line and its status, and nothing left running."""
    line = command(era5_project, tmp_path, "--devices", "2", "--num_gpus_per_model", "2", "--load", "nowhere.ckpt")
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, env=environment())
    assert done.returncode != 0
    assert "--load: nowhere.ckpt: no such file" in done.stderr


@pytest.mark.full
def test_two_nodes(era5_project: Path, tmp_path: Path) -> None:
    """Two launchers with two ranks each; node 0 alone says so and writes."""
    own = command(
        era5_project, tmp_path, "--num_nodes", "2", "--num_gpus_per_model", "2", "--sharding_strategy", "zero1"
    )
    port = free_port()
    launch = [
        executable("torchrun"),
        "--nnodes=2",
        "--nproc_per_node=2",
        "--master_addr=127.0.0.1",
        f"--master_port={port}",
    ]
    started = [[*launch, f"--node_rank={node}", "--no-python", *own] for node in range(2)]
    said = run_together([(line, {}) for line in started])
    assert "train: 4 ranks in 2 groups of 2, strategy zero1" in said[0]
    assert "train: " not in said[1]
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


@pytest.mark.full
def test_slurm(era5_project: Path, tmp_path: Path) -> None:
    """A task on each of two nodes, with the variables that srun gives it."""
    own = command(era5_project, tmp_path, "--num_nodes", "2", "--num_gpus_per_model", "2", "--devices", "1")
    job = {"JOB_ID": "4711", "JOB_NAME": "train", "NTASKS": "2", "NTASKS_PER_NODE": "1", "NNODES": "2"}
    job |= {"NODELIST": "127.0.0.1", "LOCALID": "0"}
    tasks = [job | {"PROCID": str(task), "NODEID": str(task)} for task in range(2)]
    port = {"MASTER_PORT": str(free_port())}
    said = run_together([(own, port | {f"SLURM_{name}": value for name, value in task.items()}) for task in tasks])
    assert "train: 2 ranks in 1 groups of 2, strategy ddp" in said[0]
    assert "train: " not in said[1]
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def run_together(commands: list[tuple[list[str], dict[str, str]]]) -> list[str]:
    """What each command said, with its variables, if all end with status 0."""
    running = [
        subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment() | variables)
        for line, variables in commands
    ]
    try:
        said = [process.communicate(timeout=LIMIT)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(running), said
    return said
