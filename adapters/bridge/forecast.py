"""The same forecast by neural-lam and by anemoi-inference, as arrays that can be compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
import xarray as xr
import yaml
from neural_lam.models import ARForecaster

from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore
from neural_lam_anemoi.bundle import ModelBundle

from .processes import executable, run_command
from .verify import own_predictor, weather_samples


@dataclasses.dataclass(frozen=True)
class Forecast:
    """States in physical units.

    Attributes
    ----------
    times : ndarray
        Valid times, ``(steps,)`` datetime64.
    states : ndarray
        Shape ``(steps, num_grid, num_state)``.
    truth : ndarray or None
        The datastore's states at these times, same shape.
    """

    times: np.ndarray
    states: np.ndarray
    truth: np.ndarray | None = None

    @property
    def start(self) -> np.datetime64:
        """Time of the last input."""
        step = self.times[1] - self.times[0]
        return self.times[0] - step


@torch.no_grad()
def neural_lam_forecast(bundle: ModelBundle, config_path: Path, steps: int, index: int = 0) -> Forecast:
    """Forecast with neural-lam's own classes from a sample of the test split; at least two steps."""
    config, datastore = load_datastore(config_path)
    initial, target, forcing, times = weather_samples(datastore, bundle, steps)[index]
    mean, std = bundle.standardisation("state")
    forcing_mean, forcing_std = bundle.standardisation("forcing")
    forecaster = ARForecaster(own_predictor(bundle, config, datastore), datastore)
    states, _ = forecaster(
        ((initial - mean) / std).unsqueeze(0),
        ((forcing - forcing_mean) / forcing_std).unsqueeze(0),
        ((target - mean) / std).unsqueeze(0),
    )
    physical = states[0].double() * std.double() + mean.double()
    return Forecast(times.numpy().astype("datetime64[ns]"), physical.numpy(), target.double().numpy())


def anemoi_forecast(
    checkpoint: Path,
    dataset: Path,
    start: np.datetime64,
    lead_time: str,
    names: tuple[str, ...],
    place: Path,
    ranks: int = 1,
) -> Forecast:
    """Forecast with ``anemoi-inference run`` from a dataset; its files stay in ``place``.

    Parameters
    ----------
    checkpoint, dataset : Path
        Inference checkpoint and zarr dataset.
    start : datetime64
        Time of the last input.
    lead_time : str
        For example ``24h``.
    names : tuple of str
        State variables, in the order in which they are wanted.
    place : Path
        Directory for the configuration, the log and the NetCDF file.
    ranks : int
        Processes that compute each step together.
    """
    place.mkdir(parents=True, exist_ok=True)
    output = place / "forecast.nc"
    config = {
        "checkpoint": str(checkpoint.resolve()),
        "date": str(start.astype("datetime64[s]")),
        "lead_time": lead_time,
        "device": "cpu",
        "input": {"dataset": {"dataset": str(dataset.resolve())}},
        "output": {"netcdf": {"path": str(output.resolve())}},
    }
    command = [executable("anemoi-inference"), "run", str(place / "inference.yaml")]
    if ranks > 1:
        config["runner"] = "parallel"
        command = [executable("torchrun"), "--nproc_per_node", str(ranks), *command]
    (place / "inference.yaml").write_text(yaml.safe_dump(config))
    run_command(command, place / "inference.log", output)
    return read_netcdf(output, names, start)


def read_netcdf(path: Path, names: tuple[str, ...], start: np.datetime64) -> Forecast:
    """The steps after ``start`` in what anemoi-inference's NetCDF output wrote."""
    with xr.open_dataset(path) as content:
        times = content["time"].values.astype("datetime64[ns]")
        after = times > start
        states = np.stack([content[name].values[after] for name in names], axis=-1)
    return Forecast(times[after], states.astype(np.float64))
