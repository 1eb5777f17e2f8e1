"""One launcher for all tests of training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .launcher import Launcher
from .runs import Runs


@pytest.fixture(scope="session")
def runs(era5_project: Path) -> Iterator[Runs]:
    """Starts runs on the ERA5 sample."""
    with Launcher() as launcher:
        yield Runs(launcher, era5_project)
