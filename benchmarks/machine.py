"""What a number was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe_machine() -> dict[str, object]:
    """CPU, cores, load and versions."""
    model = [line.split(":")[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return {
        "cpu": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "load": [round(x, 1) for x in os.getloadavg()],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
