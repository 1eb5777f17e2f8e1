"""Running the hosts' own commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from neural_lam_anemoi.errors import InvalidInputError

OFFLINE = {"WANDB_MODE": "disabled", "MPLBACKEND": "Agg"}


def run_command(command: Sequence[object], log: Path, expected: Path) -> None:
    """Run a command, its output going to ``log``, and make sure that it wrote what it should.

    neural-lam's commands end with status 0 whatever happens, so the file is what counts.

    Parameters
    ----------
    command : sequence of str or Path
    log : Path
        Where standard output and error go.
    expected : Path
        What the command makes.

    Raises
    ------
    InvalidInputError
        The command failed or ``expected`` isn't there; the last line of the log is part of the message.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        done = subprocess.run([str(part) for part in command], stdout=file, stderr=file, env={**os.environ, **OFFLINE})
    if done.returncode != 0 or not expected.exists():
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        raise InvalidInputError(f"{Path(str(command[0])).name} failed ({lines[-1]}); everything it said is in {log}")


def python_module(name: str) -> list[str]:
    """The beginning of a command that runs a module with this interpreter."""
    return [sys.executable, "-m", name]


def executable(name: str) -> str:
    """A command of the environment this interpreter belongs to.

    Raises
    ------
    InvalidInputError
        If it isn't installed.
    """
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=str(beside)) or shutil.which(name)
    if found is None:
        raise InvalidInputError(f"{name} isn't installed; pip install 'neural-lam-anemoi[all]'")
    return found
