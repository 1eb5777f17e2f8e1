"""Message passing from one node set to another: from data to hidden nodes, and back."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar

import torch
from anemoi.models.distributed.shapes import BipartiteGraphShardInfo
from anemoi.models.layers.mapper import BaseMapper
from anemoi.models.layers.utils import maybe_checkpoint
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper
from torch.distributed.distributed_c10d import ProcessGroup

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.nn.edges import Edges
from neural_lam_anemoi.nn.interaction import InteractionNet, PropagationNet
from neural_lam_anemoi.nn.mlp import make_mlp

from .edges import all_rows, own_rows, rank_edges, receiver_chunks
from .options import mlp_widths, refuse_conditioning, require_edges, takes_mean, use_kernels

Pair = tuple[Tensor, Tensor]


class _Mapper(BaseMapper, ABC):
    """What the mappers share.

    Parameters
    ----------
    in_channels_src, in_channels_dst, out_channels_dst, num_channels, cpu_offload, gradient_checkpointing
        As in Anemoi's ``GNNForwardMapper`` and ``GNNBackwardMapper``.
    edge_dim : int
        Width of the edge attributes, trainable ones included; Anemoi's model gives it.
    num_chunks : int
        The receivers are computed, and checkpointed, in so many parts.
    mlp_extra_layers, mlp_hidden_ratio, mlp_implementation, aggr, layer_kernels
        As in `InteractionNetProcessor`.

    Raises
    ------
    InvalidInputError
        The configuration asks for what these layers don't have, or the graph has no edges.
    """

    layer_type: ClassVar[type[InteractionNet]] = InteractionNet
    proc: nn.Module  # type: ignore[assignment]

    def __init__(
        self,
        *,
        in_channels_src: int,
        in_channels_dst: int,
        num_channels: int,
        edge_dim: int,
        out_channels_dst: int | None = None,
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
            in_channels_src=in_channels_src,
            in_channels_dst=in_channels_dst,
            hidden_dim=num_channels,
            out_channels_dst=out_channels_dst,
            gradient_checkpointing=gradient_checkpointing,
            layer_kernels=layer_kernels,
            **kwargs,
        )
        require_edges(edge_dim)
        self.num_chunks = num_chunks
        widths = mlp_widths(num_channels, mlp_extra_layers, mlp_hidden_ratio, mlp_implementation)
        self.emb_edges = make_mlp([edge_dim, *widths])
        self.proc = self.layer_type(num_channels, mlp_extra_layers + 1, takes_mean(aggr))
        self._build_node_mlps(widths)
        use_kernels(self, layer_kernels, self.layer_factory)
        if cpu_offload:
            self.proc = offload_wrapper(self.proc)

    def _build_node_mlps(self, widths: list[int]) -> None:
        raise NotImplementedError

    def _map(
        self,
        x: Pair,
        shard_info: BipartiteGraphShardInfo,
        edge_attr: Tensor,
        edge_index: Tensor,
        model_comm_group: ProcessGroup | None,
        keep_x_dst_sharded: bool,
        edges_are_dst_sorted: bool,
    ) -> tuple[Tensor, Tensor, list[int]]:
        """This rank's embedded senders, the receivers' output, and the senders of each rank."""
        x_src, src_sizes = own_rows(x[0], shard_info.src_nodes, model_comm_group)
        x_dst, dst_sizes = own_rows(x[1], shard_info.dst_nodes, model_comm_group)
        sizes = src_sizes, dst_sizes
        edges = rank_edges(edge_attr, edge_index, shard_info.edges, sizes, model_comm_group, edges_are_dst_sorted)
        x_src, x_dst = maybe_checkpoint(self.pre_process, self.gradient_checkpointing, (x_src, x_dst))
        x_dst = self._pass_messages(edges, x_src, x_dst)
        if not keep_x_dst_sharded:
            x_dst = all_rows(x_dst, dst_sizes, model_comm_group)
        return x_src, x_dst, src_sizes

    def _pass_messages(self, edges: Edges, x_src: Tensor, x_dst: Tensor) -> Tensor:
        """The senders' rows are brought here once, then the receivers are computed part by part."""
        senders = edges.bring(x_src.unsqueeze(1))()
        parts = [
            maybe_checkpoint(self._compute_part, self.gradient_checkpointing, part, senders[used], x_dst[rows])
            for rows, part, used in receiver_chunks(edges, self.num_chunks)
        ]
        return torch.cat(parts)

    def _compute_part(self, edges: Edges, senders: Tensor, x_dst: Tensor) -> Tensor:
        edge_rep = self.emb_edges(edges.features).unsqueeze(1)
        x_dst, _ = self.proc(edges, senders, x_dst.unsqueeze(1), edge_rep, update_edges=False)
        return self.post_process(x_dst.squeeze(1))


