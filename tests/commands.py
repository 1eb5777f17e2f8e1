"""Running this package's command line in tests: as a process, or in this one where starting one would cost more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neural_lam_anemoi import cli
from neural_lam_anemoi.adapters.bridge.processes import executable


def run_process(*arguments: object, cwd: Path | None = None) -> str:
    """Standard output of ``neural-lam-anemoi`` with these arguments, which has to succeed."""
    command = [executable("neural-lam-anemoi"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of error with which ``neural-lam-anemoi`` refuses these arguments, with a status that isn't 0."""
    status = cli.main([str(part) for part in arguments])
    output, error = capsys.readouterr()
    assert status == cli.USER_ERROR, error
    assert output == ""
    lines = error.splitlines()
    assert len(lines) == 1, error
    assert lines[0].startswith(f"neural-lam-anemoi {arguments[0]}: ")
    return lines[0]
