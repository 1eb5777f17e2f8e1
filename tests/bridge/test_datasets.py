"""Datasets hold the datastore's own samples and statistics, and appear complete or not at all."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr
import yaml
from anemoi.datasets import open_dataset
from neural_lam.config import load_config_and_datastore
from neural_lam.datastore import DATASTORES
from neural_lam.datastore.mdp import MDPDatastore
from neural_lam.models import ForecasterModule
from neural_lam.weather_dataset import WeatherDataset

from neural_lam_anemoi.adapters.anemoi.dataset import ATTRIBUTE
from neural_lam_anemoi.adapters.bridge.datasets import write_dataset
from neural_lam_anemoi.adapters.bridge.processes import executable
from neural_lam_anemoi.adapters.bridge.series import SPLITS, Series
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.forcing import ForcingWindow

VARIABLES = ["t2m", "u10", "v10", "msl", "tp", "toa_p00h", "toa_p06h", "toa_p12h", "lsm"]
STATE, WINDOW, STATIC = slice(0, 5), slice(5, 8), slice(8, 9)
MEMBERS = 3
EPS = float(np.finfo(np.float32).eps)

Register = Callable[[type[MDPDatastore]], Path]


class EnsembleOfStates(MDPDatastore):
    """Members that differ in state and share the forcing."""

    differing: tuple[str, ...] = ("state",)

    def __init__(self, config_path: str | Path) -> None:
        super().__init__(config_path)
        self._boundary_mask = super().boundary_mask
        members = xr.DataArray(np.arange(MEMBERS, dtype=np.float64), dims="ensemble_member")
        self._ds = self._ds.assign({name: self._ds[name] + members for name in self.differing})
        self.is_ensemble, self.has_ensemble_forcing = True, "forcing" in self.differing

    @property
    def boundary_mask(self) -> xr.DataArray:
        """neural-lam 0.7.0 can't take one from a state with members."""
        return self._boundary_mask


class Ensemble(EnsembleOfStates):
    """Members that differ in state and forcing."""

    differing = ("state", "forcing")


Forecasts = type("Forecasts", (MDPDatastore,), {"is_forecast": True})


class Cut(MDPDatastore):
    """A datastore without some of its dates."""

    dates: ClassVar[dict[str, list[int]]]

    def get_dataarray(self, category: str, split: str | None, standardize: bool = False) -> xr.DataArray | None:
        values = super().get_dataarray(category, split, standardize)
        return values.isel(time=self.dates[split]) if values is not None and split in self.dates else values


def cut(name: str, **dates: list[int]) -> type[MDPDatastore]:
    """A `Cut` that keeps these dates of these splits."""
    return type(name, (Cut,), {"dates": dates})


GapBetweenSplits = cut("GapBetweenSplits", val=[1, 2, 3, 4, 5, 6])
GapInsideSplit = cut("GapInsideSplit", test=[0, 1, 2, 4, 5, 6, 7])
ShortSplit = cut("ShortSplit", val=[0, 1, 2])


class OverlappingSplits(MDPDatastore):
    """The first three dates of val belong to train too."""

    def get_dataarray(self, category: str, split: str | None, standardize: bool = False) -> xr.DataArray | None:
        values = super().get_dataarray(category, split, standardize)
        if split != "train" or values is None:
            return values
        more = super().get_dataarray(category, "val", standardize)
        return xr.concat([values, more.isel(time=slice(0, 3))], dim="time")


class WithoutForcing(MDPDatastore):
    """State and static fields alone."""

    def __init__(self, config_path: str | Path) -> None:
        super().__init__(config_path)
        self._ds = self._ds.drop_vars([name for name in self._ds.variables if str(name).startswith("forcing")])


class Constant(MDPDatastore):
    """Forcing, static field and one state variable don't vary."""

    def get_standardization_dataarray(self, category: str) -> xr.Dataset:
        statistics = super().get_standardization_dataarray(category).load()
        statistics[f"{category}_std"][0] = 0.0
        return statistics


class ClashOfNames(MDPDatastore):
    """A static field has the name of a shifted forcing."""

    def get_vars_names(self, category: str) -> list[str]:
        return ["toa_p06h"] if category == "static" else super().get_vars_names(category)


@pytest.fixture
def register(era5_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Register:
    """A neural-lam configuration of the ERA5 project that is read by another class."""

    def make(kind: type[MDPDatastore]) -> Path:
        monkeypatch.setitem(DATASTORES, kind.__name__, kind)
        content = yaml.safe_load(era5_project.read_text())
        datastore = era5_project.parent / content["datastore"]["config_path"]
        content["datastore"] = {"kind": kind.__name__, "config_path": str(datastore)}
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(content))
        return config

    return make


