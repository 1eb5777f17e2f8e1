"""Message passing inside one node set."""

from __future__ import annotations

from typing import Any, ClassVar

from anemoi.models.distributed.shapes import GraphShardInfo
from anemoi.models.layers.processor import BaseProcessor
from anemoi.models.layers.utils import maybe_checkpoint
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroup

from neural_lam_anemoi.nn.edges import Edges
from neural_lam_anemoi.nn.interaction import InteractionNet, PropagationNet
from neural_lam_anemoi.nn.mlp import make_mlp

from .edges import all_rows, own_rows, rank_edges
from .options import mlp_widths, refuse_conditioning, require_edges, takes_mean, use_kernels


class InteractionNetProcessor(BaseProcessor):
    """graph_lam's processor: embed the edges, then pass messages ``num_layers`` times.

    Parameters
    ----------
    num_layers, num_channels, num_chunks, cpu_offload, gradient_checkpointing
        As in Anemoi's ``GNNProcessor``; layers are checkpointed in ``num_chunks`` groups.
    edge_dim : int
        Width of the edge attributes, trainable ones included; Anemoi's model gives it.
    mlp_extra_layers : int
        Hidden layers of every MLP beyond neural-lam's one.
    mlp_hidden_ratio, mlp_implementation
        Must be 1.0 and ``mlp``.
    aggr : {"sum", "mean"}
        How messages are aggregated; PropagationNets always take the mean.
    layer_kernels : mapping, optional
        Layers to use in the place of neural-lam's Linear, SiLU (``Activation``) and LayerNorm.

    Raises
    ------
    InvalidInputError
        The configuration asks for what these layers don't have, or the graph has no edges.
    """

    layer_type: ClassVar[type[InteractionNet]] = InteractionNet

    def __init__(
        self,
        *,
        num_layers: int,
        num_channels: int,
        edge_dim: int,
        num_chunks: int = 1,
        mlp_extra_layers: int = 0,
        mlp_hidden_ratio: float = 1.0,
        mlp_implementation: str = "mlp",
        aggr: str = "sum",
        cpu_offload: bool = False,
        gradient_checkpointing: bool = True,
        layer_kernels: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_layers=num_layers,
            num_channels=num_channels,
            num_chunks=num_chunks,
            gradient_checkpointing=gradient_checkpointing,
            layer_kernels=layer_kernels,
            **kwargs,
        )
        require_edges(edge_dim)
        widths = mlp_widths(num_channels, mlp_extra_layers, mlp_hidden_ratio, mlp_implementation)
        self.emb_edges = make_mlp([edge_dim, *widths])
        self.build_layers(self.layer_type, num_channels, mlp_extra_layers + 1, takes_mean(aggr))
        use_kernels(self, layer_kernels, self.layer_factory)
        self.offload_layers(cpu_offload)

    def run_layer_chunk(self, chunk_start: int, data: tuple, edges: Edges) -> tuple:
        """A group of layers on ``data``, nodes and edges; the last layer of all doesn't update the edges."""
        nodes, edge_rep = data
        for i in range(chunk_start, chunk_start + self.chunk_size):
            nodes, edge_rep = self.proc[i](edges, nodes, nodes, edge_rep, update_edges=i < self.num_layers - 1)
        return nodes, edge_rep

    def forward(
        self,
        x: Tensor,
        batch_size: int,
        shard_info: GraphShardInfo,
        edge_attr: Tensor,
        edge_index: Tensor,
        model_comm_group: ProcessGroup | None = None,
        edges_are_dst_sorted: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Process the nodes; every rank of ``model_comm_group`` calls this.

        Parameters
        ----------
        x : Tensor
            Shape ``(rows, num_channels)``: this rank's rows, or all if ``shard_info`` has no sizes of nodes.
        batch_size : int
            Not needed: the batch is part of the rows.
        shard_info : GraphShardInfo
            Rows of each rank and, if the edges are this rank's alone, edges of each rank.
        edge_attr, edge_index : Tensor
            Shapes ``(edges, edge_dim)`` and ``(2, edges)``.
        model_comm_group : ProcessGroup, optional
            The ranks that compute a sample together.
        edges_are_dst_sorted : bool
            Whether the edges are in the order of their receivers.

        Returns
        -------
        Tensor
            Same shape as ``x``.

        Raises
        ------
        InvalidInputError
            Nodes cut into unequal parts, or a model that conditions its layers.
        """
        refuse_conditioning(kwargs)
        nodes, sizes = own_rows(x, shard_info.nodes, model_comm_group)
        edges = rank_edges(
            edge_attr, edge_index, shard_info.edges, (sizes, sizes), model_comm_group, edges_are_dst_sorted
        )
        edge_rep = maybe_checkpoint(self.emb_edges, self.gradient_checkpointing, edges.features)
        nodes, _ = self.run_layers((nodes.unsqueeze(1), edge_rep.unsqueeze(1)), edges)
        nodes = nodes.squeeze(1)
        return nodes if shard_info.nodes_are_sharded() else all_rows(nodes, sizes, model_comm_group)


class PropagationNetProcessor(InteractionNetProcessor):
    """The same with PropagationNets: what receivers get is the mean of their senders, corrected."""

    layer_type = PropagationNet
