"""Stand-ins for the data that neural-lam's test suite downloads: same files, names and layout, made-up weather."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import xarray as xr
import yaml

NUM_X, NUM_Y = 66, 64
"""neural-lam takes a boundary 30 points wide: this leaves an interior of 6 x 4."""
SPACING = 10000.0  # m
TIMES = np.arange("2022-04-01T00", "2022-04-10T03", 3, dtype="datetime64[h]").astype("datetime64[ns]")
REMOTE = "simplecache::https://object-store.os-api.cci1.ecmwf.int/mllam-testdata/danra_cropped/v0.2.0/"

LEVELS = {"u": (8.0, 0.0, "m/s"), "v": (8.0, 0.0, "m/s")}
SURFACE = {"swavr0m": (200.0, 250.0, "W/m**2"), "r2m": (0.2, 0.6, "1"), "t2m": (8.0, 280.0, "K")}
CONSTANT = {"lsm": (0.5, 0.5, "1"), "orography": (300.0, 200.0, "m**2/s**2")}
"""Amplitude, mean and unit of each variable."""

MEPS = ("pres_0g", "nswrs_0", "r_2", "t_2", "u_65", "v_65", "wvint_0", "z_500")
ANALYSES = {
    "train": ("2022-04-01T00", "2022-04-01T12", "2022-04-02T00"),
    "val": ("2022-04-04T00", "2022-04-04T12"),
    "test": ("2022-04-07T00", "2022-04-07T12"),
}
MEMBERS, LEAD_TIMES = 2, 66


def make_danra(tests: Path) -> None:
    """Zarr stores in ``tests``, and the suite's datastore configuration turned to them."""
    place = tests / "datastore_examples" / "mdp" / "danra_100m_winds"
    config = place / "danra.datastore.yaml"
    raw = place / "raw"
    altitude = {"altitude": ("altitude", np.array([50, 100]), {"units": "m"})}
    levels = {
        name: (
            ("time", "x", "y", "altitude"),
            np.stack([_waves(*spec[:2], seed=i + k) for k in (0, 5)], -1),
            _units(spec),
        )
        for i, (name, spec) in enumerate(LEVELS.items())
    }
    single = {
        name: (("time", "x", "y"), _waves(*spec[:2], seed=10 + i), _units(spec))
        for i, (name, spec) in enumerate(SURFACE.items())
    }
    constant = {
        name: (("x", "y"), _waves(*spec[:2], seed=20 + i)[0], _units(spec))
        for i, (name, spec) in enumerate(CONSTANT.items())
    }
    xr.Dataset(levels, _coordinates() | altitude).to_zarr(raw / "height_levels.zarr", mode="w")
    xr.Dataset(single | constant, _coordinates()).to_zarr(raw / "single_levels.zarr", mode="w")
    config.write_text(config.read_text().replace(REMOTE, f"{raw.resolve()}/"))


def make_meps(tests: Path) -> None:
    """The directory that the suite unpacks from an archive."""
    place = tests / "datastore_examples" / "npyfilesmeps" / "meps_example_reduced"
    static = place / "static"
    static.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(3)
    for split, analyses in ANALYSES.items():
        samples = place / "samples" / split
        samples.mkdir(parents=True, exist_ok=True)
        for analysis in analyses:
            stamp = analysis.replace("-", "").replace("T", "")
            for member in range(MEMBERS):
                states = generator.standard_normal((LEAD_TIMES, NUM_Y, NUM_X, len(MEPS)), dtype=np.float32)
                np.save(samples / f"nwp_{stamp}_mbr{member:03d}.npy", states)
            flux = 200 + 50 * generator.standard_normal((LEAD_TIMES, NUM_Y, NUM_X), dtype=np.float32)
            np.save(samples / f"nwp_toa_downwelling_shortwave_flux_{stamp}.npy", flux)
            np.save(samples / f"wtr_{stamp}.npy", generator.random((NUM_Y, NUM_X), dtype=np.float32))
    x, y = (values[1].astype(np.float32) for values in (_coordinates()["x"], _coordinates()["y"]))
    np.save(static / "nwp_xy.npy", np.stack(np.meshgrid(x, y)))
    np.save(static / "surface_geopotential.npy", generator.random((NUM_Y, NUM_X), dtype=np.float32))
    border = np.ones((NUM_Y, NUM_X))
    border[10:-10, 10:-10] = 0
    np.save(static / "border_mask.npy", border)
    torch.save(torch.tensor([200.0, 50.0]), static / "flux_stats.pt")
    (place / "meps_example_reduced.datastore.yaml").write_text(yaml.safe_dump(_meps_config(), sort_keys=False))


def _meps_config() -> dict[str, object]:
    projection = {"central_longitude": 15.0, "central_latitude": 63.3, "standard_parallels": [63.3, 63.3]}
    return {
        "dataset": {
            "name": "meps_example_reduced",
            "var_names": list(MEPS),
            "var_units": ["1"] * len(MEPS),
            "var_longnames": list(MEPS),
            "num_forcing_features": 16,
            "num_timesteps": LEAD_TIMES,
            "step_length": 10800,
            "num_ensemble_members": MEMBERS,
            "remove_state_features_with_index": [],
        },
        "grid_shape_state": [NUM_Y, NUM_X],
        "projection": {"class_name": "LambertConformal", "kwargs": projection},
    }


def _coordinates() -> dict[str, tuple[str, np.ndarray, dict[str, str]]]:
    axes = {
        name: (name, SPACING * (np.arange(count) - (count - 1) / 2), {"units": "m", "long_name": name})
        for name, count in (("x", NUM_X), ("y", NUM_Y))
    }
    return {"time": ("time", TIMES, {}), **axes}


def _units(spec: tuple[float, float, str]) -> dict[str, str]:
    return {"units": spec[2], "long_name": f"made-up, in {spec[2]}"}


def _waves(amplitude: float, mean: float, seed: int) -> np.ndarray:
    """Travelling waves and a little noise, ``(time, x, y)`` float32."""
    generator = np.random.default_rng(seed)
    time, x, y = np.ogrid[: len(TIMES), :NUM_X, :NUM_Y]
    kx, ky, speed, phase = generator.uniform(0.05, 0.4, 4)
    field = np.sin(kx * x + ky * y - speed * time + 10 * phase)
    noise = 0.1 * generator.standard_normal(field.shape)
    return (mean + amplitude * (field + noise)).astype(np.float32)
