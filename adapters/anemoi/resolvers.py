"""What our Hydra configurations compute: OmegaConf resolvers, registered when Hydra looks for configurations.

Each function is a resolver: ``${neural_lam.dataset:PATH}`` is what `dataset` returns. What they need is imported when they
are called: Hydra loads this in every program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf


def register_resolvers() -> None:
    """Make the resolvers known to OmegaConf; more than once does no harm."""
    for function in (dataset, loss, loss_weights, mesh_nodes):
        OmegaConf.register_new_resolver(f"neural_lam.{function.__name__}", function, replace=True)


def dataset(path: Any) -> DictConfig:
    """What a dataset of ours says about itself."""
    from .dataset import read_facts

    return OmegaConf.create(read_facts(str(path)))  # not a dict: interpolations lead into it


def loss(name: str) -> str:
    """Anemoi's class for a loss of neural-lam."""
    from .losses import loss_class

    return loss_class(name)


def loss_weights(section: DictConfig) -> dict[str, float]:
    """Weight of each state variable, from our section of the configuration."""
    from .losses import loss_weights

    return loss_weights(OmegaConf.to_container(section, resolve=True))  # type: ignore[arg-type]


def mesh_nodes(directory: Any) -> list[str]:
    """Names of the mesh levels in a graph directory."""
    from neural_lam_anemoi.graph import mesh_name
    from neural_lam_anemoi.graph_io import read_graph_directory

    graph = read_graph_directory(Path(str(directory)), None, grid_span=1.0)
    return [mesh_name(level) for level in range(graph.num_levels)]
