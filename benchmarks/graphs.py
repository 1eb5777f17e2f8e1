"""Graphs to measure on, made by the hosts' own commands and kept between runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.graph_io import read_graph_directory

NUM_X, NUM_Y = 268, 238
CACHE = Path(tempfile.gettempdir()) / "neural-lam-anemoi-graphs"


def reference_graph(kind: str, num_x: int = NUM_X, num_y: int = NUM_Y, cache: Path = CACHE) -> tuple[LamGraph, Tensor]:
    """A graph of a regular grid by ``neural_lam.create_graph``, and the coordinates of its grid nodes.

    Parameters
    ----------
    kind : {"multiscale", "hierarchical"}
        One mesh level with edges of several lengths, or several levels.
    num_x, num_y : int
        Grid nodes in x (slowest) and y.
    cache : Path
        Where graph directories are kept.

    Returns
    -------
    graph : LamGraph
    grid_coordinates : Tensor
        Shape ``(num_x * num_y, 2)``, in the unit of the mesh coordinates.
    """
    directory = cache / f"{kind}_{num_x}x{num_y}"
    x, y = np.meshgrid(np.arange(num_x, dtype=float), np.arange(num_y, dtype=float), indexing="ij")
    coordinates = np.stack([x, y], axis=-1)
    if not (directory / "done").exists():
        from neural_lam.create_graph import create_graph

        directory.mkdir(parents=True, exist_ok=True)
        create_graph(str(directory), coordinates, None, kind == "hierarchical", False)
        (directory / "done").touch()
    span = float(max(num_x, num_y) - 1)
    graph = read_graph_directory(directory, num_x * num_y, span)
    unit = 1.0 if graph.mesh_scaling != 1.0 else float(coordinates.max())  # a legacy graph is stored divided by it
    return graph, torch.tensor(coordinates.reshape(-1, 2) / unit)
