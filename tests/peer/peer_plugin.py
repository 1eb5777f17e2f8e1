"""A pytest plugin for neural-lam's suite: no downloads and, if asked, our classes in the place of its own.

``PEER_CLASSES=ours`` replaces the three predictors wherever the suite can get them from, before it is collected.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import neural_lam.models
import pooch
import pytest
from pytorch_lightning.core import saving

CLASSES = {"graph_lam": "GraphLAM", "hi_lam": "HiLAM", "hi_lam_parallel": "HiLAMParallel"}
built: dict[str, int] = dict.fromkeys(CLASSES.values(), 0)
"""Instances of our classes that the suite made."""


def pytest_configure(config: pytest.Config) -> None:
    """Replace what has to be replaced."""
    pooch.retrieve = lambda **_options: None  # the data are there already
    saving._OMEGACONF_AVAILABLE = False  # Anemoi brings it along; with it Lightning can't log neural-lam's arguments
    if os.environ.get("PEER_CLASSES") == "ours":
        for model, name in CLASSES.items():
            _replace(model, name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how often our classes were built."""
    terminalreporter.write_line(f"PEER built {sum(built.values())} of ours: {built}")


def _replace(model: str, name: str) -> None:
    import neural_lam_anemoi

    own, ours = getattr(neural_lam.models, name), getattr(neural_lam_anemoi, name)
    neural_lam.models.MODELS[model] = ours
    for module in (neural_lam.models, importlib.import_module(own.__module__)):
        setattr(module, name, ours)
    build = ours._build

    @functools.wraps(build)
    def counted(self: Any, *arguments: Any, **options: Any) -> None:
        built[type(self).__name__] += 1
        build(self, *arguments, **options)

    ours._build = counted