@pytest.fixture(scope="module")
def datastore(era5_project: Path) -> MDPDatastore:
    """The ERA5 project's."""
    return load_config_and_datastore(str(era5_project))[1]


def open_split(path: Path, split: str) -> Any:
    """The split as a user opens it, with the dates that the dataset itself names."""
    dates = json.loads((path / ".zattrs").read_text())[ATTRIBUTE]["splits"][split]
    return open_dataset(str(path), start=dates["start"], end=dates["end"])


def assert_samples_equal(path: Path, samples: WeatherDataset, indices: range | None = None) -> int:
    """Compare every sample bit for bit: number, dates, both inputs, targets, windows of each step, static fields."""
    opened = open_split(path, samples.split)
    steps, static = samples.ar_steps, samples.datastore.get_dataarray("static", None).values.astype(np.float32)
    indices = range(len(samples)) if indices is None else indices
    assert len(opened) - 1 - steps == len(indices) > 0
    num_state = samples.da_state.sizes["state_feature"]
    for first, index in enumerate(indices):
        initial, target, forcing, times = samples[index]
        rows = np.asarray(opened[first : first + 2 + steps])[:, :, 0].transpose(0, 2, 1)
        assert np.isfinite(rows).all()
        dates = opened.dates[first + 2 : first + 2 + steps]
        np.testing.assert_array_equal(dates, times.numpy().astype("datetime64[ns]"))
        end = num_state + forcing.shape[-1]
        np.testing.assert_array_equal(rows[:2, :, :num_state], initial.numpy())
        np.testing.assert_array_equal(rows[2:, :, :num_state], target.numpy())
        np.testing.assert_array_equal(rows[1:-1, :, num_state:end], forcing.numpy())
        np.testing.assert_array_equal(rows[:, :, end:], np.broadcast_to(static, (2 + steps, *static.shape)))
    return len(indices)


def fingerprint(path: Path) -> dict[str, str]:
    """Every file below a directory and what is in it."""
    files = sorted(part for part in path.rglob("*") if part.is_file())
    return {str(part.relative_to(path)): hashlib.sha256(part.read_bytes()).hexdigest() for part in files}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("split", SPLITS)
def test_samples(era5_dataset: Path, datastore: MDPDatastore, split: str, steps: int) -> None:
    assert_samples_equal(era5_dataset, WeatherDataset(datastore, split=split, ar_steps=steps))


@pytest.mark.parametrize(("past", "future"), [(0, 0), (3, 2), (0, 2), (3, 0)])
def test_samples_of_other_windows(
    era5_project: Path, datastore: MDPDatastore, tmp_path: Path, past: int, future: int
) -> None:
    summary = write_dataset(era5_project, tmp_path / "x.zarr", past=past, future=future)
    for split in SPLITS:
        options = {"num_past_forcing_steps": past, "num_future_forcing_steps": future}
        assert_samples_equal(summary.path, WeatherDataset(datastore, split=split, ar_steps=1, **options))


@pytest.mark.parametrize("kind", [GapBetweenSplits, OverlappingSplits, WithoutForcing])
def test_samples_of_other_datastores(register: Register, tmp_path: Path, kind: type[MDPDatastore]) -> None:
    config = register(kind)
    write_dataset(config, tmp_path / "x.zarr")
    assert set(open_dataset(str(tmp_path / "x.zarr")).missing) == ({13} if kind is GapBetweenSplits else set())
    for split in SPLITS:
        samples = WeatherDataset(load_config_and_datastore(str(config))[1], split=split, ar_steps=1)
        assert_samples_equal(tmp_path / "x.zarr", samples)


@pytest.mark.parametrize("kind", [Ensemble, EnsembleOfStates])
def test_samples_of_one_member(register: Register, tmp_path: Path, kind: type[MDPDatastore]) -> None:
    config, member = register(kind), 2
    write_dataset(config, tmp_path / "x.zarr", member=member)
    for split in SPLITS:
        samples = WeatherDataset(load_config_and_datastore(str(config))[1], split=split, ar_steps=1)
        assert_samples_equal(tmp_path / "x.zarr", samples, range(member, len(samples), MEMBERS))


def test_nothing_is_nan(era5_dataset: Path) -> None:
    """Not even the last date, whose window reaches beyond the data and which is a target alone."""
    opened = open_dataset(str(era5_dataset))
    assert len(opened) == 27
    assert np.isfinite(opened[:]).all()


