"""The main job on real weather: a model trained in neural-lam forecasts in Anemoi and comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neural_lam_anemoi.bundle import ModelBundle
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.files import refuse_existing
from neural_lam_anemoi.weights import Stub, read_torch_file

from .convert import Conversion, convert, read_any
from .datasets import write_dataset
from .drawing import draw_forecasts
from .forecast import Forecast, anemoi_forecast, neural_lam_forecast
from .processes import python_module, run_command
from .sample import make_era5_project, make_graph

STEPS = 4
LEAD_TIME = "24h"
DRAWN = ("t2m", "msl")
ALLOWED = {1: 1e-4, STEPS: 1e-3}
"""Largest interior difference, in standard deviations, after so many steps."""
GRAPHS = {"graph_lam": ("multiscale", "graphcast"), "hi_lam": ("hierarchical", "hierarchical")}
GRAPHS["hi_lam_parallel"] = GRAPHS["hi_lam"]
TRAINING = {"hidden_dim": 64, "processor_layers": 2, "batch_size": 1, "epochs": 3, "lr": 0.001}


def run_demo(output: Path, model: str = "graph_lam", force: bool = False) -> None:
    """Train, convert, forecast on both sides, convert back, compare and draw; print a table.

    Parameters
    ----------
    output : Path
        Directory that keeps everything: project, checkpoints, dataset, forecast, ``<model>.png``.
    model : {"graph_lam", "hi_lam", "hi_lam_parallel"}
    force : bool
        Replace what an earlier demo left there.

    Raises
    ------
    InvalidInputError
        A stage failed, forecasts differ by more than `ALLOWED`, or something came back changed.
    """
    refuse_existing(output, force)
    if output.exists():
        shutil.rmtree(output)
    stages = Stages()
    config, trained = _train(output, model, stages)
    with stages("convert to Anemoi"):
        convert(Conversion(trained, "anemoi", output / "anemoi", config))
        bundle = read_any(trained, config)
    with stages("write the Anemoi dataset"):
        write_dataset(config, output / "era5.zarr")
    with stages("forecast in neural-lam"):
        ours = neural_lam_forecast(bundle, config, STEPS)
    with stages("forecast in Anemoi"):
        checkpoint, names = output / "anemoi" / "inference-last.ckpt", bundle.variables.state
        theirs = anemoi_forecast(checkpoint, output / "era5.zarr", ours.start, LEAD_TIME, names, output / "inference")
    with stages("convert back and compare"):
        convert(Conversion(output / "anemoi" / "last.ckpt", "neural-lam", output / "back.ckpt"))
        compared = require_identical(read_torch_file(trained), read_torch_file(output / "back.ckpt"))
    with stages("draw"):
        draw_forecasts(output / f"{model}.png", bundle, ours, theirs, DRAWN)
    differences = interior_differences(bundle, ours, theirs)
    print(*_report(bundle, ours, differences, compared, stages), sep="\n")
    _require_agreement(differences / bundle.statistics["state_std"].double().numpy())
    print(f"\nmaps: {output / f'{model}.png'}")


def _train(place: Path, model: str, stages: Stages) -> tuple[Path, Path]:
    graph, archetype = GRAPHS[model]
    with stages("build the datastore from ERA5"):
        config = make_era5_project(place / "project")
    with stages(f"make the graph ({archetype})"):
        make_graph(config, graph, archetype)
    trained = place / "runs" / "train" / "checkpoints" / "last.ckpt"
    options = [part for name, value in TRAINING.items() for part in (f"--{name}", str(value))]
    with stages(f"train {model} in neural-lam"):
        command = [*python_module("neural_lam.train_model"), "--config_path", config, "--model", model]
        command += ["--graph", graph, *options, "--num_workers", "0", "--ar_steps_eval", "1"]
        command += ["--val_steps_to_log", "1", "--num_sanity_val_steps", "0"]
        command += ["--runs_root", place / "runs", "--logger_run_name", "train"]
        run_command(command, place / "train.log", trained)
    return config, trained


class Stages:
    """Names and seconds of what was done; each is announced when it begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        print(f"[{len(self.seconds) + 1}] {name} …", end="", flush=True)
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin
        print(f" {self.seconds[name]:.1f} s", flush=True)


def interior_differences(bundle: ModelBundle, ours: Forecast, theirs: Forecast) -> np.ndarray:
    """Largest differences on the interior, in physical units: shape ``(steps, num_state)``."""
    if not np.array_equal(ours.times, theirs.times):
        raise InvalidInputError(f"the forecasts are for different times: {ours.times} and {theirs.times}")
    interior = ~bundle.fields.boundary.numpy()
    return np.abs(ours.states - theirs.states)[:, interior].max(axis=1)


@dataclasses.dataclass(frozen=True)
class Identical:
    """How much was compared and found equal."""

    tensors: int
    values: int


def require_identical(first: Any, second: Any, place: str = "") -> Identical:
    """Compare two nests of containers, tensors and values; order of dictionaries and dtypes count.

    Raises
    ------
    InvalidInputError
        Naming the place of the first difference.
    """
    if type(first).__name__ != type(second).__name__:
        raise InvalidInputError(f"{place} came back as {type(second).__name__}, it was {type(first).__name__}")
    if isinstance(first, torch.Tensor):
        if first.dtype != second.dtype or not torch.equal(first, second):
            raise InvalidInputError(f"{place} came back changed")
        return Identical(1, 0)
    children = _children(first), _children(second)
    if children[0] is None or children[1] is None:
        if first != second and not (first != first and second != second):
            raise InvalidInputError(f"{place} came back as {second!r}, it was {first!r}")
        return Identical(0, 1)
    if [key for key, _ in children[0]] != [key for key, _ in children[1]]:
        raise InvalidInputError(f"{place} came back with other keys")
    parts = [
        require_identical(one, two, f"{place}/{key}")
        for (key, one), (_, two) in zip(children[0], children[1], strict=True)
    ]
    return Identical(sum(part.tensors for part in parts), sum(part.values for part in parts))


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, Stub):
        return [("type", value.stub_name), ("arguments", value.stub_args), ("state", value.stub_state)]
    if isinstance(value, dict):
        return sorted(value.items(), key=lambda item: str(item[0])) if "state_dict" in value else list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else None


def _report(
    bundle: ModelBundle, ours: Forecast, differences: np.ndarray, compared: Identical, stages: Stages
) -> list[str]:
    std = bundle.statistics["state_std"].double().numpy()
    hours = [(when - ours.start) / np.timedelta64(1, "h") for when in ours.times]
    head = f"{'variable':<10}" + "".join(f"{f'+{hour:.0f} h':>24}" for hour in hours)
    lines = ["", "largest interior difference between neural-lam and Anemoi: units (standard deviations)", head]
    for column, name in enumerate(bundle.variables.state):
        cells = (
            f"{value:.1e} {bundle.variables.units.get(name, '')} ({value / std[column]:.1e})"
            for value in differences[:, column]
        )
        lines.append(f"{name:<10}" + "".join(f"{cell:>24}" for cell in cells))
    lines.append(f"there and back: {compared.tensors} tensors and {compared.values} values equal")
    lines.append("seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.seconds.items()))
    return lines


def _require_agreement(standardised: np.ndarray) -> None:
    for steps, allowed in ALLOWED.items():
        worst = float(standardised[:steps].max())
        if not worst <= allowed:
            raise InvalidInputError(
                f"forecasts differ by {worst:.1e} standard deviations after {steps} steps, allowed is {allowed}"
            )
