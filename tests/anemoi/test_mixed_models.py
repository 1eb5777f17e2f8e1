"""The tests in mixed_models.py pass under a current PyG; Anemoi's graph providers don't work under neural-lam's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("which", ["not full", pytest.param("full", marks=pytest.mark.full)])
def test_under_a_current_pyg(which: str, current_pyg: Path) -> None:
    path = os.pathsep.join(map(str, (current_pyg, ROOT)))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", which, "tests/anemoi/mixed_models.py"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
