"""What Anemoi's inference loads imports and runs where neural-lam, Anemoi's training and Lightning aren't installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from .conftest import Converted

PROGRAM = """
import importlib, pkgutil, sys

BLOCKED = ("neural_lam", "anemoi.training", "anemoi.inference", "pytorch_lightning", "lightning")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(name == blocked or name.startswith(blocked + ".") for blocked in BLOCKED):
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import torch
import neural_lam_anemoi

for module in pkgutil.walk_packages(neural_lam_anemoi.__path__, "neural_lam_anemoi."):
    if ".adapters" not in module.name:
        importlib.import_module(module.name)
interface = torch.load(sys.argv[1], weights_only=False, map_location="cpu").eval()
batch = torch.load(sys.argv[2])
torch.save(interface.predict_step({"data": batch})["data"], sys.argv[3])
for blocked in BLOCKED:
    assert blocked not in sys.modules, blocked
    try:
        importlib.import_module(blocked)
    except ModuleNotFoundError:
        continue
    raise AssertionError(f"{blocked} could be imported: this says nothing")
"""


def test_core_and_inference_checkpoint_without_hosts(converted: Converted, tmp_path: Path) -> None:
    checkpoint = converted("graph_lam") / "anemoi" / "inference-last.ckpt"
    interface = torch.load(checkpoint, weights_only=False).eval()
    nodes = len(interface.graph_data["data"].x)
    batch = torch.randn(1, 2, nodes, 9) + 280
    torch.save(batch, tmp_path / "batch.pt")
    arguments = [checkpoint, tmp_path / "batch.pt", tmp_path / "predicted.pt"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = interface.predict_step({"data": batch})["data"]
    assert torch.equal(torch.load(tmp_path / "predicted.pt"), expected)
