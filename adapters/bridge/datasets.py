"""neural-lam datastores as Anemoi datasets.

Each date t of the dataset holds the state at t and the forcing window round t+1, one variable per forcing and offset, so
that Anemoi's pair of input dates carries all that neural-lam's sample does.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anemoi.datasets.compat import zarr_open
from anemoi.utils.dates import frequency_to_string
from numpy.typing import NDArray
from tqdm import tqdm

from neural_lam_anemoi.adapters.anemoi.dataset import ATTRIBUTE, BOUNDARY, COORDINATES
from neural_lam_anemoi.adapters.anemoi.section import HOST, host_text
from neural_lam_anemoi.adapters.neural_lam.arguments import kept_configuration
from neural_lam_anemoi.adapters.neural_lam.checkpoint import (
    grid_coordinates,
    load_datastore,
    read_clamping,
    read_loss,
    read_statistics,
    read_variables,
)
from neural_lam_anemoi.bundle import Variables
from neural_lam_anemoi.bundle_io import data_manifest
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.files import complete_or_absent, refuse_existing
from neural_lam_anemoi.forcing import ForcingWindow, shifted_names
from neural_lam_anemoi.sharding.cuts import spatial_order

from .series import SPLITS, Interval, Series

FORMAT_VERSION = "0.22"


@dataclasses.dataclass(frozen=True)
class DatasetSummary:
    """What was written.

    Attributes
    ----------
    path : Path
    variables : list of str
    dates : tuple of datetime64
        First and last.
    num_dates, num_grid : int
    splits : dict of Interval
        ``start`` and ``end`` for Anemoi's dataloader that give exactly neural-lam's samples.
    """

    path: Path
    variables: list[str]
    dates: tuple[np.datetime64, np.datetime64]
    num_dates: int
    num_grid: int
    splits: dict[str, Interval]

    def lines(self) -> list[str]:
        """For a person."""
        head = f"{self.path}: {self.num_dates} dates, {self.dates[0]} to {self.dates[1]}, {self.num_grid} grid nodes"
        rows = [f"{split:<6} start: {part.start}  end: {part.end}" for split, part in self.splits.items()]
        return [head, f"variables: {', '.join(self.variables)}", "dataloader dates for neural-lam's samples:", *rows]


def write_dataset(
    config_path: Path,
    output: Path,
    *,
    past: int = 1,
    future: int = 1,
    member: int | None = None,
    ranks: int = 1,
    order: str = "datastore",
    force: bool = False,
) -> DatasetSummary:
    """Write an analysis-type datastore as a zarr dataset that ``anemoi.datasets.open_dataset`` reads.

    Parameters
    ----------
    config_path : Path
        neural-lam's configuration.
    output : Path
        Zarr directory to make.
    past, future : int
        Forcing window, as in neural-lam's training.
    member : int, optional
        Member of an ensemble datastore.
    ranks : int
        Chunks of the grid per date, so that so many readers each read their part alone.
    order : {"datastore", "rcb"}
        Order of the grid nodes: the datastore's, or one in which contiguous ranges are boxes, so that ranks exchange
        little; the model has to be converted with the same order.
    force : bool
        Replace an existing output.

    Raises
    ------
    InvalidInputError
        The output exists, the datastore is of another kind, it has no such member, or a split has a gap or too few dates.
    """
    refuse_existing(output, force)
    if ranks < 1 or past < 0 or future < 0:
        raise InvalidInputError(f"ranks {ranks}, past {past}, future {future}: ranks must be positive, the rest >= 0")
    source = _Source(*load_datastore(config_path), ForcingWindow(past, future), member, order)
    with complete_or_absent(output, force) as made:
        store = zarr_open(str(made), "w")
        source.write_fields(store, ranks)
        measured = source.write_data(store)
        source.write_statistics(store, measured)
    return source.summary(output)


class _Source:
    """A datastore on its way into a dataset."""

    def __init__(self, config: Any, datastore: Any, window: ForcingWindow, member: int | None, order: str) -> None:
        self.config, self.datastore, self.window, self.order = config, datastore, window, order
        self.coordinates = grid_coordinates(datastore)
        nodes = torch.arange(datastore.num_grid_points)
        self.rows = (spatial_order(self.coordinates) if order == "rcb" else nodes).numpy()
        self.series = Series(datastore, member)
        _check_member(datastore, member)
        _check_gaps(self.series)
        self.variables: Variables = read_variables(datastore)
        self.statistics = read_statistics(datastore, self.variables)
        step = self.series.step
        self.shifted = shifted_names(self.variables.forcing, window, step)
        self.names = [*self.variables.state, *self.shifted, *self.variables.static]
        if len(set(self.names)) != len(self.names):
            raise InvalidInputError(f"two variables would have the same name: {', '.join(self.names)}")
        self.splits = {split: self.series.sample_interval(split, window) for split in SPLITS}
        self.num_dates = len(self.series.dates) - window.future
        self.num_grid = datastore.num_grid_points
        self.frequency = frequency_to_string(step)

    def summary(self, output: Path) -> DatasetSummary:
        dates = self.series.dates
        return DatasetSummary(
            output, self.names, (dates[0], dates[self.num_dates - 1]), self.num_dates, self.num_grid, self.splits
        )

    def write_fields(self, store: Any, ranks: int) -> None:
        """Dates, coordinates, attributes and the empty data array."""
        chunks = (1, len(self.names), 1, math.ceil(self.num_grid / ranks))
        shape = (self.num_dates, len(self.names), 1, self.num_grid)
        data = store.create_dataset("data", shape=shape, chunks=chunks, dtype="float32", fill_value=np.nan)
        data.attrs["_ARRAY_DIMENSIONS"] = ["time", "variable", "ensemble", "cell"]
        _put(store, "dates", self.series.dates[: self.num_dates], "time")
        lon_lat = np.asarray(self.datastore.get_lat_lon("state"), dtype=np.float64)
        _put(store, "latitudes", lon_lat[self.rows, 1], "cell")
        _put(store, "longitudes", lon_lat[self.rows, 0], "cell")
        _put(store, COORDINATES, self.coordinates.numpy()[self.rows], "cell", "axis")
        _put(store, BOUNDARY, (self.datastore.boundary_mask.values == 1)[self.rows], "cell")
        store.attrs.update(self._attributes(shape, chunks))

    def _attributes(self, shape: tuple[int, ...], chunks: tuple[int, ...]) -> dict[str, Any]:
        dates, missing = self.series.dates, self.series.missing
        train = self.series.split_dates["train"]
        return {
            "version": FORMAT_VERSION,
            "layout": "gridded",
            "uuid": str(uuid.uuid4()),
            "frequency": self.frequency,
            "resolution": f"{self.num_grid} points",
            "field_shape": self._field_shape(),
            "variables": self.names,
            "variables_metadata": self._variables_metadata(),
            "constant_fields": sorted(self.variables.static),
            "dtype": "float32",
            "flatten_grid": True,
            "ensemble_dimension": 1,
            "missing_dates": [str(date) for date in dates[: self.num_dates][missing[: self.num_dates]]],
            "start_date": str(dates[0]),
            "end_date": str(dates[self.num_dates - 1]),
            "statistics_start_date": str(train[0]),
            "statistics_end_date": str(train[-1]),
            "allow_nans": bool(missing.any()),
            "data_request": {"grid": None, "area": None},
            "shape": list(shape),
            "chunks": list(chunks),
            ATTRIBUTE: self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        """What a model made from the dataset alone has to know; `read_facts` reads it."""
        made = (read_clamping(self.config), self.series.step, read_loss(self.config, self.datastore))
        return data_manifest(self.variables, self.statistics, self.window, *made) | {
            HOST: host_text(kept_configuration(self.config)),
            "order": self.order,
            "splits": {s: {"start": str(part.start), "end": str(part.end)} for s, part in self.splits.items()},
        }

    def _field_shape(self) -> list[int]:
        shape = getattr(self.datastore, "grid_shape_state", None)
        return [self.num_grid] if shape is None or self.order != "datastore" else [int(shape.x), int(shape.y)]

    def _variables_metadata(self) -> dict[str, dict[str, Any]]:
        units = self.variables.units
        metadata: dict[str, dict[str, Any]] = {name: {"units": units[name]} for name in self.variables.state}
        copies = [(name, offset) for name in self.variables.forcing for offset in self.window.offsets]
        for shifted, (name, offset) in zip(self.shifted, copies, strict=True):
            metadata[shifted] = {"units": units[name], "shifted": {"variable": name, "steps": offset}}
        for name in self.variables.static:
            metadata[name] = {"units": units[name], "constant_in_time": True}
        return metadata

    def write_data(self, store: Any) -> _Measured:
        """All dates, one at a time."""
        static = np.empty((0, self.num_grid), dtype=np.float32)
        if self.variables.static:
            fields = self.datastore.get_dataarray("static", split=None)
            static = fields.transpose("static_feature", "grid_index").values.astype(np.float32)
        train = set(self.series.split_dates["train"].tolist())
        measured = _Measured(static)
        for index in tqdm(range(len(self.series.dates)), desc="dataset", unit="date"):
            if self.series.missing[index]:
                measured.interrupt()
                continue
            state = self.series.state_row(index)
            forcing = self.series.forcing_row(index) if self.series.has_forcing else np.empty_like(state[:0])
            if self.series.dates[index].item() in train:
                measured.add(state, forcing)
            if index < self.num_dates:
                windows = self.series.window_rows(index, self.window) if self.series.has_forcing else forcing
                store["data"][index] = np.concatenate([state, windows, static])[:, np.newaxis, self.rows]
        return measured

    def write_statistics(self, store: Any, measured: _Measured) -> None:
        """neural-lam's statistics, and what it has none of from the training dates."""
        known = {name: values.double().numpy() for name, values in self.statistics.items()}
        smallest = dict.fromkeys(("state", "forcing"), float(np.finfo(np.float32).eps))
        smallest["static"] = torch.finfo(
            self.statistics["static_std"].dtype
        ).eps  # the datastore standardises it itself
        stdev = [known[f"{category}_std"].clip(least) for category, least in smallest.items()]
        mean = [known[f"{category}_mean"] for category in ("state", "forcing", "static")]
        self._put_columns(store, "", {"mean": mean, "stdev": stdev, **measured.ranges()})
        scale, none = known["state_std"], np.zeros(len(self.variables.static))
        tendency = measured.forcing_tendency()
        mean = [known["state_diff_mean"] * scale, tendency["mean"], none]
        stdev = [known["state_diff_std"] * scale, tendency["stdev"], none]
        prefix = f"statistics_tendencies_{self.frequency}_"
        self._put_columns(store, prefix, {"mean": mean, "stdev": stdev, **measured.tendency_ranges()})

    def _put_columns(self, store: Any, prefix: str, groups: dict[str, list[NDArray[np.float64]]]) -> None:
        for name, (state, forcing, static) in groups.items():
            values = np.concatenate([state, np.repeat(forcing, self.window.length), static])
            _put(store, prefix + name, values.astype(np.float64), "variable")


