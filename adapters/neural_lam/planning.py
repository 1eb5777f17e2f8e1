"""What `neural_lam_anemoi.plan` needs to know of a neural-lam project."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from neural_lam_anemoi.forcing import ForcingWindow
from neural_lam_anemoi.graph import LamGraph

from .checkpoint import grid_coordinates, load_datastore, read_variables
from .predictors import load_graph


def read_project(config_path: Path, graph_name: str, window: ForcingWindow) -> tuple[LamGraph, Tensor, dict[str, int]]:
    """Graph, grid coordinates and numbers of variables of a project.

    Parameters
    ----------
    config_path : Path
        neural-lam's configuration.
    graph_name : str
    window : ForcingWindow

    Returns
    -------
    graph : LamGraph
    grid_coordinates : Tensor
        Shape ``(num_grid, 2)``, in the unit of the mesh coordinates.
    counts : dict of int
        ``num_state``, ``num_forcing``, ``num_static``, as an `Architecture` wants them.

    Raises
    ------
    InvalidInputError
        As `load_datastore` and `read_graph_directory`.
    """
    _, datastore = load_datastore(config_path)
    graph = load_graph(datastore, graph_name, datastore.num_grid_points)
    coordinates = grid_coordinates(datastore)
    if graph.mesh_scaling == 1.0:  # legacy: mesh coordinates are stored divided by the largest grid coordinate
        coordinates = coordinates / coordinates.abs().max()
    return graph, coordinates, read_variables(datastore).columns(window)