def test_variables_and_coordinates(era5_dataset: Path, datastore: MDPDatastore) -> None:
    opened = open_dataset(str(era5_dataset))
    assert opened.variables == VARIABLES
    assert opened.frequency == datastore.step_length
    assert tuple(opened.field_shape) == (datastore.grid_shape_state.x, datastore.grid_shape_state.y)
    lon_lat = np.stack([opened.longitudes, opened.latitudes], axis=1)
    np.testing.assert_array_equal(lon_lat, datastore.get_lat_lon("state"))
    assert opened.latitudes.min() == -10 and opened.latitudes.max() == 80
    assert opened.constant_fields == ["lsm"]
    metadata = opened.variables_metadata
    assert metadata["toa_p12h"] == {"units": "W m**-2", "shifted": {"variable": "toa", "steps": 2}}
    assert metadata["lsm"] == {"units": "1", "constant_in_time": True}
    assert metadata["msl"] == {"units": "Pa"}


def test_statistics(era5_dataset: Path, datastore: MDPDatastore) -> None:
    """What neural-lam standardises with, in its own precision; the ranges are those of the training split."""
    written = open_dataset(str(era5_dataset)).statistics
    for category, columns in (("state", STATE), ("forcing", WINDOW), ("static", STATIC)):
        statistics = datastore.get_standardization_dataarray(category)
        mean, std = statistics[f"{category}_mean"].values, statistics[f"{category}_std"].values
        size = columns.stop - columns.start
        np.testing.assert_array_equal(written["mean"][columns], np.resize(mean, size))
        np.testing.assert_array_equal(written["stdev"][columns], np.resize(std, size))
        if category != "static":
            used = ForecasterModule._safe_std(std, EPS, category).numpy()
            np.testing.assert_array_equal(written["stdev"][columns].astype(np.float32), np.resize(used, size))
        train = datastore.get_dataarray(category, "train").astype(np.float32)
        axes = [dim for dim in train.dims if dim != f"{category}_feature"]
        np.testing.assert_array_equal(written["minimum"][columns], np.resize(train.min(axes).values, size))
        np.testing.assert_array_equal(written["maximum"][columns], np.resize(train.max(axes).values, size))


def test_statistics_of_tendencies(register: Register, tmp_path: Path) -> None:
    """The datastore's for the state, measured on the training split for forcings: not whole days, so none is zero."""
    config = register(OverlappingSplits)
    write_dataset(config, tmp_path / "x.zarr")
    datastore = load_config_and_datastore(str(config))[1]
    written = open_dataset(str(tmp_path / "x.zarr")).statistics_tendencies(datastore.step_length)
    state = datastore.get_standardization_dataarray("state")
    for name, kind in (("mean", "mean"), ("stdev", "std")):
        expected = state[f"state_diff_{kind}_standardized"] * state["state_std"]
        np.testing.assert_allclose(written[name][STATE], expected, rtol=1e-15)
    changes = {
        category: datastore.get_dataarray(category, "train").astype(np.float32).astype(np.float64).diff("time")
        for category in ("state", "forcing")
    }
    assert abs(changes["forcing"].mean()) > 1
    np.testing.assert_allclose(written["mean"][WINDOW], np.full(3, changes["forcing"].mean()), rtol=1e-9)
    np.testing.assert_allclose(written["stdev"][WINDOW], np.full(3, changes["forcing"].std()), rtol=1e-9)
    for name, reduce in (("minimum", np.min), ("maximum", np.max)):
        for category, columns in (("state", STATE), ("forcing", WINDOW)):
            expected = np.resize(reduce(changes[category].values, axis=(0, 1)), columns.stop - columns.start)
            np.testing.assert_array_equal(written[name][columns], expected)
    assert all(written[name][STATIC] == 0 for name in ("mean", "stdev", "minimum", "maximum"))


def test_standard_deviations_of_constants(register: Register, tmp_path: Path) -> None:
    """Never zero: what neural-lam divides by instead."""
    config = register(Constant)
    write_dataset(config, tmp_path / "x.zarr")
    stdev = open_dataset(str(tmp_path / "x.zarr")).statistics["stdev"]
    datastore = load_config_and_datastore(str(config))[1]
    np.testing.assert_array_equal(stdev[[0, 5, 6, 7]], np.full(4, EPS))
    fields, mean = datastore.get_dataarray("static", None), datastore.get_standardization_dataarray("static")
    standardised = datastore.get_dataarray("static", None, standardize=True)
    np.testing.assert_allclose((fields - mean["static_mean"]) / stdev[8], standardised, rtol=1e-12)


def test_ranks_share_the_grid(era5_project: Path, tmp_path: Path) -> None:
    write_dataset(era5_project, tmp_path / "x.zarr", ranks=4)
    layout = json.loads((tmp_path / "x.zarr" / "data" / ".zarray").read_text())
    assert (layout["zarr_format"], layout["shape"]) == (2, [27, 9, 1, 11011])
    assert layout["chunks"] == [1, 9, 1, 2753]
    assert len(list((tmp_path / "x.zarr" / "data").glob("3.*"))) == 4


