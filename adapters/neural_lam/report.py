"""What a run says of itself: how it is spread when it starts, what a step took when the first is done."""

from __future__ import annotations

import resource
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_only

from neural_lam_anemoi.plan import MEGABYTE
from neural_lam_anemoi.sharding.costs import FLOAT32

from .estimate import Expected
from .predictors import Predictor

KIBIBYTE = 1024
"""Unit in which the system gives a process's largest size."""


class Report(Callback):
    """Two or three lines on rank 0.

    Parameters
    ----------
    expected : Expected
        Of a rank.
    choice : str, optional
        Why this strategy, if it wasn't the user's choice.
    """

    def __init__(self, expected: Expected, choice: str | None = None) -> None:
        self.expected, self.choice = expected, choice
        self._said = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ranks, groups, strategy, number of parameters, memory that is planned for."""
        place: Any = pl_module.placement
        options: Any = pl_module.options
        if self.choice:
            say(f"train: {self.choice}")
        needed = self.expected.total_mb(options.strategy or "ddp", trainer.world_size)
        say(
            f"train: {trainer.world_size} ranks in {place.groups} groups of {options.num_gpus_per_model}, "
            f"strategy {options.strategy or 'of neural-lam'}, {self.expected.parameters_mb / FLOAT32:,.3f} million "
            f"parameters; a rank is expected to need {needed:,.0f} MB"
        )
        self._before = exchanged(self._predictor(pl_module))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """After the first step of all: the largest peak of memory, and the most that a rank received from its group."""
        if self._said:
            return
        self._said = True
        received = exchanged(self._predictor(pl_module)) - self._before
        peak, received = most([peak_memory(pl_module.device), received], pl_module.device)
        say(
            f"train: after the first step the fullest rank has had {peak:,.0f} MB; "
            f"{received:,.3f} MB received from its model group in the step ({self.expected.exchanged_mb:,.3f} expected at most)"
        )

    @staticmethod
    def _predictor(module: Any) -> Predictor:
        predictor: Predictor = module.forecaster.predictor
        return predictor


def exchanged(predictor: Predictor) -> float:
    """MB that this rank has received from its model group so far."""
    return predictor.sharding.group.received_bytes / MEGABYTE if predictor.sharding is not None else 0.0


@rank_zero_only
def say(line: str) -> None:
    """Print on rank 0."""
    print(line, flush=True)


def peak_memory(device: torch.device) -> float:
    """Most MB that this rank had at once: of its GPU, or of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEGABYTE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE / MEGABYTE


def most(values: list[float], device: torch.device) -> list[float]:
    """The largest of any rank, of each; every rank calls this."""
    largest = torch.tensor(values, device=device)
    if dist.is_initialized():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    found: list[float] = largest.tolist()
    return found
