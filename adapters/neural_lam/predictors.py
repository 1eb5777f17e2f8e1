"""Drop-in replacements for neural-lam's GraphLAM, HiLAM and HiLAMParallel.

They are neural-lam's classes to everybody who asks (``isinstance``, signatures, parameter names, order and shapes), but
run the core networks: their ``__init__`` builds those and neural-lam's own, like PyTorch Geometric's, never runs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from neural_lam import gnn_layers
from neural_lam.models.step_predictors.graph import graph_lam, hi_lam, hi_lam_parallel
from torch import Tensor

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.forcing import ForcingWindow
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.graph_io import read_graph_directory
from neural_lam_anemoi.nn import interaction, networks
from neural_lam_anemoi.nn.clamping import Clamping
from neural_lam_anemoi.nn.static import StaticEmbeddings

LOGGER = logging.getLogger(__name__)


class _PlainState:
    """PyG's MessagePassing replaces how an object is pickled; a layer here has nothing but a module's state."""

    __getstate__ = object.__getstate__
    __setstate__ = torch.nn.Module.__setstate__
    __repr__ = torch.nn.Module.__repr__


class InteractionNet(_PlainState, interaction.InteractionNet, gnn_layers.InteractionNet):
    """The core's layer, an instance of neural-lam's class."""


class PropagationNet(_PlainState, interaction.PropagationNet, gnn_layers.PropagationNet):
    """The core's layer, an instance of neural-lam's class."""


class ParallelInteractionNet(_PlainState, interaction.ParallelInteractionNet, gnn_layers.InteractionNet):
    """The core's layer, an instance of neural-lam's class."""


class Predictor(networks.LamNetwork):
    """What the three drop-in classes share: built from a datastore, called as a ``StepPredictor``."""

    interaction_type: ClassVar[Any] = InteractionNet
    propagation_type: ClassVar[Any] = PropagationNet
    parallel_type: ClassVar[Any] = ParallelInteractionNet
    grid_static_features: Tensor
    _shared: tuple[StaticEmbeddings, bool] | None = None
    """What the steps of a rollout share while one is open."""

    def _build(
        self, datastore: Any, graph_name: str, window: ForcingWindow, clamping: Clamping, **options: Any
    ) -> None:
        static = static_features(datastore)
        architecture = Architecture(
            model=self.model,
            num_state=datastore.get_num_data_vars(category="state"),
            num_forcing=datastore.get_num_data_vars(category="forcing") * window.length,
            num_static=static.shape[1],
            **options,
        )
        graph = load_graph(datastore, graph_name, static.shape[0])
        networks.LamNetwork.__init__(self, architecture, graph, state_statistics(datastore), clamping)
        self.register_buffer("grid_static_features", static, persistent=False)
        self.output_std = architecture.output_std
        self.num_grid_nodes = graph.num_grid
        self.num_mesh_nodes = sum(graph.num_mesh)
        self.hierarchical = graph.hierarchical
        for name in (
            "hidden_dim",
            "hidden_layers",
            "processor_layers",
            "mesh_aggr",
            "grid_input_dim",
            "grid_output_dim",
        ):
            setattr(self, name, getattr(architecture, name))
        LOGGER.info("graph %s: %d grid nodes, mesh levels of %s nodes", graph_name, graph.num_grid, graph.num_mesh)

    def forward(self, prev_state: Tensor, prev_prev_state: Tensor, forcing: Tensor) -> tuple[Tensor, Tensor | None]:
        """Advance a standardised state by one time step; see `neural_lam_anemoi.nn.networks.LamNetwork.step`.

        Parameters
        ----------
        prev_state, prev_prev_state : Tensor
            Shape ``(B, num_grid, num_state)``.
        forcing : Tensor
            Shape ``(B, num_grid, num_forcing)``.
        """
        static, recompute = self._shared or (None, False)
        inputs = (prev_state, prev_prev_state, forcing, self.grid_static_features, static)
        return interaction.recomputed(self.step, *inputs) if recompute else self.step(*inputs)

    @contextlib.contextmanager
    def rollout(self, recompute: bool = False) -> Iterator[None]:
        """Inside, steps share the embeddings of mesh and edges: to be opened anew for every rollout.

        Parameters
        ----------
        recompute : bool
            Keep none of a step's insides for the backward pass, but compute them again there.
        """
        self._shared = (self.embed_static(), recompute)
        try:
            yield
        finally:
            self._shared = None

    def unread_parameters(self) -> list[torch.nn.Parameter]:
        """Parameters that no output depends on."""
        return []

    def get_clamped_new_state(self, state_delta: Tensor, prev_state: Tensor) -> Tensor:
        """Add an increment to a state inside the clamping limits; both ``(B, num_grid, num_state)``, standardised."""
        return networks.clamped_update(self, state_delta, prev_state)


class GraphLAM(Predictor, networks.GraphLAM, graph_lam.GraphLAM):
    """Drop-in for ``neural_lam.models.GraphLAM``."""

    def __init__(
        self,
        datastore: Any,
        graph_name: str = "multiscale",
        hidden_dim: int = 64,
        hidden_layers: int = 1,
        processor_layers: int = 4,
        mesh_aggr: str = "sum",
        num_past_forcing_steps: int = 1,
        num_future_forcing_steps: int = 1,
        output_std: bool = False,
        output_clamping_lower: dict[str, float] | None = None,
        output_clamping_upper: dict[str, float] | None = None,
        g2m_gnn_type: str = "InteractionNet",
        m2g_gnn_type: str = "InteractionNet",
        **_kwargs: object,
    ) -> None:
        self._build(
            datastore,
            graph_name,
            ForcingWindow(num_past_forcing_steps, num_future_forcing_steps),
            Clamping(dict(output_clamping_lower or {}), dict(output_clamping_upper or {})),
            hidden_dim=hidden_dim,
            hidden_layers=hidden_layers,
            processor_layers=processor_layers,
            mesh_aggr=mesh_aggr,
            output_std=bool(output_std),
            g2m_gnn_type=g2m_gnn_type,
            m2g_gnn_type=m2g_gnn_type,
        )


class _HierarchicalPredictor(Predictor):
    def __init__(
        self,
        datastore: Any,
        graph_name: str = "multiscale",
        hidden_dim: int = 64,
        hidden_layers: int = 1,
        processor_layers: int = 4,
        mesh_aggr: str = "sum",
        num_past_forcing_steps: int = 1,
        num_future_forcing_steps: int = 1,
        output_std: bool = False,
        output_clamping_lower: dict[str, float] | None = None,
        output_clamping_upper: dict[str, float] | None = None,
        g2m_gnn_type: str = "InteractionNet",
        m2g_gnn_type: str = "InteractionNet",
        mesh_up_gnn_type: str = "InteractionNet",
        mesh_down_gnn_type: str = "InteractionNet",
    ) -> None:
        self._build(
            datastore,
            graph_name,
            ForcingWindow(num_past_forcing_steps, num_future_forcing_steps),
            Clamping(dict(output_clamping_lower or {}), dict(output_clamping_upper or {})),
            hidden_dim=hidden_dim,
            hidden_layers=hidden_layers,
            processor_layers=processor_layers,
            mesh_aggr=mesh_aggr,
            output_std=bool(output_std),
            g2m_gnn_type=g2m_gnn_type,
            m2g_gnn_type=m2g_gnn_type,
            mesh_up_gnn_type=mesh_up_gnn_type,
            mesh_down_gnn_type=mesh_down_gnn_type,
        )
        self.level_mesh_sizes = [len(getattr(self, f"mesh_features_{level}")) for level in range(self.num_levels)]


class HiLAM(_HierarchicalPredictor, networks.HiLAM, hi_lam.HiLAM):
    """Drop-in for ``neural_lam.models.HiLAM``."""

    def unread_parameters(self) -> list[torch.nn.Parameter]:
        """Without processor layers nobody reads the edges inside the levels."""
        return [] if self.processor_layers else list(self.mesh_same_embedders.parameters())


class HiLAMParallel(_HierarchicalPredictor, networks.HiLAMParallel, hi_lam_parallel.HiLAMParallel):
    """Drop-in for ``neural_lam.models.HiLAMParallel``."""


PREDICTORS: dict[str, type[Predictor]] = {p.model: p for p in (GraphLAM, HiLAM, HiLAMParallel)}


def load_graph(datastore: Any, graph_name: str, num_grid: int) -> LamGraph:
    """Read the graph ``graph_name`` of a datastore.

    Raises
    ------
    InvalidInputError
        As `neural_lam_anemoi.graph_io.read_graph_directory`.
    """
    x_min, x_max, y_min, y_max = datastore.get_xy_extent(category="state")
    directory = datastore.root_path / "graph" / graph_name
    return read_graph_directory(directory, num_grid, max(x_max - x_min, y_max - y_min))


def static_features(datastore: Any) -> Tensor:
    """Standardised static fields of a datastore, ``(num_grid, num_static)`` float32; no columns if it has none."""
    fields = datastore.get_dataarray(category="static", split=None, standardize=True)
    if fields is None:
        return torch.empty((datastore.num_grid_points, 0), dtype=torch.float32)
    return torch.tensor(fields.values, dtype=torch.float32)


def state_statistics(datastore: Any) -> networks.StateStatistics:
    """Standardisation and one-step difference statistics of the state, float32 as neural-lam casts them."""
    values = datastore.get_standardization_dataarray(category="state")

    def column(name: str) -> Tensor:
        return torch.tensor(values[name].values, dtype=torch.float32)

    return networks.StateStatistics(
        names=datastore.get_vars_names(category="state"),
        mean=column("state_mean"),
        std=column("state_std"),
        diff_mean=column("state_diff_mean_standardized"),
        diff_std=column("state_diff_std_standardized"),
    )
