"""The tests in mixed_models.py pass under a current PyG; Anemoi's graph providers don't work under neural-lam's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_geometric

from .mixes import MIXES, build

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("which", ["not full", pytest.param("full", marks=pytest.mark.full)])
def test_under_a_current_pyg(which: str, current_pyg: Path) -> None:
    path = os.pathsep.join(map(str, (current_pyg, ROOT)))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", which, "tests/anemoi/mixed_models.py"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_under_neural_lam_s_pyg(tmp_path: Path) -> None:
    """Anemoi's graph provider fails before any layer is made: the reason for all this."""
    assert torch_geometric.__version__ == "2.3.1"
    with pytest.raises(TypeError, match=r"index_sort\(\) got an unexpected keyword argument 'stable'"):
        build(MIXES["all ours"], tmp_path / "graph")