class _Measured:
    """Ranges of all variables and of their changes, and moments of the forcings' changes, over the training dates."""

    def __init__(self, static: NDArray[np.float32]) -> None:
        self._static = static
        self._values: list[_Running] = []
        self._changes: list[_Running] = []
        self._before: list[NDArray[np.float64]] | None = None

    def add(self, state: NDArray[np.float32], forcing: NDArray[np.float32]) -> None:
        """The next date."""
        now = [state.astype(np.float64), forcing.astype(np.float64)]
        if not self._values:
            self._values = [_Running(len(rows)) for rows in now]
            self._changes = [_Running(len(rows)) for rows in now]
        for i, rows in enumerate(now):
            self._values[i].add(rows)
            if self._before is not None:
                self._changes[i].add(rows - self._before[i])
        self._before = now

    def interrupt(self) -> None:
        """A date is missing: no change is taken across it."""
        self._before = None

    def ranges(self) -> dict[str, list[NDArray[np.float64]]]:
        static = self._static.astype(np.float64)
        low, high = (static.min(axis=1), static.max(axis=1)) if len(static) else (np.empty(0), np.empty(0))
        return {
            "minimum": [*(part.low for part in self._values), low],
            "maximum": [*(part.high for part in self._values), high],
        }

    def tendency_ranges(self) -> dict[str, list[NDArray[np.float64]]]:
        none = np.zeros(len(self._static))
        return {
            "minimum": [*(part.low for part in self._changes), none],
            "maximum": [*(part.high for part in self._changes), none],
        }

    def forcing_tendency(self) -> dict[str, NDArray[np.float64]]:
        return self._changes[1].moments()