class InteractionNetForwardMapper(_Mapper):
    """graph_lam's encoder: embed both node sets and the edges, pass messages once, and update the senders by an MLP.

    Parameters
    ----------
    update_src_nodes : bool
        Whether the new senders are given back, which a decoder with ``target_node_features: [encoded_data]`` reads, as
        Anemoi's ``GNNForwardMapper`` does. With False they are given back as they came, as its ``GraphTransformer…``,
        ``Transformer…`` and ``PointWiseForwardMapper`` do; choose that beside their decoders, and where no decoder reads
        encoded data, or the MLP gets no gradients.
    **kwargs
        As in `_Mapper`.
    """

    def __init__(self, *, update_src_nodes: bool = True, **kwargs: Any) -> None:
        self._updates_senders = update_src_nodes
        super().__init__(**kwargs)

    def _build_node_mlps(self, widths: list[int]) -> None:
        self.emb_nodes_src = make_mlp([self.in_channels_src, *widths])
        self.emb_nodes_dst = make_mlp([self.in_channels_dst, *widths])
        self.src_mlp = make_mlp([self.hidden_dim, *widths]) if self._updates_senders else None

    def pre_process(self, x: Pair) -> Pair:
        """Embed senders and receivers: ``(rows, num_channels)`` each."""
        return self.emb_nodes_src(x[0]), self.emb_nodes_dst(x[1])

    def post_process(self, x_dst: Tensor) -> Tensor:
        """Nothing is left to do."""
        return x_dst

    def forward(  # type: ignore[override]
        self,
        x: Pair,
        batch_size: int,
        shard_info: BipartiteGraphShardInfo,
        edge_attr: Tensor,
        edge_index: Tensor,
        model_comm_group: ProcessGroup | None = None,
        keep_x_dst_sharded: bool = False,
        edges_are_dst_sorted: bool = True,
        **kwargs: Any,
    ) -> Pair:
        """Map data to hidden nodes; every rank of ``model_comm_group`` calls this.

        Parameters
        ----------
        x : (Tensor, Tensor)
            Senders ``(rows, in_channels_src)`` and receivers ``(rows, in_channels_dst)``: this rank's rows, or all
            where ``shard_info`` has no sizes.
        batch_size, shard_info, edge_attr, edge_index, model_comm_group, edges_are_dst_sorted
            As in `InteractionNetProcessor.forward`.
        keep_x_dst_sharded : bool
            Whether the receivers given back are this rank's alone.

        Returns
        -------
        x_src : Tensor
            New senders ``(rows, num_channels)``, as many as there came, or ``x[0]`` without ``update_src_nodes``.
        x_dst : Tensor
            Shape ``(rows, num_channels)``.

        Raises
        ------
        InvalidInputError
            Receivers cut into unequal parts, or a model that conditions its layers.
        """
        refuse_conditioning(kwargs)
        x_src, x_dst, src_sizes = self._map(
            x, shard_info, edge_attr, edge_index, model_comm_group, keep_x_dst_sharded, edges_are_dst_sorted
        )
        if self.src_mlp is None:
            return x[0], x_dst
        x_src = x_src + maybe_checkpoint(self.src_mlp, self.gradient_checkpointing, x_src)
        if not shard_info.src_is_sharded():
            x_src = all_rows(x_src, src_sizes, model_comm_group)
        return x_src, x_dst


