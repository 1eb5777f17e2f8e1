"""What ``neural-lam-anemoi dataset`` writes beside the data, so that a model can be made from the dataset alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from anemoi.datasets.compat import zarr_open

from neural_lam_anemoi.bundle import Fields
from neural_lam_anemoi.errors import InvalidInputError

from .variables import input_names

ATTRIBUTE = "neural_lam_anemoi"
BOUNDARY = "boundary_mask"
COORDINATES = "coordinates"


def read_facts(path: str | Path) -> dict[str, Any]:
    """What decides a model's inputs and outputs: the data's part of a bundle's manifest, and more.

    Parameters
    ----------
    path : str or Path
        A dataset that ``neural-lam-anemoi dataset`` wrote.

    Returns
    -------
    dict
        What `neural_lam_anemoi.bundle_io.data_manifest` makes; ``splits`` and ``order`` of the dataset, ``frequency``,
        and ``forcings``: all variables that are no state.

    Raises
    ------
    InvalidInputError
        There is no such dataset, or it isn't one of ours.
    """
    attributes = _open(path).attrs
    facts = dict(attributes[ATTRIBUTE])
    names = input_names(facts)
    return facts | {"frequency": attributes["frequency"], "forcings": names["forcing"] + names["static"]}


def read_fields(path: str | Path) -> Fields:
    """Coordinates, boundary and static fields of the grid nodes, in the dataset's order; no mesh.

    Raises
    ------
    InvalidInputError
        As `read_facts`.
    """
    store = _open(path)
    variables = store.attrs["variables"]
    columns = [variables.index(name) for name in store.attrs[ATTRIBUTE]["variables"]["static"]]
    static = store["data"][0][columns, 0].T if columns else store["data"][0][:0, 0].T
    return Fields(
        latitudes=torch.tensor(store["latitudes"][:]),
        longitudes=torch.tensor(store["longitudes"][:]),
        coordinates=torch.tensor(store[COORDINATES][:]),
        boundary=torch.tensor(store[BOUNDARY][:]).bool(),
        static=torch.tensor(static),
        mesh_latlons=(),
    )


def _open(path: str | Path) -> Any:
    try:
        store = zarr_open(str(path), "r")
    except Exception as error:  # zarr raises whatever its stores do
        raise InvalidInputError(f"{path}: no dataset can be opened there ({type(error).__name__})") from None
    if ATTRIBUTE not in store.attrs or BOUNDARY not in store:
        raise InvalidInputError(f"{path}: not written by neural-lam-anemoi dataset (or by an old one); write it anew")
    return store
