"""neural-lam's evaluation of any Anemoi model that was trained on a dataset of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from loguru import logger
from neural_lam import train_model

from neural_lam_anemoi.adapters.anemoi.inference import load_inference_model
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore, read_variables
from neural_lam_anemoi.adapters.neural_lam.command import run_train_model
from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.files import complete_or_absent

from .predictor import AnemoiPredictor, forcing_window, read_columns

NAME = "anemoi"
"""What neural-lam's command calls the model."""
DECIDED = {
    *("graph", "restore_opt", "num_past_forcing_steps", "num_future_forcing_steps"),
    *(field.name for field in dataclasses.fields(Architecture)),
    *("devices", "num_nodes", "runs_root", "logger_run_name"),
}
"""Arguments of neural-lam's command that are decided by the checkpoint, by the output, or by there being one device."""


def evaluate(
    config_path: Path, checkpoint: Path, split: str, output: Path, force: bool = False, arguments: Sequence[str] = ()
) -> None:
    """Run ``neural_lam.train_model --eval`` with an Anemoi model in place of neural-lam's, on one device.

    Parameters
    ----------
    config_path : Path
        neural-lam's configuration.
    checkpoint : Path
        Anemoi's inference checkpoint; what is in it is executed.
    split : {"val", "test"}
    output : Path
        Directory for what neural-lam writes: metrics, plots.
    force : bool
        Replace an existing output.
    arguments : sequence of str
        More arguments of neural-lam's command.

    Raises
    ------
    InvalidInputError
        As `load_inference_model` and `AnemoiPredictor`; or the output exists, or an argument has no place here.
    """
    decided = sorted(DECIDED & {argument.partition("=")[0].lstrip("-") for argument in arguments})
    if decided:
        raise InvalidInputError(f"--{decided[0]}: decided by the checkpoint, --output or the one device; leave it out")
    with complete_or_absent(output, force, directory=True) as made:
        _, datastore = load_datastore(config_path)
        model = load_inference_model(checkpoint)
        columns = read_columns(model, read_variables(datastore), datastore.step_length)
        window = forcing_window(columns, model.input_steps)
        given = [*arguments, "--config_path", config_path, "--eval", split, "--model", NAME]
        given += ["--num_past_forcing_steps", window.past, "--num_future_forcing_steps", window.future]
        given += ["--runs_root", made.parent, "--logger_run_name", made.name]
        given += ["--devices", 0] if torch.cuda.is_available() else []

        class Predictor(AnemoiPredictor):
            def __init__(self, datastore: Any, **options: Any) -> None:
                super().__init__(datastore, model, **options)

        logger.disable(train_model.__name__)  # it warns that no checkpoint of its own is loaded
        with mock.patch.dict(train_model.MODELS, {NAME: Predictor}):
            run_train_model(given)
