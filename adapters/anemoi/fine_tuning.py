"""The configuration with which ``anemoi-training train`` goes on training a converted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from neural_lam_anemoi.bundle import ModelBundle

from .losses import POWERS
from .section import SECTION

GROUPS = {
    "dataloader": "neural_lam",
    "diagnostics": "neural_lam",
    "system": "example",
    "graph": "existing",
    "task": "neural_lam",
    "training": "neural_lam",
}
"""Configuration groups, ours (config/) and Anemoi's, on which this one builds."""
INPUTS = {"graph": "graph.pt", "warm_start": "last.ckpt"}


def write_configuration(bundle: ModelBundle, model: dict[str, Any], path: Path, place: Path) -> None:
    """Write a primary Hydra configuration; dataset, its dates and the output directory are left to the command line.

    Parameters
    ----------
    bundle : ModelBundle
    model : dict
        The configuration in the model's checkpoint.
    path : Path
        File to write.
    place : Path
        Where ``graph.pt`` and ``last.ckpt`` will be.
    """
    ours = model["model"][SECTION]
    loss = {"name": bundle.loss.name if bundle.loss.name in POWERS else "wmse"}
    content = {
        "defaults": [*({group: choice} for group, choice in GROUPS.items()), "_self_"],
        "config_validation": False,  # Anemoi's schemas know no models but its own
        "system": {"input": {name: str(place.resolve() / file) for name, file in INPUTS.items()}},
        "data": model["data"],
        "model": model["model"] | {SECTION: ours | {"loss": ours["loss"] | loss}},
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
