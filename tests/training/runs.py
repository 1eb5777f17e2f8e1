"""Runs of ``neural-lam-anemoi train`` on the ERA5 sample, and what is left of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .launcher import Launcher, Outcome


@dataclasses.dataclass
class Run:
    """What a run left in its directory."""

    place: Path
    outcome: Outcome

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Of every parameter, at the first step."""
        gradients: dict[str, Tensor] = torch.load(self.place / "gradients.pt")
        return gradients

    @property
    def losses(self) -> Tensor:
        """Of every step: the mean over all samples."""
        return torch.tensor(
            [float(line) for line in (self.place / "losses.txt").read_text().split()], dtype=torch.float64
        )

    @property
    def metrics(self) -> dict[str, float]:
        """What the evaluation logged."""
        metrics: dict[str, float] = json.loads((self.place / "metrics.json").read_text())
        return metrics

    @property
    def last(self) -> Path:
        """The last checkpoint."""
        return self.place / "runs" / "run" / "checkpoints" / "last.ckpt"

    @property
    def checkpoint(self) -> dict[str, Any]:
        """Content of the last checkpoint."""
        content: dict[str, Any] = torch.load(self.last, map_location="cpu", weights_only=False)
        return content


@dataclasses.dataclass
class Runs:
    """Starts them, with a model that is 64 wide and small in everything else."""

    launcher: Launcher
    config: Path

    def start(
        self,
        place: Path,
        *options: object,
        ranks: int = 1,
        model: str = "graph_lam",
        command: str = "train",
        **env: object,
    ) -> Run:
        """A run of neural-lam's own command if ``command`` is empty; later options win."""
        graph = "multiscale" if model == "graph_lam" else "hierarchical"
        given: list[object] = ["--config_path", self.config, "--model", model, "--graph", graph, "--hidden_dim", 64]
        given += ["--processor_layers", 1, "--batch_size", 4, "--epochs", 1, "--val_interval", 1000, "--num_workers", 0]
        given += ["--ar_steps_eval", 1, "--val_steps_to_log", 1, "--num_sanity_val_steps", 0, "--n_example_pred", 0]
        given += ["--runs_root", place / "runs", "--logger_run_name", "run", *options]
        if command:
            given = [command, *given, *(["--devices", ranks] if ranks > 1 else [])]
        else:
            env |= {"STOCK": 1, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": 1}
        return Run(place, self.launcher.run(place, *given, ranks=ranks, **env))

    def succeed(self, place: Path, *options: object, **more: Any) -> Run:
        """A run in which every rank ends with status 0."""
        run = self.start(place, *options, **more)
        assert not any(run.outcome.statuses), "\n".join(output[-2000:] for output in run.outcome.outputs)
        return run
