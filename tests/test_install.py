"""A wheel made of the tree holds the whole package and works outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "neural_lam_anemoi"
WHERE = """
import neural_lam_anemoi, pathlib
import neural_lam_anemoi.adapters.anemoi.models, neural_lam_anemoi.adapters.neural_lam.predictors
import neural_lam_anemoi.adapters.bridge.demo as demo
for module in (neural_lam_anemoi, demo):
    print(module.__file__)
print(pathlib.Path(demo.__file__).with_name("era5_europe_1deg.nc").stat().st_size)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree, so that nothing is left in it."""
    place = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "demo", "tests", "benchmarks")
    shutil.copytree(ROOT, place / "tree", symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", place / "tree", "--no-deps", "--wheel-dir", place / "out"]
    subprocess.run([str(part) for part in command], check=True, timeout=300, capture_output=True)
    (made,) = (place / "out").glob("*.whl")
    return made


def run(python: Path, *arguments: object, cwd: Path) -> str:
    """Output of an interpreter that sees nothing of this one's environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    command = [str(part) for part in (python, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, cwd=cwd, env=clean)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tree = {
        str(path.relative_to(ROOT))
        for place in (PACKAGE, PACKAGE / "adapters", ROOT / "hydra_plugins")
        for pattern in ("**/*.py", "**/*.nc", "**/*.yaml", "py.typed")
        for path in place.glob(pattern)
    }
    assert len(tree) > 40
    package = {name for name in names if ".dist-info/" not in name}
    assert package == tree
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.parametrize("how", ["wheel", "checkout"])
def test_imports_from_the_wheel_and_from_the_checkout(how: str, wheel: Path, tmp_path: Path) -> None:
    """In an environment that borrows the dependencies of this one, but not the package."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    python = tmp_path / "venv" / "bin" / "python"
    borrowed = sysconfig.get_path("purelib")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")  # a .pth file inside the borrowed directory isn't followed
    if how == "wheel":
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
        subprocess.run(pip, check=True, timeout=300, capture_output=True)
    there = tmp_path if how == "wheel" else ROOT
    package, demo, size = run(python, "-c", WHERE, cwd=there).splitlines()
    expected = site if how == "wheel" else ROOT
    assert Path(package).parent == expected / "neural_lam_anemoi"
    assert Path(demo).is_relative_to(expected)
    assert int(size) == (ROOT / "adapters" / "bridge" / "era5_europe_1deg.nc").stat().st_size
    assert "convert" in run(python, "-m", "neural_lam_anemoi.cli", "--help", cwd=there)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_the_demo_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """Everything from the package index, outside the checkout."""
    venv.create(tmp_path / "venv", with_pip=True)
    bin_directory = tmp_path / "venv" / "bin"
    run(bin_directory / "python", "-m", "pip", "install", "--quiet", f"{wheel}[all]", cwd=tmp_path)
    said = run(bin_directory / "neural-lam-anemoi", "demo", "--output", "demo", cwd=tmp_path)
    assert "tensors and" in said and "equal" in said
    assert (tmp_path / "demo" / "graph_lam.png").stat().st_size > 10000
