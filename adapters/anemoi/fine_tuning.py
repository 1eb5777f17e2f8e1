"""The configuration with which ``anemoi-training train`` goes on training a converted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from neural_lam_anemoi.bundle import ModelBundle
from neural_lam_anemoi.hetero import GRID, INTERIOR

GROUPS = {
    "dataloader": "native_grid",
    "diagnostics": "evaluation",
    "system": "example",
    "graph": "existing",
    "task": "forecaster",
    "training": "single",
}
"""Anemoi's own configuration groups, on which ours builds."""
INPUTS = {"graph": "graph.pt", "warm_start": "last.ckpt"}
SPLITS = ("training", "validation", "test")
POWERS = {"wmse": 2, "mse": 2, "wmae": 1, "mae": 1}
"""Losses of neural-lam that Anemoi has too, and the power of the error in them; any other is replaced by wmse."""
LOSSES = {1: "anemoi.training.losses.MAELoss", 2: "anemoi.training.losses.MSELoss"}

_BOUNDARY_IS_GIVEN = {"_target_": "anemoi.training.utils.masks.Boolean1DMask", "attribute_name": INTERIOR}
_INTERIOR_ONLY = {
    "_target_": "anemoi.training.losses.scalers.GraphNodeAttributeScaler",
    "nodes_attribute_name": INTERIOR,
    "norm": "unit-sum",
}


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
    loss = bundle.loss.name if bundle.loss.name in POWERS else "wmse"
    content = {
        "defaults": [*({group: choice} for group, choice in GROUPS.items()), "_self_"],
        "config_validation": False,  # Anemoi's schemas know no models but its own
        "system": {"input": {name: str(place.resolve() / file) for name, file in INPUTS.items()}},
        "data": model["data"],
        "model": model["model"] | {"keep_batch_sharded": True, "output_mask": _of_dataset(_BOUNDARY_IS_GIVEN)},
        "task": model["task"],
        "training": _training(loss, loss_weights(bundle, loss), bundle.variables.state),
        "dataloader": {
            "batch_size": dict.fromkeys(SPLITS, 1),
            "num_workers": dict.fromkeys(SPLITS, 2),
            **{split: _of_dataset({"start": "???", "end": "???"}) for split in SPLITS},
        },
        "diagnostics": {"plot": {"callbacks": []}, "log": {"mlflow": {"enabled": False, "tracking_uri": None}}},
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def loss_weights(bundle: ModelBundle, loss: str) -> dict[str, float]:
    """Weight of each state variable's error in physical units, so that Anemoi's loss is neural-lam's up to a constant.

    neural-lam's ``metrics.wmse`` (0.7.0) divides the standardised error by ``diff_std / sqrt(weight)``, its ``mse``
    doesn't; both sum over variables and average over the interior, where Anemoi averages over variables as well.
    """
    power = POWERS[loss]
    scale = bundle.statistics["state_std"].double()
    if loss.startswith("w"):
        scale = scale * bundle.statistics["state_diff_std"].double() / torch.tensor(bundle.loss.weights).double().sqrt()
    return dict(zip(bundle.variables.state, (scale**-power).tolist(), strict=True))


def _training(loss: str, weights: dict[str, float], names: tuple[str, ...]) -> dict[str, Any]:
    scalers = ["general_variable", "node_weights", "time_steps"]
    return {
        "precision": "32",
        "metrics": _of_dataset(list(names)),
        "variable_groups": _of_dataset({"default": "sfc"}),
        "scalers": _of_dataset(
            {"general_variable": {"weights": {"default": 1} | weights}, "node_weights": _INTERIOR_ONLY}
        ),
        "training_loss": _of_dataset({"_target_": LOSSES[POWERS[loss]], "scalers": scalers}),
    }


def _of_dataset(content: Any) -> dict[str, Any]:
    return {"datasets": {GRID: content}}