class InteractionNetBackwardMapper(_Mapper):
    """graph_lam's decoder: pass messages once, then map the receivers to the output by an MLP.

    Parameters
    ----------
    embed_dst_nodes : bool
        Whether receivers come with ``in_channels_dst`` channels and are embedded. By default they are expected to have
        ``num_channels``, as an encoder that updates its senders gives them back (ours, Anemoi's ``GNNForwardMapper``)
        with ``target_node_features: [encoded_data]``. Choose True beside any other encoder or target features.
    **kwargs
        As in `_Mapper`.
    """

    def __init__(self, *, embed_dst_nodes: bool = False, **kwargs: Any) -> None:
        self._embeds_receivers = embed_dst_nodes
        super().__init__(**kwargs)

    def _build_node_mlps(self, widths: list[int]) -> None:
        same = self.in_channels_src == self.hidden_dim
        self.emb_nodes_src = nn.Identity() if same else make_mlp([self.in_channels_src, *widths])
        self.emb_nodes_dst = make_mlp([self.in_channels_dst, *widths]) if self._embeds_receivers else nn.Identity()
        assert self.out_channels_dst is not None, "Anemoi's model gives it to every decoder"
        self.node_data_extractor = make_mlp([*widths, self.out_channels_dst], layer_norm=False)

    def pre_process(self, x: Pair) -> Pair:
        """Embed what isn't yet: ``(rows, num_channels)`` each.

        Raises
        ------
        InvalidInputError
            The receivers have another width.
        """
        due = self.in_channels_dst if self._embeds_receivers else self.hidden_dim
        if x[1].shape[-1] != due:
            raise InvalidInputError(
                f"the decoder's receivers have {x[1].shape[-1]} channels, {due} are due with embed_dst_nodes: "
                f"{self._embeds_receivers}; set it to {not self._embeds_receivers}, or change target_node_features"
            )
        return self.emb_nodes_src(x[0]), self.emb_nodes_dst(x[1])

    def post_process(self, x_dst: Tensor) -> Tensor:
        """Receivers ``(rows, num_channels)`` to output ``(rows, out_channels_dst)``."""
        return self.node_data_extractor(x_dst)

    def forward(  # type: ignore[override]
        self,
        x: Pair,
        batch_size: int,
        shard_info: BipartiteGraphShardInfo,
        edge_attr: Tensor,
        edge_index: Tensor,
        model_comm_group: ProcessGroup | None = None,
        keep_x_dst_sharded: bool = False,
        edges_are_dst_sorted: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Map hidden to data nodes; every rank of ``model_comm_group`` calls this.

        Parameters
        ----------
        x : (Tensor, Tensor)
            Senders ``(rows, in_channels_src)`` and receivers ``(rows, num_channels)``, or ``in_channels_dst`` channels
            with ``embed_dst_nodes``.
        batch_size, shard_info, edge_attr, edge_index, model_comm_group, keep_x_dst_sharded, edges_are_dst_sorted
            As in `InteractionNetForwardMapper.forward`.

        Returns
        -------
        Tensor
            Shape ``(rows, out_channels_dst)``.

        Raises
        ------
        InvalidInputError
            Receivers of another width or cut into unequal parts, or a model that conditions its layers.
        """
        refuse_conditioning(kwargs)
        _, x_dst, _ = self._map(
            x, shard_info, edge_attr, edge_index, model_comm_group, keep_x_dst_sharded, edges_are_dst_sorted
        )
        return x_dst


class PropagationNetForwardMapper(InteractionNetForwardMapper):
    """The same with a PropagationNet: hidden nodes start from the mean of their data nodes, corrected."""

    layer_type = PropagationNet


class PropagationNetBackwardMapper(InteractionNetBackwardMapper):
    """The same with a PropagationNet: data nodes start from the mean of their hidden nodes, corrected."""

    layer_type = PropagationNet