class _Running:
    """Minimum, maximum, mean and standard deviation of rows that come in pieces (Chan et al., 1983)."""

    def __init__(self, rows: int) -> None:
        self.low, self.high = np.full(rows, np.inf), np.full(rows, -np.inf)
        self._count, self._mean, self._squares = 0, np.zeros(rows), np.zeros(rows)

    def add(self, values: NDArray[np.float64]) -> None:
        self.low, self.high = np.minimum(self.low, values.min(axis=1)), np.maximum(self.high, values.max(axis=1))
        count, mean = values.shape[1], values.mean(axis=1)
        total, apart = self._count + count, mean - self._mean
        self._squares += ((values - mean[:, np.newaxis]) ** 2).sum(axis=1) + apart**2 * self._count * count / total
        self._mean, self._count = self._mean + apart * count / total, total

    def moments(self) -> dict[str, NDArray[np.float64]]:
        return {"mean": self._mean, "stdev": np.sqrt(self._squares / max(self._count, 1))}


def _check_member(datastore: Any, member: int | None) -> None:
    if member is None:
        return
    count = datastore.get_dataarray("state", "train").sizes["ensemble_member"]
    if not 0 <= member < count:
        raise InvalidInputError(f"member {member} isn't in the datastore; choose one from 0 to {count - 1}")


def _check_gaps(series: Series) -> None:
    """neural-lam counts places, not times: its samples run across a gap, which Anemoi's can't."""
    for split, dates in series.split_dates.items():
        before = np.flatnonzero(np.diff(dates) != np.timedelta64(series.step, "s"))
        if before.size:
            ends = f"{dates[before[0]]} is followed by {dates[before[0] + 1]}"
            raise InvalidInputError(
                f"the {split} split isn't evenly spaced: {ends}, the step is {series.step}; end the split before the gap"
            )


def _put(store: Any, name: str, values: NDArray[Any], *dimensions: str) -> None:
    array = store.create_dataset(name, data=np.ascontiguousarray(values), shape=values.shape, dtype=values.dtype)
    array.attrs["_ARRAY_DIMENSIONS"] = list(dimensions)
