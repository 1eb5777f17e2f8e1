"""The notebooks run from beginning to end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from ..natural_earth import make_natural_earth
from .conftest import Converted, Trained

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook(
    path: Path,
    era5_project: Path,
    era5_dataset: Path,
    trained: Trained,
    converted: Converted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On what a demo leaves behind; nothing of it is changed."""
    demo = tmp_path / "demo"
    demo.mkdir()
    made = {"project": era5_project.parent, "era5.zarr": era5_dataset, "anemoi": converted("graph_lam") / "anemoi"}
    for name, target in made.items():
        (demo / name).symlink_to(target)
    checkpoints = demo / "runs" / "train" / "checkpoints"
    checkpoints.parent.mkdir(parents=True)
    checkpoints.symlink_to(trained("graph_lam").parent)
    for name, value in make_natural_earth(tmp_path / "cartopy").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DEMO", str(demo))
    monkeypatch.setenv("WORK", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=str(tmp_path))
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
