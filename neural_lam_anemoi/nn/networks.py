"""The three networks: encode the grid onto the mesh, process there, decode to the grid.

Parameters have neural-lam's names, order and shapes, and are created in its order: with the same random seed the same
initial weights come out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..architecture import Architecture
from ..errors import InvalidInputError
from ..graph import LamGraph
from .clamping import Clamping, clamped_update
from .edges import Edges
from .interaction import InteractionNet, ParallelInteractionNet, PropagationNet, recomputed
from .mlp import make_mlp
from .rows import GridRows
from .static import StaticEmbeddings

GRID_EDGES = ("g2m", "m2g")
"""Edge sets between grid and mesh."""


@dataclasses.dataclass(frozen=True)
class StateStatistics:
    """Constants of the state variables, each of shape ``(num_state,)``.

    ``mean`` and ``std`` standardise a state (clamping limits need them); ``diff_mean`` and ``diff_std`` rescale the
    network's output to the increment of a standardised state over one time step.
    """

    names: Sequence[str]
    mean: Tensor
    std: Tensor
    diff_mean: Tensor
    diff_std: Tensor


class LamNetwork(GridRows):
    """What the three networks share.

    Parameters
    ----------
    architecture : Architecture
        Names this network.
    graph : LamGraph
        As stored; it is normalised here.
    statistics : StateStatistics
        Of the state variables.
    clamping : Clamping
        Limits in physical units.
    save_statistics : bool
        Whether ``diff_mean`` and ``diff_std`` belong to the state_dict; neural-lam's don't.
    """

    checkpoint_layers: bool = False
    """Whether a layer's insides are computed again in the backward pass instead of being kept; may be set any time."""

    model: ClassVar[str]
    interaction_type: ClassVar[type[InteractionNet]] = InteractionNet
    propagation_type: ClassVar[type[InteractionNet]] = PropagationNet
    parallel_type: ClassVar[type[ParallelInteractionNet]] = ParallelInteractionNet
    state_mean: Tensor
    state_std: Tensor
    diff_mean: Tensor
    diff_std: Tensor

    def __init__(
        self,
        architecture: Architecture,
        graph: LamGraph,
        statistics: StateStatistics,
        clamping: Clamping | None = None,
        save_statistics: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        _check_fit(self.model, architecture, graph)
        self.architecture = architecture
        self.num_levels = graph.num_levels
        self.num_grid = graph.num_grid
        self.mesh_scaling = graph.mesh_scaling
        self._register_constants(statistics, clamping or Clamping(), save_statistics)
        normalised = graph.normalised()
        self.edges = nn.ModuleDict({name: Edges(edges) for name, edges in normalised.edge_sets().items()})
        for level, features in enumerate(normalised.mesh_coordinates):
            self.register_buffer(f"mesh_features_{level}", features, persistent=False)
        self._build_grid_part(normalised)
        self._build_mesh_part(normalised)

    def _register_constants(self, statistics: StateStatistics, clamping: Clamping, save: bool) -> None:
        self.register_buffer("state_mean", statistics.mean, persistent=False)
        self.register_buffer("state_std", statistics.std, persistent=False)
        self.register_buffer("diff_mean", statistics.diff_mean, persistent=save)
        self.register_buffer("diff_std", statistics.diff_std, persistent=save)
        for name, values in clamping.buffers(statistics.names, statistics.mean, statistics.std).items():
            self.register_buffer(name, values)

    def _build_grid_part(self, graph: LamGraph) -> None:
        a = self.architecture
        self.grid_embedder = make_mlp([a.grid_input_dim, *a.mlp_widths])
        self.g2m_embedder = make_mlp([graph.g2m.features.shape[1], *a.mlp_widths])
        self.m2g_embedder = make_mlp([graph.m2g.features.shape[1], *a.mlp_widths])
        self.g2m_gnn = self._layer(a.g2m_gnn_type)
        self.encoding_grid_mlp = make_mlp([a.hidden_dim, *a.mlp_widths])
        self.m2g_gnn = self._layer(a.m2g_gnn_type)
        self.output_map = make_mlp([*a.mlp_widths, a.grid_output_dim], layer_norm=False)

    def _build_mesh_part(self, graph: LamGraph) -> None:
        raise NotImplementedError

    def _layer(self, gnn_type: str = "InteractionNet", mean: bool = False) -> InteractionNet:
        layer = self.propagation_type if gnn_type == "PropagationNet" else self.interaction_type
        return layer(self.architecture.hidden_dim, self.architecture.hidden_layers, mean)

    def pass_messages(self, layer: nn.Module, *arguments: Any) -> Any:
        """``layer(*arguments)``, checkpointed if `checkpoint_layers`; exchanges in it are repeated on every rank alike."""
        return recomputed(layer, *arguments) if self.checkpoint_layers else layer(*arguments)

    def chunk_edges(self, grid: int = 1, mesh: int = 1) -> None:
        """Compute messages in so many parts, between grid and mesh and on the mesh: more need less memory, and time.

        Results differ by rounding. In training each part is computed again in the backward pass. May be set any time.
        """
        for name in self.edges:
            self.edge_set(name).num_chunks = grid if name in GRID_EDGES else mesh

    def edge_set(self, name: str) -> Edges:
        """The edge set ``name`` as this network holds it."""
        edges = self.edges[name]
        assert isinstance(edges, Edges)
        return edges

    def embed_static(self) -> StaticEmbeddings:
        """Embeddings of mesh nodes and edges, to be computed once per rollout and handed to every step of it."""
        mesh = [
            embedder(getattr(self, f"mesh_features_{level}")).unsqueeze(1)
            for level, embedder in enumerate(self._mesh_node_embedders())
        ]
        embedders = self._edge_embedders().items()
        edges = {name: embedder(self.edge_set(name).features).unsqueeze(1) for name, embedder in embedders}
        return StaticEmbeddings(mesh, edges)

    def static_embedders(self) -> list[nn.Module]:
        """The MLPs whose weights decide what `embed_static` gives."""
        return [*self._mesh_node_embedders(), *self._edge_embedders().values()]

    def _mesh_node_embedders(self) -> list[nn.Module]:
        raise NotImplementedError

    def _edge_embedders(self) -> dict[str, nn.Module]:
        return {"g2m": self.g2m_embedder, "m2g": self.m2g_embedder}

    def process(self, static: StaticEmbeddings, mesh: Tensor) -> Tensor:
        """Message passing on the mesh; ``mesh`` is the finest level, ``(nodes, B, d)`` in and out."""
        raise NotImplementedError

    def encode_process_decode(self, grid: Tensor, static: StaticEmbeddings) -> Tensor:
        """Grid input ``(num_grid, B, grid_input_dim)`` to grid output ``(num_grid, B, grid_output_dim)``."""
        grid = self.grid_embedder(grid)
        g2m, m2g = self.edge_set("g2m"), self.edge_set("m2g")
        mesh, _ = self.pass_messages(self.g2m_gnn, g2m, grid, static.mesh[0], static.edges["g2m"], False)
        grid = grid + self.encoding_grid_mlp(grid)
        mesh = self.process(static, mesh)
        grid, _ = self.pass_messages(self.m2g_gnn, m2g, mesh, grid, static.edges["m2g"], False)
        return self.output_map(grid)

    def step(
        self,
        prev_state: Tensor,
        prev_prev_state: Tensor,
        forcing: Tensor,
        static_fields: Tensor,
        static: StaticEmbeddings | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Advance a standardised state by one time step.

        Parameters
        ----------
        prev_state, prev_prev_state : Tensor
            States at t and t-1, shape ``(B, num_grid, num_state)``.
        forcing : Tensor
            Windowed forcing round t+1, shape ``(B, num_grid, num_forcing)``.
        static_fields : Tensor
            Shape ``(num_grid, num_static)`` or ``(B, num_grid, num_static)``.
        static : StaticEmbeddings, optional
            From `embed_static`; computed here if not given.

        When sharded, ``num_grid`` is the number of this rank's `grid_rows`, and their order is expected: rows in another
        order can't be told from right ones.

        Returns
        -------
        state : Tensor
            At t+1, shape ``(B, num_grid, num_state)``.
        std : Tensor or None
            Predicted spread, same shape, if the architecture has ``output_std``.

        Raises
        ------
        InvalidInputError
            Full-size tensors where local rows are due, or the reverse.
        """
        self.check_rows(
            prev_state=prev_state, prev_prev_state=prev_prev_state, forcing=forcing, static_fields=static_fields
        )
        if static is None:
            static = self.embed_static()
        static_fields = static_fields.expand(prev_state.shape[0], -1, -1)
        grid = torch.cat((prev_state, prev_prev_state, forcing, static_fields), dim=-1)
        output = self.encode_process_decode(grid.transpose(0, 1).contiguous(), static).transpose(0, 1)
        std = None
        if self.architecture.output_std:
            output, raw_std = output.chunk(2, dim=-1)
            std = F.softplus(raw_std)
        return clamped_update(self, output * self.diff_std + self.diff_mean, prev_state), std


class GraphLAM(LamNetwork):
    """graph_lam: one mesh level, possibly with edges of several lengths."""

    model = "graph_lam"

    def _build_mesh_part(self, graph: LamGraph) -> None:
        a = self.architecture
        self.mesh_embedder = make_mlp([graph.mesh_coordinates[0].shape[1], *a.mlp_widths])
        self.m2m_embedder = make_mlp([graph.m2m[0].features.shape[1], *a.mlp_widths])
        layers = {f"module_{i}": self._layer(mean=a.mesh_aggr == "mean") for i in range(a.processor_layers)}
        self.processor = nn.ModuleDict(layers)

    def _mesh_node_embedders(self) -> list[nn.Module]:
        return [self.mesh_embedder]

    def _edge_embedders(self) -> dict[str, nn.Module]:
        return super()._edge_embedders() | {"m2m_0": self.m2m_embedder}

    def process(self, static: StaticEmbeddings, mesh: Tensor) -> Tensor:
        """Every layer on the one edge set of the mesh."""
        edges, edge_rep = self.edge_set("m2m_0"), static.edges["m2m_0"]
        last = len(self.processor) - 1
        for i, layer in enumerate(self.processor.values()):
            mesh, edge_rep = self.pass_messages(layer, edges, mesh, mesh, edge_rep, i < last)
        return mesh


class HierarchicalLAM(LamNetwork):
    """What the two networks on a mesh of several levels share: up to initialise, process, down to read out."""

    def _build_mesh_part(self, graph: LamGraph) -> None:
        a, levels = self.architecture, graph.num_levels

        def embedders(width: int, count: int) -> nn.ModuleList:
            return nn.ModuleList([make_mlp([width, *a.mlp_widths]) for _ in range(count)])

        self.mesh_embedders = embedders(graph.mesh_coordinates[0].shape[1], levels)
        self.mesh_same_embedders = embedders(graph.m2m[0].features.shape[1], levels)
        self.mesh_up_embedders = embedders(graph.mesh_up[0].features.shape[1], levels - 1)
        self.mesh_down_embedders = embedders(graph.mesh_down[0].features.shape[1], levels - 1)
        self.mesh_init_gnns = nn.ModuleList([self._layer(a.mesh_up_gnn_type) for _ in range(levels - 1)])
        self.mesh_read_gnns = nn.ModuleList([self._layer(a.mesh_down_gnn_type) for _ in range(levels - 1)])
        self._build_processor()

    def _build_processor(self) -> None:
        raise NotImplementedError

    def _mesh_node_embedders(self) -> list[nn.Module]:
        return list(self.mesh_embedders)

    def _edge_embedders(self) -> dict[str, nn.Module]:
        named = super()._edge_embedders()
        named |= {f"m2m_{level}": mlp for level, mlp in enumerate(self.mesh_same_embedders)}
        named |= {f"mesh_up_{level}": mlp for level, mlp in enumerate(self.mesh_up_embedders)}
        named |= {f"mesh_down_{level}": mlp for level, mlp in enumerate(self.mesh_down_embedders)}
        return named

    def process(self, static: StaticEmbeddings, mesh: Tensor) -> Tensor:
        """Initialise the coarser levels from the finest, run the processor, read out level by level."""
        nodes = [mesh, *static.mesh[1:]]
        edges = dict(static.edges)
        for level, layer in enumerate(self.mesh_init_gnns):
            self._pass(layer, f"mesh_up_{level}", nodes, edges, level, level + 1)
        self.process_levels(nodes, edges)
        for level in reversed(range(self.num_levels - 1)):
            down = f"mesh_down_{level}"
            self._pass(self.mesh_read_gnns[level], down, nodes, edges, level + 1, level, update_edges=False)
        return nodes[0]

    def process_levels(self, nodes: list[Tensor], edges: dict[str, Tensor]) -> None:
        """Update the nodes of every level and the edge representations in place of the old ones."""
        raise NotImplementedError

    def _pass(
        self,
        layer: nn.Module,
        name: str,
        nodes: list[Tensor],
        edges: dict[str, Tensor],
        sender: int,
        receiver: int,
        update_edges: bool = True,
    ) -> None:
        ends = (nodes[sender], nodes[receiver])
        new_nodes, new_edges = self.pass_messages(layer, self.edge_set(name), *ends, edges[name], update_edges)
        nodes[receiver] = new_nodes
        if update_edges:
            edges[name] = new_edges


class HiLAM(HierarchicalLAM):
    """hi_lam: every processor layer sweeps down and up the hierarchy, level by level."""

    model = "hi_lam"

    def _build_processor(self) -> None:
        a = self.architecture

        def per_layer(gnn_type: str, count: int) -> nn.ModuleList:
            return nn.ModuleList(
                [nn.ModuleList([self._layer(gnn_type) for _ in range(count)]) for _ in range(a.processor_layers)]
            )

        self.mesh_down_gnns = per_layer(a.mesh_down_gnn_type, self.num_levels - 1)
        self.mesh_down_same_gnns = per_layer("InteractionNet", self.num_levels)
        self.mesh_up_gnns = per_layer(a.mesh_up_gnn_type, self.num_levels - 1)
        self.mesh_up_same_gnns = per_layer("InteractionNet", self.num_levels)

    def process_levels(self, nodes: list[Tensor], edges: dict[str, Tensor]) -> None:
        """Sweep down and up once per layer; edges nobody reads any more are not updated."""
        top, last = self.num_levels - 1, self.architecture.processor_layers - 1
        nested = (self.mesh_down_gnns, self.mesh_down_same_gnns, self.mesh_up_gnns, self.mesh_up_same_gnns)
        for i in range(self.architecture.processor_layers):
            down, down_same, up, up_same = (cast(nn.ModuleList, layers[i]) for layers in nested)
            read_again = i < last
            self._pass(down_same[top], f"m2m_{top}", nodes, edges, top, top)
            for level in reversed(range(top)):
                self._pass(down[level], f"mesh_down_{level}", nodes, edges, level + 1, level)
                self._pass(down_same[level], f"m2m_{level}", nodes, edges, level, level)
            self._pass(up_same[0], "m2m_0", nodes, edges, 0, 0, read_again)
            for level in range(top):
                above = level + 1
                self._pass(up[level], f"mesh_up_{level}", nodes, edges, level, above, read_again)
                self._pass(up_same[above], f"m2m_{above}", nodes, edges, above, above, read_again)


class HiLAMParallel(HierarchicalLAM):
    """hi_lam_parallel: every processor layer passes messages along all edges of the hierarchy at once."""

    model = "hi_lam_parallel"

    def _build_processor(self) -> None:
        a, levels = self.architecture, self.num_levels
        widths = (a.hidden_dim, a.hidden_layers, 3 * levels - 2, levels)
        self.processor = nn.ModuleDict({f"module_{i}": self.parallel_type(*widths) for i in range(a.processor_layers)})

    def _sections(self) -> list[tuple[str, int, int]]:
        """Edge sets with sender and receiver level, in the order of neural-lam's MLPs: same, up, down."""
        gaps = range(self.num_levels - 1)
        return [
            *((f"m2m_{level}", level, level) for level in range(self.num_levels)),
            *((f"mesh_up_{level}", level, level + 1) for level in gaps),
            *((f"mesh_down_{level}", level + 1, level) for level in gaps),
        ]

    def process_levels(self, nodes: list[Tensor], edges: dict[str, Tensor]) -> None:
        """All edge sets at once; after the last layer only the down edges are read again."""
        sections = self._sections()
        if not self.processor:
            self._touch_all(edges)
        edge_sets = [(self.edge_set(name), sender, receiver) for name, sender, receiver in sections]
        last = len(self.processor) - 1
        for i, layer in enumerate(self.processor.values()):
            wanted = [i < last or name.startswith("mesh_down") for name, _, _ in sections]
            before = [edges[name] for name, _, _ in sections]
            nodes[:], updated = self.pass_messages(layer, edge_sets, list(nodes), before, wanted)
            edges.update({name: rep for (name, _, _), rep in zip(sections, updated, strict=True) if rep is not None})

    def _touch_all(self, edges: dict[str, Tensor]) -> None:
        """Give edges nobody reads a zero gradient instead of none, as neural-lam does by joining and splitting all."""
        unread = sum(edges[name].sum() for name, _, _ in self._sections()) * 0
        edges["mesh_down_0"] = edges["mesh_down_0"] + unread


NETWORKS: dict[str, type[LamNetwork]] = {network.model: network for network in (GraphLAM, HiLAM, HiLAMParallel)}


def _check_fit(model: str, architecture: Architecture, graph: LamGraph) -> None:
    if architecture.model != model:
        raise InvalidInputError(f"{model}: the architecture is of {architecture.model}")
    architecture.check_levels(graph.num_levels)
