"""A neural-lam project from the packaged ERA5 sample: Europe and the Atlantic, one week, six-hourly, one degree.

ERA5 is from ECMWF's Copernicus Climate Change Service, CC-BY 4.0; the attribution stays in every file's attributes.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import mllam_data_prep
import xarray as xr
import yaml

from .processes import python_module, run_command

SAMPLE = "era5_europe_1deg.nc"
STATE, FORCING, STATIC = ("t2m", "u10", "v10", "msl", "tp"), ("toa",), ("lsm",)
SPLIT_LENGTHS = {"train": 13, "val": 7, "test": 8}
CLAMPING = {"lower": {"tp": 0.0, "t2m": 150.0}, "upper": {"t2m": 350.0, "msl": 120000.0}}
STATISTICS = {"ops": ["mean", "std", "diff_mean", "diff_std"], "dims": ["grid_index", "time"]}


def make_era5_project(directory: Path, clamp: bool = False) -> Path:
    """Build a datastore with `mllam_data_prep` and a neural-lam configuration for it.

    Parameters
    ----------
    directory : Path
        Where to put everything; made if needed.
    clamp : bool
        Whether the configuration clamps outputs, in all three ways: below, above, on both sides.

    Returns
    -------
    Path
        ``config.yaml`` for neural-lam. Grid nodes are stacked x (longitude) first, y (latitude) second.
    """
    directory.mkdir(parents=True, exist_ok=True)
    raw = _raw_dataset(directory / "era5.zarr")
    datastore = directory / "era5.datastore.yaml"
    datastore.write_text(yaml.safe_dump(_datastore_config(raw, directory / "era5.zarr"), sort_keys=False))
    prepared = mllam_data_prep.create_dataset(config=mllam_data_prep.Config.from_yaml_file(datastore))
    prepared.attrs |= {name: raw.attrs[name] for name in ("source", "license")}
    prepared.to_zarr(directory / "era5.datastore.zarr", mode="w", consolidated=True)
    weighting = {"__config_class__": "ManualStateFeatureWeighting", "weights": dict.fromkeys(STATE, 1.0)}
    training: dict[str, Any] = {"state_feature_weighting": weighting}
    if clamp:
        training["output_clamping"] = CLAMPING
    config = directory / "config.yaml"
    selection = {"kind": "mdp", "config_path": datastore.name}
    config.write_text(yaml.safe_dump({"datastore": selection, "training": training}, sort_keys=False))
    return config


def make_graph(config: Path, name: str, archetype: str, **options: float) -> None:
    """Make a graph with ``neural_lam.create_graph_with_wmg``.

    Parameters
    ----------
    config : Path
        neural-lam's configuration.
    name : str
        Of the graph, a directory under ``graph/`` of the datastore.
    archetype : {"keisler", "graphcast", "hierarchical"}
    **options
        Further flags of the command, such as ``mesh_node_distance``.

    Raises
    ------
    InvalidInputError
        If the command fails.
    """
    graphs = config.parent / "graph"
    flags = [part for flag, value in options.items() for part in (f"--{flag}", str(value))]
    command = [*python_module("neural_lam.create_graph_with_wmg"), "--config_path", config, "--name", name]
    run_command([*command, "--archetype", archetype, *flags], graphs / f"{name}.log", graphs / name / "metainfo.yaml")


def _raw_dataset(path: Path) -> xr.Dataset:
    """The sample with the coordinate names that neural-lam expects, written where mllam-data-prep can read it."""
    with resources.as_file(resources.files(__package__) / SAMPLE) as packaged, xr.open_dataset(packaged) as sample:
        raw = sample.rename(longitude="x", latitude="y").sortby(["x", "y"]).load()
    for name in ("x", "y"):
        raw[name].attrs["units"] = "degrees"
    raw.drop_encoding().to_zarr(path, mode="w", consolidated=True)
    return raw


def _datastore_config(raw: xr.Dataset, path: Path) -> dict[str, Any]:
    times = raw["time"].dt.strftime("%Y-%m-%dT%H:%M").values.tolist()
    splits, begin = {}, 0
    for name, length in SPLIT_LENGTHS.items():
        splits[name] = {"start": times[begin], "end": times[begin + length - 1]}
        begin += length
    splits["train"]["compute_statistics"] = STATISTICS
    layout = {category: ["time", "grid_index", f"{category}_feature"] for category in ("state", "forcing")}
    return {
        "schema_version": "v0.6.0",
        "dataset_version": "v1.0.0",
        "output": {
            "variables": {"static": ["grid_index", "static_feature"], **layout},
            "coord_ranges": {"time": {"start": times[0], "end": times[-1], "step": "PT6H"}},
            "chunking": {"time": 1},
            "splitting": {"dim": "time", "splits": splits},
        },
        "inputs": {
            category: _input(path, category, names)
            for category, names in (("state", STATE), ("forcing", FORCING), ("static", STATIC))
        },
        "extra": {"projection": {"class_name": "PlateCarree", "kwargs": {"central_longitude": 0.0}}},
    }


def _input(path: Path, category: str, names: tuple[str, ...]) -> dict[str, Any]:
    timed = category != "static"
    mapping: dict[str, Any] = {"time": {"method": "rename", "dim": "time"}} if timed else {}
    mapping["grid_index"] = {"method": "stack", "dims": ["x", "y"]}
    mapping[f"{category}_feature"] = {"method": "stack_variables_by_var_name", "name_format": "{var_name}"}
    return {
        "path": str(path.resolve()),
        "dims": ["time", "x", "y"] if timed else ["x", "y"],
        "variables": list(names),
        "dim_mapping": mapping,
        "target_output_variable": category,
    }
