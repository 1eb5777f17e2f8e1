"""What a run says of itself: how it is spread when it starts, what a step took when the first is done."""

from __future__ import annotations

import resource
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_only

MEGABYTE = 1e6
KIBIBYTE = 1024
"""Unit in which the system gives a process's largest size."""


class Report(Callback):
    """Two lines on rank 0."""

    def __init__(self) -> None:
        self._said = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ranks, groups, strategy, number of parameters."""
        place: Any = pl_module.placement
        options: Any = pl_module.options
        count = sum(parameter.numel() for parameter in pl_module.parameters())
        say(
            f"train: {trainer.world_size} ranks in {place.groups} groups of {options.num_gpus_per_model}, "
            f"strategy {options.strategy or 'of neural-lam'}, {count:,} parameters"
        )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """After the first step of all: the largest peak of memory."""
        if not self._said:
            self._said = True
            say(f"train: after the first step the fullest rank has had {peak_memory(pl_module.device):,.0f} MB")


@rank_zero_only
def say(line: str) -> None:
    """Print on rank 0."""
    print(line, flush=True)


def peak_memory(device: torch.device) -> float:
    """Most MB that any rank had at once: of its GPU, or of the process on a CPU. Every rank calls this."""
    if device.type == "cuda":
        peak = float(torch.cuda.max_memory_allocated(device))
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
    most = torch.tensor(peak / MEGABYTE, device=device)
    if dist.is_initialized():
        dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)
