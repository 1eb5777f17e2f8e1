"""Which dataset variables a model reads and writes, from its manifest."""

from __future__ import annotations

import datetime
from typing import Any

from neural_lam_anemoi.bundle import Variables
from neural_lam_anemoi.forcing import ForcingWindow, shifted_names


def input_names(manifest: dict[str, Any]) -> dict[str, list[str]]:
    """Dataset variables by category, in the order of the network's columns.

    Parameters
    ----------
    manifest : dict
        Of a bundle.

    Returns
    -------
    dict
        ``state``, ``forcing`` (one shifted copy per variable and offset) and ``static``.
    """
    variables = Variables.from_dict(manifest["variables"])
    step = datetime.timedelta(seconds=manifest["time_step_seconds"])
    window = ForcingWindow(**manifest["forcing_window"])
    return {
        "state": list(variables.state),
        "forcing": shifted_names(list(variables.forcing), window, step),
        "static": list(variables.static),
    }


def dataset_variables(manifest: dict[str, Any]) -> list[str]:
    """All variables of the dataset, in the order in which ``neural-lam-anemoi dataset`` writes them."""
    return [name for group in input_names(manifest).values() for name in group]
