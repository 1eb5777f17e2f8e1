"""Checkpoints that stock neural-lam trained on the ERA5 sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neural_lam_anemoi.adapters.bridge.processes import python_module, run_command

from ..commands import run_process

GRAPHS = {"graph_lam": "multiscale", "hi_lam": "hierarchical", "hi_lam_parallel": "hierarchical"}

Trained = Callable[[str], Path]
Converted = Callable[[str], Path]

SAID = "said.txt"
"""Beside a converted model: what the command printed."""


@pytest.fixture(scope="session")
def trained(era5_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Gives a model's ``last.ckpt`` after an epoch in ``neural_lam.train_model``; trains it when it is first asked for."""
    runs = tmp_path_factory.mktemp("trained")

    def train(model: str) -> Path:
        checkpoint = runs / model / "checkpoints" / "last.ckpt"
        if not checkpoint.exists():
            command = [*python_module("neural_lam.train_model"), "--config_path", era5_project, "--model", model]
            command += ["--graph", GRAPHS[model], "--hidden_dim", 64, "--processor_layers", 2, "--epochs", 1]
            command += ["--batch_size", 4, "--num_workers", 0, "--ar_steps_eval", 1, "--val_steps_to_log", 1]
            command += ["--num_sanity_val_steps", 0, "--runs_root", runs, "--logger_run_name", model]
            run_command(command, runs / f"{model}.log", checkpoint)
        return checkpoint

    return train


@pytest.fixture(scope="session")
def converted(trained: Trained, era5_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Gives a directory in which ``anemoi/`` is what ``convert --to anemoi --verify`` made of a trained model."""
    places = tmp_path_factory.mktemp("converted")

    def convert(model: str) -> Path:
        place = places / model
        if not place.exists():
            options = ["--to", "anemoi", "--output", place / "anemoi", "--config_path", era5_project, "--verify"]
            said = run_process("convert", trained(model), *options)
            (place / SAID).write_text(said)
        return place

    return convert
