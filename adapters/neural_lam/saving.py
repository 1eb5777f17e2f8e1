"""Checkpoint files that are complete or absent, and read without executing what is in them."""

from __future__ import annotations

import argparse
import fcntl
import pickle
from pathlib import Path
from typing import Any

import neural_lam.config
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.plugins.io import TorchCheckpointIO

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.files import complete_or_absent

from .checkpoint import CONFIG_TYPES


class CheckpointFiles(TorchCheckpointIO):
    """How Lightning writes and reads neural-lam's checkpoints."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write beside ``path``, then rename: whoever is killed meanwhile leaves the file that was there."""
        with complete_or_absent(Path(path), force=True) as made:
            torch.save(checkpoint, made)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read to the CPU: tensors, containers, and the types of neural-lam's configuration, nothing else.

        Raises
        ------
        InvalidInputError
            There is no such file, or it holds something else.
        """
        if not Path(path).is_file():
            raise InvalidInputError(f"--load: {path}: no such file")
        known = [argparse.Namespace, *(getattr(neural_lam.config, name) for name in CONFIG_TYPES)]
        try:
            with torch.serialization.safe_globals(known):
                content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InvalidInputError(f"--load: {path}: not a checkpoint of neural-lam ({reason})") from None
        if not isinstance(content, dict) or "state_dict" not in content:
            raise InvalidInputError(f"--load: {path}: not a checkpoint of neural-lam")
        return content


class OnlyRun(Callback):
    """Refuses to write where another run writes; the lock is gone when the process is, however it ends.

    Parameters
    ----------
    directory : Path
        Of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.lock = directory / ".running"
        self._held: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the lock on rank 0; if it is another's, all ranks raise `InvalidInputError`."""
        free = True
        if trainer.is_global_zero and self._held is None:
            self.lock.parent.mkdir(parents=True, exist_ok=True)
            self._held = self.lock.open("w")
            free = _locked(self._held)
        if not trainer.strategy.broadcast(free):
            raise InvalidInputError(f"{self.lock.parent}: another run writes there; choose another --logger_run_name")


def _locked(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