def test_ranks_do_not_change_what_is_read(era5_project: Path, era5_dataset: Path, tmp_path: Path) -> None:
    write_dataset(era5_project, tmp_path / "x.zarr", ranks=3)
    np.testing.assert_array_equal(open_dataset(str(tmp_path / "x.zarr"))[:], open_dataset(str(era5_dataset))[:])


def test_memory_is_bounded(register: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No array of many dates is ever computed."""
    largest = [0]
    values = xr.DataArray.values.fget

    def watched(array: xr.DataArray) -> np.ndarray:
        if "grid_index" in array.dims:
            largest[0] = max(largest[0], array.sizes.get("time", 1))
        return values(array)

    monkeypatch.setattr(xr.DataArray, "values", property(watched))
    write_dataset(register(MDPDatastore), tmp_path / "x.zarr")
    assert largest == [1]


def test_inspect(era5_dataset: Path) -> None:
    done = subprocess.run(
        [executable("anemoi-datasets"), "inspect", str(era5_dataset)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for word in ("6h", "2026-03-25", "2026-03-31", *VARIABLES):
        assert word in done.stdout


def test_summary_and_progress(era5_project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    summary = write_dataset(era5_project, tmp_path / "x.zarr")
    out, err = capfd.readouterr()
    assert out == "" and "28/28" in err
    text = "\n".join(summary.lines())
    for word in (str(summary.path), "27 dates", "11011", *VARIABLES):
        assert word in text
    named = json.loads((summary.path / ".zattrs").read_text())[ATTRIBUTE]
    assert ForcingWindow.from_dict(named["forcing_window"]) == ForcingWindow(1, 1)
    for split in SPLITS:
        assert named["splits"][split]["start"] in text and named["splits"][split]["end"] in text


def test_an_existing_output_is_refused(era5_project: Path, era5_dataset: Path) -> None:
    before = fingerprint(era5_dataset.parent)
    with pytest.raises(InvalidInputError, match="--force"):
        write_dataset(era5_project, era5_dataset)
    assert fingerprint(era5_dataset.parent) == before


def test_an_existing_output_is_replaced_if_asked(era5_project: Path, tmp_path: Path) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "stale").touch()
    write_dataset(era5_project, tmp_path / "x.zarr", force=True)
    assert [part.name for part in tmp_path.iterdir()] == ["x.zarr"]
    assert not (tmp_path / "x.zarr" / "stale").exists()
    assert len(open_dataset(str(tmp_path / "x.zarr"))) == 27


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_midway_leaves_nothing(
    era5_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, existing: bool
) -> None:
    if existing:
        (tmp_path / "x.zarr").mkdir()
        (tmp_path / "x.zarr" / "precious").write_text("keep me")
    before, read, found = fingerprint(tmp_path), Series.state_row, []

    def fail(series: Series, index: int) -> np.ndarray:
        if index == 5:
            found.extend(part for part in tmp_path.rglob("*.zarr/data/*") if not part.name.startswith("."))
            raise error
        return read(series, index)

    monkeypatch.setattr(Series, "state_row", fail)
    with pytest.raises(type(error)):
        write_dataset(era5_project, tmp_path / "x.zarr", force=existing)
    assert found, "it failed before anything was written: nothing was tested"
    assert fingerprint(tmp_path) == before
    assert [part.name for part in tmp_path.iterdir()] == ["x.zarr"] * existing


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Forecasts, {}, "forecasts; supported are .*analyses"),
        (Ensemble, {}, "ensemble; choose one member"),
        (Ensemble, {"member": MEMBERS}, "member 3.* 0 to 2"),
        (Ensemble, {"member": -1}, "member -1.* 0 to 2"),
        (MDPDatastore, {"member": 0}, "no ensemble"),
        (ShortSplit, {}, "val split has 3 dates"),
        (MDPDatastore, {"past": 6}, "val split has 7 dates"),
        (GapInsideSplit, {}, "test split .*2026-03-30T12:00:00 is followed by 2026-03-31T00:00:00"),
        (ClashOfNames, {}, "toa_p06h"),
        (MDPDatastore, {"ranks": 0}, "ranks 0"),
        (MDPDatastore, {"past": -1}, "past -1"),
        (MDPDatastore, {"future": -1}, "future -1"),
    ],
)
def test_what_cannot_be_written(
    register: Register, tmp_path: Path, kind: type[MDPDatastore], options: dict[str, int], message: str
) -> None:
    config = register(kind)
    with pytest.raises(InvalidInputError, match=message) as caught:
        write_dataset(config, tmp_path / "out" / "x.zarr", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file"):
        write_dataset(tmp_path / "absent.yaml", tmp_path / "x.zarr")
