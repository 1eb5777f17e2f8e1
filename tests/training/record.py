"""Runs a command of neural-lam's or ours in a process of its own and keeps what its training does.

The directory RECORD then has ``losses.txt``, a line per step, ``gradients.pt``, every parameter's whole gradient at the
first step, and ``metrics.json``, what a test logged. If SGD is set, that learning rate and plain gradient descent replace
AdamW; LIMIT is the number of steps in an epoch, MEMORY that of megabytes which the process may have (``RLIMIT_DATA``). STOCK runs ``neural_lam.train_model``; otherwise the arguments are those
of ``neural-lam-anemoi``.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from neural_lam.models import ForecasterModule
from torch.distributed.tensor import DTensor

OPTIMIZERS = ForecasterModule.configure_optimizers


def place() -> Path:
    """Where to keep what is recorded."""
    return Path(os.environ["RECORD"])


def whole_gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Gradient that the optimizer is about to use; every rank calls this."""
    if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
        from deepspeed.utils import safe_get_full_grad

        return safe_get_full_grad(parameter) if parameter.requires_grad else None
    gradient = parameter.grad
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def keep_gradients(module: Any, _optimizer: Any) -> None:
    """Of the first step."""
    if module.trainer.global_step == 0:
        gradients = {name: whole_gradient(parameter) for name, parameter in module.named_parameters()}
        if module.trainer.is_global_zero:
            kept = {name: value.detach().cpu().clone() for name, value in gradients.items() if value is not None}
            torch.save(kept, place() / "gradients.pt")


def keep_loss(module: Any, outputs: Any, *_: Any) -> None:
    """Of every step: the mean over the ranks."""
    loss = module.trainer.strategy.reduce(outputs["loss"].detach().clone(), reduce_op="mean")
    if module.trainer.is_global_zero:
        with (place() / "losses.txt").open("a") as file:
            file.write(f"{float(loss)!r}\n")


def keep_metrics(module: Any) -> None:
    """Of the whole test."""
    if module.trainer.is_global_zero:
        logged = {name: float(value) for name, value in module.trainer.callback_metrics.items()}
        (place() / "metrics.json").write_text(json.dumps(logged))


def limit_steps(module: Any) -> None:
    """Of an epoch."""
    if "LIMIT" in os.environ:
        module.trainer.limit_train_batches = int(os.environ["LIMIT"])


def choose_optimizer(module: Any) -> Any:
    """neural-lam's, or plain gradient descent."""
    rate = os.environ.get("SGD")
    return torch.optim.SGD(module.parameters(), lr=float(rate)) if rate else OPTIMIZERS(module)


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments say; the exit status."""
    torch.set_num_threads(1)
    if "MEMORY" in os.environ:
        resource.setrlimit(resource.RLIMIT_DATA, (int(os.environ["MEMORY"]) * 10**6,) * 2)
    hooks = {
        "on_before_optimizer_step": keep_gradients,
        "on_train_batch_end": keep_loss,
        "on_test_end": keep_metrics,
        "on_fit_start": limit_steps,
        "configure_optimizers": choose_optimizer,
    }
    for name, hook in hooks.items():
        setattr(ForecasterModule, name, hook)
    if "STOCK" in os.environ:
        from neural_lam import train_model

        train_model.main.__wrapped__(list(arguments))
        return 0
    from neural_lam_anemoi import cli

    return cli.main(list(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
