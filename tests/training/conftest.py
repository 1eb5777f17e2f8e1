"""One launcher for all tests of training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..natural_earth import make_natural_earth
from .launcher import Launcher
from .runs import Runs


@pytest.fixture(scope="session")
def runs(era5_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Starts runs on the ERA5 sample."""
    with Launcher(make_natural_earth(tmp_path_factory.mktemp("cartopy"))) as launcher:
        yield Runs(launcher, era5_project)
