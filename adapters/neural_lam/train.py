"""``neural_lam.train_model`` over several ranks: neural-lam's own main, with this package's classes in its names."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import neural_lam.metrics
import pytorch_lightning
import torch
from neural_lam import train_model

from .command import run_train_model
from .data import DataModule
from .engines import make_strategy
from .estimate import Expected, choose_strategy, device_memory, expect
from .forecaster import Forecaster
from .meta import Deferred
from .metrics import GridMean
from .module import Module
from .options import TrainingOptions
from .placement import check_group_size
from .predictors import PREDICTORS
from .report import Report
from .saving import CheckpointFiles, OnlyRun


def train(options: TrainingOptions, arguments: Sequence[str]) -> None:
    """Run neural-lam's command: train, or evaluate.

    Parameters
    ----------
    options : TrainingOptions
        How it is spread over ranks.
    arguments : sequence of str
        neural-lam's own arguments.

    Raises
    ------
    InvalidInputError
        Arguments that contradict each other, or don't fit the number of ranks, the graph or the checkpoint.
    """
    with _our_classes(options):
        run_train_model(arguments)


@contextlib.contextmanager
def _our_classes(options: TrainingOptions) -> Iterator[None]:
    grid_mean = GridMean()

    deferred = Deferred() if options.meta_init else None
    lightning, build = _Lightning(options), train_model.build_predictor

    def make_module(**given: Any) -> Module:
        lightning.module = module = Module(**given)
        module.options, module.grid_mean, module.deferred = options, grid_mean, deferred
        return module

    def build_predictor(*given: Any) -> Any:
        with contextlib.nullcontext() if deferred is None else deferred.building():
            return build(*given)

    ours: dict[str, Any] = {
        "MODELS": PREDICTORS,
        "build_predictor": build_predictor,
        "ARForecaster": Forecaster,
        "ForecasterModule": make_module,
        "WeatherDataModule": DataModule,
        "pl": lightning,
    }
    with contextlib.ExitStack() as run:
        run.enter_context(mock.patch.object(neural_lam.metrics, "mask_and_reduce_metric", grid_mean))
        for name, one in ours.items():
            run.enter_context(mock.patch.object(train_model, name, one))
        yield


class _Lightning:
    """``pytorch_lightning`` as neural-lam's main uses it, with a trainer that takes our strategies."""

    module: Module

    def __init__(self, options: TrainingOptions) -> None:
        self.options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(pytorch_lightning, name)

    def Trainer(self, **given: Any) -> pytorch_lightning.Trainer:
        """A trainer with our strategy and checkpoint files in place of neural-lam's choice."""
        if given["accelerator"] == "cpu":
            given["devices"] = count_processes(given["devices"])
        expected, choice = self._plan(given)
        given["strategy"] = make_strategy(self.module.options)
        given["plugins"] = [CheckpointFiles()]
        given["use_distributed_sampler"] = False
        directory = Path(given["default_root_dir"])
        given["callbacks"] = [*given["callbacks"], Report(expected, choice), OnlyRun(directory)]
        trainer = pytorch_lightning.Trainer(**given)
        check_group_size(self.options.num_gpus_per_model, trainer.world_size)
        return trainer

    def _plan(self, given: dict[str, Any]) -> tuple[Expected, str | None]:
        """What is expected of a rank; with ``auto``, the module's strategy is chosen by it, and why."""
        module = self.module
        expected = expect(module.forecaster.predictor, module.datastore, self.options, module.hparams.args)
        if self.options.sharding_strategy != "auto":
            return expected, None
        world = given["num_nodes"] * count_devices(given["devices"])
        chosen, reason = choose_strategy(expected, world, device_memory(given["accelerator"]))
        module.options = dataclasses.replace(self.options, sharding_strategy=chosen)
        return expected, reason


def count_devices(devices: str | int | list[int]) -> int:
    """How many devices of a node Lightning takes."""
    if isinstance(devices, str):
        return torch.cuda.device_count()
    return devices if isinstance(devices, int) else len(devices)


def count_processes(devices: str | list[int]) -> int:
    """How many processes ``--devices`` means on CPUs: a number, or as many as are named; else those already there."""
    if isinstance(devices, list):
        return devices[0] if len(devices) == 1 else len(devices)
    there = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE")
    return int(there) if there else 1
