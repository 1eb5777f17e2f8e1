"""Stock ``anemoi-training train`` with the configurations that come with this package, as a process."""

from __future__ import annotations

from pathlib import Path

from neural_lam_anemoi.adapters.bridge.processes import executable, run_command

LOG = "training.log"


def train(dataset: Path, place: Path, *arguments: object) -> Path:
    """Train for an epoch of at most three batches, unless ``arguments`` say otherwise.

    Returns
    -------
    Path
        The directory of its checkpoints; what it said is ``place / LOG``.
    """
    overrides = [
        f"system.input.dataset={dataset}",
        f"system.output.root={place}",
        "system.hardware.accelerator=cpu",
        "dataloader.pin_memory=False",
        "dataloader.batch_size.training=1",
        "dataloader.num_workers={training: 1, validation: 1, test: 1}",  # each makes batches of its own samples alone
        "dataloader.limit_batches={training: 3, validation: 1, test: 1}",
        "training.max_epochs=1",
        "training.num_sanity_val_steps=0",
        "diagnostics.enable_progress_bar=False",
        f"hydra.run.dir={place / 'hydra'}",
    ]
    options = [str(argument) for argument in arguments if str(argument).startswith("--")]
    changes = [str(argument) for argument in arguments if not str(argument).startswith("--")]
    command = [executable("anemoi-training"), "train", *options, *overrides, *changes]
    run_command(command, place / LOG, place / "checkpoint")
    (last,) = (place / "checkpoint").glob("*/last.ckpt")
    return last.parent


def fine_tune(anemoi: Path, dataset: Path, place: Path, *arguments: object) -> Path:
    """`train` from what ``convert --to anemoi`` wrote into ``anemoi``."""
    return train(dataset, place, f"--config-dir={anemoi}", "--config-name=fine_tuning", *arguments)
