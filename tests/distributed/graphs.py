"""Graphs and networks for the tests: real archetypes on a small grid, and random ones."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
import weather_model_graphs as wmg

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.graph import EdgeSet, LamGraph
from neural_lam_anemoi.graph_io import read_graph_directory
from neural_lam_anemoi.nn.clamping import Clamping
from neural_lam_anemoi.nn.networks import NETWORKS, LamNetwork, StateStatistics

from .tasks import Sample

NUM_X, NUM_Y = 23, 19
STATES, FORCINGS, STATICS = ("t", "u", "q"), 4, 2
ARCHETYPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "flat": (wmg.create.archetype.create_keisler_graph, {}),
    "multiscale": (
        wmg.create.archetype.create_graphcast_graph,
        {"level_refinement_factor": 3, "max_num_levels": None},
    ),
    "hierarchical": (
        wmg.create.archetype.create_oskarsson_hierarchical_graph,
        {"level_refinement_factor": 2, "max_num_levels": 3},
    ),
}


def grid_coordinates(num_x: int = NUM_X, num_y: int = NUM_Y) -> np.ndarray:
    """Of a regular grid, x slowest, ``(num_x * num_y, 2)``."""
    x, y = np.meshgrid(np.arange(num_x, dtype=float), np.arange(num_y, dtype=float), indexing="ij")
    return np.stack([x.ravel(), y.ravel()], axis=-1)


def write_graph(directory: Path, kind: str, coordinates: np.ndarray, distance: float = 2.0) -> None:
    """A neural-lam graph directory of the archetype."""
    archetype, options = ARCHETYPES[kind]
    components = archetype(coords=coordinates, mesh_node_distance=distance, return_components=True, **options)
    directory.mkdir(parents=True)
    wmg.save.to_torch_tensors_on_disk(
        graph_components=components, output_directory=str(directory), hierarchical=kind == "hierarchical"
    )


def read_graph(directory: Path, coordinates: np.ndarray) -> LamGraph:
    """As neural-lam reads it for this grid."""
    return read_graph_directory(directory, len(coordinates), float(np.ptp(coordinates, axis=0).max()))


def build_network(model: str, graph: LamGraph, seed: int = 0, **options: Any) -> LamNetwork:
    """A core network with random weights, biases and LayerNorms too, and clamping in all three ways."""
    torch.manual_seed(seed)
    defaults = {"hidden_dim": 12, "processor_layers": 2}
    architecture = Architecture(model, len(STATES), FORCINGS, STATICS, **(defaults | options))
    ones = torch.ones(len(STATES))
    statistics = StateStatistics(STATES, 0 * ones, ones, 0.1 * ones, 0.5 * ones)
    network = NETWORKS[model](architecture, graph, statistics, Clamping({"t": -4.0, "q": -4.0}, {"u": 4.0, "q": 5.0}))
    randomise(network)
    return network


def randomise(network: torch.nn.Module) -> None:
    """Move biases and LayerNorms off their initial values, or equality would say little about them."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def pickled(network: LamNetwork, dtype: torch.dtype = torch.float64) -> bytes:
    """The network in the given precision, to be sent to ranks."""
    return pickle.dumps(pickle.loads(pickle.dumps(network)).to(dtype))


def random_sample(num_grid: int, batch: int = 1, steps: int = 1, seed: int = 2) -> Sample:
    """Standard normal inputs; loss weights normalised over the grid."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return Sample(
        initial=normal(batch, 2, num_grid, len(STATES)),
        forcing=normal(batch, steps, num_grid, FORCINGS),
        static=normal(num_grid, STATICS),
        weights=normal(batch, steps, num_grid, len(STATES)) / num_grid,
    )


def random_graph(seed: int, num_grid: int, num_mesh: tuple[int, ...], density: float) -> LamGraph:
    """Edges drawn at random: asymmetric, unsorted, some doubled; nodes without any, also the last receivers."""
    generator = torch.Generator().manual_seed(seed)

    def edges(senders: int, receivers: int) -> EdgeSet:
        count = 1 + int(density * max(senders, receivers))
        last = max(1, receivers - int(torch.randint(0, 3, (1,), generator=generator)))
        index = torch.stack(
            [
                torch.randint(0, senders, (count,), generator=generator),
                torch.randint(0, last, (count,), generator=generator),
            ]
        )
        index = torch.cat([index, index[:, : count // 3]], dim=1)
        features = 0.1 + torch.rand(index.shape[1], 3, generator=generator)
        return EdgeSet(index, features, senders, receivers)

    gaps = list(itertools.pairwise(num_mesh))
    return LamGraph(
        num_grid=num_grid,
        mesh_coordinates=tuple(torch.rand(nodes, 2, generator=generator) for nodes in num_mesh),
        g2m=edges(num_grid, num_mesh[0]),
        m2g=edges(num_mesh[0], num_grid),
        m2m=tuple(edges(nodes, nodes) for nodes in num_mesh),
        mesh_up=tuple(edges(low, high) for low, high in gaps),
        mesh_down=tuple(edges(high, low) for low, high in gaps),
    )
