"""The ERA5 project: what neural-lam finds in it, and what happens when its commands fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import yaml
from neural_lam.config import load_config_and_datastore
from neural_lam.datastore.mdp import MDPDatastore
from neural_lam.weather_dataset import WeatherDataset

from neural_lam_anemoi.adapters.bridge import sample
from neural_lam_anemoi.errors import InvalidInputError

GRID = (121, 91)
BOUNDARY = 30


@pytest.fixture(scope="module")
def loaded(era5_project: Path) -> tuple[Any, MDPDatastore]:
    """neural-lam's configuration and datastore."""
    return load_config_and_datastore(str(era5_project))


@pytest.fixture(scope="module")
def packaged() -> xr.Dataset:
    """The sample as it is shipped."""
    return xr.load_dataset(Path(sample.__file__).parent / sample.SAMPLE)


def test_variables_and_grid(loaded: tuple[Any, MDPDatastore]) -> None:
    _, datastore = loaded
    assert datastore.get_vars_names("state") == ["t2m", "u10", "v10", "msl", "tp"]
    assert datastore.get_vars_names("forcing") == ["toa"]
    assert datastore.get_vars_names("static") == ["lsm"]
    assert (datastore.grid_shape_state.x, datastore.grid_shape_state.y) == GRID
    interior = (GRID[0] - 2 * BOUNDARY) * (GRID[1] - 2 * BOUNDARY)
    assert int((datastore.boundary_mask == 0).sum()) == interior == 61 * 31


def test_fields_are_the_samples(loaded: tuple[Any, MDPDatastore], packaged: xr.Dataset) -> None:
    """Each node carries the packaged value of its own longitude and latitude, at each time."""
    _, datastore = loaded
    longitude, latitude = (xr.DataArray(part, dims="node") for part in datastore.get_lat_lon("state").T)
    nodes = packaged.sel(longitude=longitude, latitude=latitude, method="nearest", tolerance=1e-6)
    for category in ("state", "forcing"):
        parts = [datastore.get_dataarray(category, split) for split in sample.SPLIT_LENGTHS]
        values = np.concatenate([part.values for part in parts])
        for column, name in enumerate(datastore.get_vars_names(category)):
            np.testing.assert_array_equal(values[:, :, column], nodes[name].transpose("time", "node").values)
    np.testing.assert_array_equal(datastore.get_dataarray("static", None).values[:, 0], nodes["lsm"].values)


def test_latitudes_ascend_along_y(loaded: tuple[Any, MDPDatastore]) -> None:
    _, datastore = loaded
    longitude, latitude = datastore.get_lat_lon("state").T.reshape(2, *GRID)
    assert (np.diff(longitude, axis=0) > 0).all()
    assert (np.diff(latitude, axis=1) > 0).all()


def test_splits_leave_samples_for_an_evaluation_of_four_steps(loaded: tuple[Any, MDPDatastore]) -> None:
    _, datastore = loaded
    counts = {split: len(datastore.get_dataarray("state", split)["time"]) for split in ("train", "val", "test")}
    assert sum(counts.values()) == 28
    assert counts["val"] >= 7 and counts["test"] >= 8
    assert len(WeatherDataset(datastore, split="val", ar_steps=4)) == 1
    assert len(WeatherDataset(datastore, split="test", ar_steps=4)) == 2


def test_statistics_of_the_training_split(loaded: tuple[Any, MDPDatastore]) -> None:
    _, datastore = loaded
    for category in ("state", "forcing"):
        train = datastore.get_dataarray(category, "train")
        statistics = datastore.get_standardization_dataarray(category)
        np.testing.assert_allclose(statistics[f"{category}_mean"], train.mean(["time", "grid_index"]), rtol=1e-9)
        np.testing.assert_allclose(statistics[f"{category}_std"], train.std(["time", "grid_index"]), rtol=1e-9)


def test_attribution_is_kept(era5_project: Path, packaged: xr.Dataset) -> None:
    for name in ("era5.zarr", "era5.datastore.zarr"):
        with xr.open_zarr(era5_project.parent / name) as written:
            for attribute in ("source", "license"):
                assert written.attrs[attribute] == packaged.attrs[attribute]
    assert "CC-BY" in packaged.attrs["license"]


def test_clamping_of_all_kinds(loaded: tuple[Any, MDPDatastore]) -> None:
    """Below alone, above alone and both, so that a model uses both softplus forms and the sigmoid."""
    clamping = loaded[0].training.output_clamping
    lower, upper = set(clamping.lower), set(clamping.upper)
    assert lower - upper and upper - lower and lower & upper


def test_without_clamping(tmp_path: Path) -> None:
    config = sample.make_era5_project(tmp_path / "made" / "here")
    assert "output_clamping" not in yaml.safe_load(config.read_text())["training"]
    _, datastore = load_config_and_datastore(str(config))
    assert datastore.num_grid_points == GRID[0] * GRID[1]


@pytest.mark.parametrize(("name", "levels"), [("flat", 1), ("multiscale", 1), ("hierarchical", 3)])
def test_graphs(era5_project: Path, name: str, levels: int) -> None:
    place = era5_project.parent / "graph" / name
    mesh = torch.load(place / "mesh_features.pt", weights_only=True)
    assert len(mesh) == levels
    sizes = [len(level) for level in mesh]
    assert sizes == sorted(sizes, reverse=True)
    assert (place / "mesh_up_edge_index.pt").exists() == (levels > 1)


def test_multiscale_has_longer_edges_than_flat(era5_project: Path) -> None:
    longest = {
        name: float(
            torch.load(era5_project.parent / "graph" / name / "m2m_features.pt", weights_only=True)[0][:, 0].max()
        )
        for name in ("flat", "multiscale")
    }
    assert longest["multiscale"] > 2 * longest["flat"]


def test_a_graph_that_cannot_be_made(era5_project: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        sample.make_graph(era5_project, "odd", "spiral")
    assert "spiral" in str(caught.value) and "\n" not in str(caught.value)
    assert not (era5_project.parent / "graph" / "odd").exists()


def test_a_command_that_fails_with_status_zero(era5_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """neural-lam's commands report success whatever happens: the graph's files are what counts."""
    monkeypatch.setattr(sample, "python_module", lambda name: ["true"])
    with pytest.raises(InvalidInputError):
        sample.make_graph(era5_project, "absent", "keisler")
