"""Where results go: a table for people and JSON for programs, beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_report(directory: Path, name: str, report: dict[str, Any], text: str) -> None:
    """Print ``text`` and write it as ``name.md``, ``report`` as ``name.json``, into a directory made if needed."""
    print(text)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (directory / f"{name}.md").write_text(text)
