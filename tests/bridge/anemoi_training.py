"""Stock ``anemoi-training train`` with the configurations that come with this package, as a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from neural_lam_anemoi.adapters.bridge.convert import read_any, write_any
from neural_lam_anemoi.adapters.bridge.processes import executable, run_command
from neural_lam_anemoi.adapters.bridge.sample import STATE
from neural_lam_anemoi.hetero import GRID

from .random_models import write_random_checkpoint

LOG = "training.log"
STOCK_TRAINING: dict[str, Any] = {
    "precision": "32",
    "metrics": {"datasets": {GRID: list(STATE)}},
    "scalers": {
        "datasets": {
            GRID: {
                "general_variable": {"weights": {"default": 1}},
                "node_weights": {
                    "_target_": "neural_lam_anemoi.adapters.anemoi.scalers.InteriorMean",
                    "precision": "32",
                },
            }
        }
    },
    "training_loss": {"datasets": {GRID: {"scalers": ["general_variable", "node_weights", "time_steps"]}}},
}
"""Stock Anemoi's, on the interior alone."""


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


def configure_stock_model(place: Path, config: Path, group: str, model: dict[str, Any], validation: bool) -> Path:
    """Configure a model of Anemoi's own ``model`` group, with changes, for the graph and variables of a converted one.

    Returns
    -------
    Path
        What `fine_tune` takes.
    """
    checkpoint = write_random_checkpoint(config, place / "random.ckpt", "graph_lam", "flat")
    write_any(read_any(checkpoint, config), "anemoi", place / "anemoi")
    path = place / "anemoi" / "fine_tuning.yaml"
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    mask = {"output_mask": content["model"]["output_mask"]}
    content["defaults"] = [entry for entry in content["defaults"] if entry != {"training": "neural_lam"}]
    content["defaults"][:0] = [{"model": group}, {"training": "single"}]
    content["system"]["input"]["warm_start"] = None
    content["data"]["datasets"][GRID]["processors"]["normalizer"]["config"]["default"] = "mean-std"
    content |= {"training": STOCK_TRAINING, "model": model | mask, "config_validation": validation}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return place / "anemoi"
