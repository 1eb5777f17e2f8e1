"""The README's commands work as they stand, one after the other, beside a neural-lam project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..natural_earth import make_natural_earth
from .conftest import Trained

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"(?:^`(?P<file>[\w.]+)`:\n\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MADE = (
    "anemoi/fine_tuning.yaml",
    "anemoi.zarr",
    "forecast.nc",
    "back.ckpt",
    "tuned.ckpt",
    "new.ckpt",
    "graph/brought/metainfo.yaml",
    "eval-test-inference-last/test_rmse.csv",
    "plan.png",
    "runs/spread/checkpoints/last.ckpt",
)


def test_two_commands_come_first() -> None:
    """They can't be run from within themselves: `make test` is what runs this, test_install.py runs the demo."""
    commands = [block["body"].split("\n")[:-1] for block in BLOCK.finditer(README) if block["language"] == "sh"]
    assert commands[0] == ["make demo", "make test"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in re.findall(r"make ([\w-]+)", README):
        assert line in targets


def test_paths_exist() -> None:
    for path in re.findall(
        r"`((?:tests|adapters|neural_lam_anemoi|docs)/[\w/.]*)`|\]\(((?:docs|notebooks)/[\w.]+)\)", README
    ):
        assert (ROOT / "".join(path)).exists(), path


@pytest.mark.timeout(1200)
def test_commands(era5_project: Path, trained: Trained, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("flat", "hierarchical")
    shutil.copytree(era5_project.parent, tmp_path, ignore=ignored, dirs_exist_ok=True)
    shutil.copy(trained("graph_lam"), tmp_path / "last.ckpt")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **make_natural_earth(tmp_path / "earth")}
    blocks = list(BLOCK.finditer(README))
    for block in blocks:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["body"])
    said: list[str] = []
    for line in (line for block in blocks if block["language"] == "sh" for line in block["body"].splitlines()):
        if line.startswith("make "):
            continue
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
        )
        said.append(done.stdout)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    for name in MADE:
        assert (tmp_path / name).exists(), name
    assert list(tmp_path.rglob("test_rmse.csv")), "nothing was scored"
    counts = re.findall(r"rank \d: (\d+) of (\d+) grid nodes", "".join(said))
    assert len(counts) == 2 and sum(int(own) for own, _ in counts) == int(counts[0][1])
