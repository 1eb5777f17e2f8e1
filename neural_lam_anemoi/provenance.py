"""Where a converted file comes from."""

from __future__ import annotations

import datetime
import importlib.metadata
from pathlib import Path
from typing import Any

from .files import sha256_of_file

RECORDED = ("neural-lam-anemoi", "neural-lam", "anemoi-models", "anemoi-training", "torch")


def record(source: Path, kind: str) -> dict[str, Any]:
    """What is known about ``source`` now: its kind, name and SHA-256, the versions at work, the time in UTC."""
    digest = sha256_of_file(source if source.is_file() else source / "bundle.json")
    return {
        "kind": kind,
        "name": source.name,
        "sha256": digest,
        "versions": {name: version for name in RECORDED if (version := _version(name))},
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
