"""Every input of a converted model matters, and to the same degree on both sides.

The weights are random and the networks' increments of unit scale, so that no model passes by ignoring its inputs.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from torch import Tensor

from neural_lam_anemoi.adapters.bridge import sample as era5
from neural_lam_anemoi.adapters.bridge.convert import Conversion, convert, read_any
from neural_lam_anemoi.adapters.bridge.verify import TOLERANCE, Sample, neural_lam_step, own_predictor, read_sample
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore
from neural_lam_anemoi.bundle import ModelBundle
from neural_lam_anemoi.hetero import GRID

from .conftest import GRAPHS
from .random_models import write_random_checkpoint

FORCING, STATIC = ("toa", "cloud"), ("lsm", "height")

Step = Callable[[Sample], Tensor]


@pytest.fixture(scope="module")
def rich_project(era5_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The ERA5 project with two forcings and two static fields, so that their order shows."""
    plain = era5._raw_dataset

    def raw_dataset(path: Path) -> xr.Dataset:
        raw = plain(path)
        raw["cloud"] = (raw["t2m"] - raw["t2m"].mean()).transpose(*raw["toa"].dims) * raw["lsm"]
        raw["height"] = 0 * raw["lsm"] + raw["y"] * raw["x"]
        raw.to_zarr(path, mode="w", consolidated=True)
        return raw

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(era5, "_raw_dataset", raw_dataset)
        patch.setattr(era5, "FORCING", FORCING)
        patch.setattr(era5, "STATIC", STATIC)
        config = era5.make_era5_project(tmp_path_factory.mktemp("rich"), clamp=True)
    shutil.copytree(era5_project.parent / "graph", config.parent / "graph")
    yield config


@dataclasses.dataclass(frozen=True)
class Sides:
    """One model in both hosts: functions from a sample to the next state, in standard deviations."""

    bundle: ModelBundle
    sample: Sample
    neural_lam: Step
    anemoi: Step


def both_sides(model: str, config: Path, place: Path) -> Sides:
    """neural-lam's own class with the weights of a checkpoint, and what Anemoi unpickles of the converted one."""
    checkpoint = write_random_checkpoint(config, place / "random.ckpt", model, GRAPHS[model])
    convert(Conversion(checkpoint, "anemoi", place / "anemoi", config, verify=True))
    bundle = read_any(checkpoint, config)
    neural_lam_config, datastore = load_datastore(config)
    predictor = own_predictor(bundle, neural_lam_config, datastore)
    interface = torch.load(place / "anemoi" / "inference-last.ckpt", weights_only=False).eval()
    static_mean, static_std = (
        datastore.get_standardization_dataarray("static")[f"static_{k}"] for k in ("mean", "std")
    )
    std = bundle.statistics["state_std"].double()

    def in_neural_lam(sample: Sample) -> Tensor:
        standardised = (sample.static - torch.tensor(static_mean.values)) / torch.tensor(static_std.values)
        predictor.grid_static_features = standardised.float()
        return neural_lam_step(predictor, bundle, sample) / std

    def in_anemoi(sample: Sample) -> Tensor:
        constant = torch.cat([sample.forcing, sample.static], dim=-1).expand(2, -1, -1)
        batch = {GRID: torch.cat([sample.states, constant], dim=-1).unsqueeze(0)}
        with torch.no_grad():
            return interface.predict_step(batch)[GRID].reshape(len(sample.static), -1).double() / std

    return Sides(bundle, read_sample(datastore, bundle), in_neural_lam, in_anemoi)


def perturbations(sides: Sides) -> dict[str, Sample]:
    """The sample with one input moved by one standard deviation, for every input there is."""
    sample, bundle = sides.sample, sides.bundle
    made = {}
    for kind, names in (("forcing", FORCING), ("static", STATIC)):
        std = bundle.standardisation(kind)[1]
        columns = getattr(sample, kind).shape[1]
        per_variable = columns // len(names)
        for column in range(columns):
            values = getattr(sample, kind).clone()
            values[:, column] += std[column]
            name = f"{names[column // per_variable]} {column % per_variable}"
            made[name] = dataclasses.replace(sample, **{kind: values})
    std = bundle.standardisation("state")[1]
    for column, name in enumerate(bundle.variables.state):
        for time in (0, 1):
            values = sample.states.clone()
            values[time, :, column] += std[column]
            made[f"{name} at {time}"] = dataclasses.replace(sample, states=values)
    on_boundary = sample.states.clone()
    on_boundary[:, bundle.fields.boundary] += std
    made["boundary"] = dataclasses.replace(sample, states=on_boundary)
    return made


@pytest.mark.parametrize("model", GRAPHS)
def test_every_input_moves_both_sides_alike(model: str, rich_project: Path, tmp_path: Path) -> None:
    sides = both_sides(model, rich_project, tmp_path)
    before = sides.neural_lam(sides.sample), sides.anemoi(sides.sample)
    assert (before[0] - before[1]).abs().max() <= TOLERANCE
    increments = before[0] - sides.sample.states[1].double() / sides.bundle.statistics["state_std"].double()
    assert (increments.std(dim=0) > 0.01).all()
    moved = perturbations(sides)
    assert len(moved) == 6 + 2 + 10 + 1
    interior = ~sides.bundle.fields.boundary
    for name, sample in moved.items():
        ours, theirs = sides.neural_lam(sample) - before[0], sides.anemoi(sample) - before[1]
        # by how much the next state moves where it isn't just the moved value itself that comes through
        seen: Any = ours[interior] if name == "boundary" else ours
        assert seen.abs().max() >= 10 * TOLERANCE, name
        assert (ours - theirs).abs().max() <= TOLERANCE, name
