"""The same sample through neural-lam's own network and through Anemoi's model object."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
from neural_lam.models import MODELS
from neural_lam.train_model import build_predictor
from neural_lam.weather_dataset import WeatherDataset
from torch import Tensor

from neural_lam_anemoi.adapters.anemoi.checkpoint import build_interface
from neural_lam_anemoi.adapters.anemoi.variables import dataset_variables
from neural_lam_anemoi.adapters.neural_lam.checkpoint import datastore_rows, load_datastore
from neural_lam_anemoi.bundle import ModelBundle
from neural_lam_anemoi.bundle_io import manifest
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.hetero import GRID, to_hetero

TOLERANCE = 1e-4
"""Largest difference after one step, in standard deviations of the variable."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Largest differences between two forecasts of one step, by variable."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    standardised: tuple[float, ...]
    physical: tuple[float, ...]

    def lines(self) -> list[str]:
        """A table for a person."""
        rows = zip(self.names, self.units, self.standardised, self.physical, strict=True)
        head = f"{'variable':<16} {'std. deviations':>16} {'units':>14}"
        return [head, *(f"{name:<16} {std:>16.2e} {value:>14.2e} {unit}" for name, unit, std, value in rows)]

    def require_agreement(self) -> None:
        """Raise `InvalidInputError`, naming the variables, where a difference is above `TOLERANCE` or not a number."""
        apart = [
            f"{name} by {value:.2e}"
            for name, value in zip(self.names, self.standardised, strict=True)
            if not value <= TOLERANCE
        ]
        if apart:
            raise InvalidInputError(
                f"verification failed: forecasts differ by more than {TOLERANCE} standard deviations: {', '.join(apart)}"
            )


@dataclasses.dataclass(frozen=True)
class Sample:
    """One sample of a datastore in physical units: states ``(2, N, state)``, windowed forcing and static fields."""

    states: Tensor
    forcing: Tensor
    static: Tensor


def compare(source: ModelBundle, converted: ModelBundle, config_path: Path) -> Comparison:
    """Forecast one step with neural-lam's own class from ``source`` and with Anemoi from ``converted``.

    Parameters
    ----------
    source, converted : ModelBundle
    config_path : Path
        neural-lam's configuration; the first test sample of its datastore is used.

    Returns
    -------
    Comparison
        Over all grid nodes: neither side has overwritten the boundary yet.
    """
    config, datastore = load_datastore(config_path)
    sample, rows = read_sample(datastore, source), datastore_rows(converted, datastore)
    ours = neural_lam_step(own_predictor(source, config, datastore), source, sample)[rows]
    theirs = anemoi_step(converted, Sample(sample.states[:, rows], sample.forcing[rows], sample.static[rows]))
    std = source.statistics["state_std"].double()
    physical = (ours - theirs).abs().amax(dim=0)
    names = source.variables.state
    return Comparison(
        names=names,
        units=tuple(source.variables.units.get(name, "") for name in names),
        standardised=tuple((physical / std).tolist()),
        physical=tuple(physical.tolist()),
    )


def weather_samples(datastore: Any, bundle: ModelBundle, steps: int) -> WeatherDataset:
    """neural-lam's dataset over the test split, for forecasts of so many steps with the bundle's forcing window."""
    window = bundle.forcing_window
    return WeatherDataset(
        datastore,
        split="test",
        ar_steps=steps,
        num_past_forcing_steps=window.past,
        num_future_forcing_steps=window.future,
    )


def read_sample(datastore: Any, bundle: ModelBundle, index: int = 0) -> Sample:
    """A sample of the test split, as neural-lam's ``WeatherDataset`` gives it, in the datastore's order of nodes."""
    states, _, forcing, _ = weather_samples(datastore, bundle, steps=1)[index]
    in_datastore = torch.argsort(datastore_rows(bundle, datastore))
    return Sample(states, forcing[0], bundle.fields.static.float()[in_datastore])


def own_predictor(bundle: ModelBundle, config: Any, datastore: Any) -> Any:
    """neural-lam's own class, on the datastore's graph, with the bundle's weights."""
    kept = bundle.host.get("neural_lam")
    if kept is None:
        raise InvalidInputError("the source holds no arguments of neural-lam, so its own class can't be built")
    arguments = argparse.Namespace(**kept["hyper_parameters"]["args"].stub_state)
    predictor = build_predictor(MODELS[arguments.model], arguments, config, datastore)
    predictor.load_state_dict(bundle.weights, strict=True)
    return predictor.eval()


@torch.no_grad()
def neural_lam_step(predictor: Any, bundle: ModelBundle, sample: Sample) -> Tensor:
    """One step of a neural-lam predictor: physical units in and out, ``(N, state)`` float64."""
    mean, std = bundle.standardisation("state")
    forcing_mean, forcing_std = bundle.standardisation("forcing")
    older, newer = ((sample.states - mean) / std).unsqueeze(1)
    state, _ = predictor(newer, older, ((sample.forcing - forcing_mean) / forcing_std).unsqueeze(0))
    return state[0].double() * std.double() + mean.double()


@torch.no_grad()
def anemoi_step(bundle: ModelBundle, sample: Sample) -> Tensor:
    """One step of Anemoi's model object through its ``predict_step``: physical units, ``(N, state)`` float64."""
    interface, _ = build_interface(bundle, to_hetero(bundle.graph, bundle.fields))
    constant = torch.cat([sample.forcing, sample.static], dim=-1).expand(2, -1, -1)
    batch = {GRID: torch.cat([sample.states, constant], dim=-1).unsqueeze(0)}
    assert batch[GRID].shape[-1] == len(dataset_variables(manifest(bundle)))
    return interface.eval().predict_step(batch)[GRID].reshape(bundle.graph.num_grid, -1).double()
