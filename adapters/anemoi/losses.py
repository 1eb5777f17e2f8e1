"""neural-lam's losses in Anemoi's terms: a class and a weight for each variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from neural_lam_anemoi.bundle import standardisation
from neural_lam_anemoi.bundle_io import statistics_from_manifest
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.forcing import ForcingWindow

POWERS = {"wmse": 2, "mse": 2, "wmae": 1, "mae": 1}
"""Losses of neural-lam that Anemoi has too, and the power of the error in them."""
CLASSES = {1: "anemoi.training.losses.MAELoss", 2: "anemoi.training.losses.MSELoss"}


def loss_class(name: str) -> str:
    """Anemoi's class for neural-lam's loss ``name``.

    Raises
    ------
    InvalidInputError
        Anemoi has no such loss.
    """
    if name not in POWERS:
        raise InvalidInputError(f"model.neural_lam.loss.name is {name!r}; use one of {', '.join(POWERS)}")
    return CLASSES[POWERS[name]]


def loss_weights(manifest: Mapping[str, Any]) -> dict[str, float]:
    """Weight of each state variable's error in physical units, so that Anemoi's loss is neural-lam's up to a constant.

    neural-lam's ``metrics.wmse`` (0.7.0) divides the standardised error by ``diff_std / sqrt(weight)``, its ``mse``
    doesn't; both sum over variables and average over the interior, where Anemoi averages over variables as well.

    Parameters
    ----------
    manifest : mapping
        Of a bundle: ``loss``, ``statistics`` and ``variables`` are read.

    Raises
    ------
    InvalidInputError
        Anemoi has no such loss.
    """
    name = manifest["loss"]["name"]
    loss_class(name)
    statistics = statistics_from_manifest(dict(manifest))
    _, std = standardisation(statistics, ForcingWindow.from_dict(manifest["forcing_window"]), "state")
    scale = std.double()
    if name.startswith("w"):
        weights = torch.tensor(list(manifest["loss"]["weights"]), dtype=torch.float32)
        scale = scale * (statistics["state_diff_std"].float() / weights.sqrt()).double()  # float32 in neural-lam, too
    return dict(zip(manifest["variables"]["state"], (scale ** -POWERS[name]).tolist(), strict=True))
