"""From what Anemoi hands its layers to the core's `Edges`: this rank's part of a graph, and pieces of it.

Anemoi flattens batch, ensemble and grid into node rows and repeats the edges for every batch entry with shifted indices:
to a layer that is one graph with more nodes. When sharded, a rank is given contiguous rows of both node sets and the
edges into its receivers, which name nodes by their rows in the whole. Remote senders are fetched by the core's halo
exchange: Anemoi's ``sync_tensor`` brings every node to every rank and rounds gradients to float32, its
``build_halo_info`` takes edges to be symmetric.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from anemoi.models.distributed.graph import ensure_sharded, gather_tensor
from anemoi.models.distributed.khop_edges import shard_edges_1hop
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroup

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.graph import EdgeSet
from neural_lam_anemoi.nn.edges import Edges
from neural_lam_anemoi.sharding.halo import Halo, ModelGroup
from neural_lam_anemoi.sharding.parts import EdgePart

Sizes = list[int]
"""Rows of each rank."""


class RankEdges(Edges):
    """The edges into one rank's receivers; remote senders stand behind the local ones.

    Parameters
    ----------
    part : EdgePart
        This rank's.
    features : Tensor
        Of its edges, ``(edges, F)``.
    group : ModelGroup
        Who holds the other parts.
    """

    def __init__(self, part: EdgePart, features: Tensor, group: ModelGroup) -> None:
        index = torch.stack([part.senders, part.receivers])
        super().__init__(EdgeSet(index, features, part.num_senders + part.num_halo, part.num_receivers))
        self.halo = Halo(part, group)

    def bring(self, x: Tensor) -> Callable[[], Tensor]:
        """Start fetching the halo of ``x``; see `neural_lam_anemoi.nn.edges.Edges.bring`."""
        return self.halo.bring(x)


def own_rows(x: Tensor, sizes: Sizes | None, group: ProcessGroup | None) -> tuple[Tensor, Sizes]:
    """This rank's rows of ``x``, and the rows of each rank; ``sizes`` is None if ``x`` has the rows of all."""
    rows, known = ensure_sharded(x, 0, sizes, group)
    assert known is not None
    return rows, known


def all_rows(x: Tensor, sizes: Sizes, group: ProcessGroup | None) -> Tensor:
    """The rows of every rank, brought together on every rank."""
    return x if group is None else gather_tensor(x, 0, sizes, group)


def rank_edges(
    attributes: Tensor,
    index: Tensor,
    edge_sizes: Sizes | None,
    node_sizes: tuple[Sizes, Sizes],
    group: ProcessGroup | None,
    sorted_by_receiver: bool = True,
) -> Edges:
    """The edges that this rank passes messages along; a collective call if the group has several ranks.

    Parameters
    ----------
    attributes : Tensor
        Shape ``(edges, F)``.
    index : Tensor
        Shape ``(2, edges)``: rows of senders and receivers in the whole node sets.
    edge_sizes : list of int or None
        Edges of each rank if ``attributes`` and ``index`` are this rank's alone, None if they are all edges.
    node_sizes : (list of int, list of int)
        Rows of each rank in the senders and the receivers.
    group : ProcessGroup or None
        Anemoi's model communication group.
    sorted_by_receiver : bool
        Whether ``index`` is; any order will do, but Anemoi cuts sorted edges faster.

    Returns
    -------
    Edges
        Its features are ``attributes``, sorted by receiver.

    Raises
    ------
    InvalidInputError
        The receivers are cut differently from how Anemoi cuts edges.
    """
    totals = sum(node_sizes[0]), sum(node_sizes[1])
    if group is None or group.size() == 1:
        return Edges(EdgeSet(index, attributes, *totals))
    if node_sizes[1] != get_balanced_partition_sizes(totals[1], group.size()):
        raise InvalidInputError(f"the receivers are cut into {node_sizes[1]} rows; Anemoi cuts edges for equal parts")
    if edge_sizes is None:
        attributes, index, edge_sizes = shard_edges_1hop(attributes, index, *totals, group, sorted_by_receiver)
        assert edge_sizes is not None
    members = ModelGroup(group)
    return RankEdges(_edge_part(index, edge_sizes, node_sizes, members), attributes, members)


def _edge_part(index: Tensor, edge_sizes: Sizes, node_sizes: tuple[Sizes, Sizes], group: ModelGroup) -> EdgePart:
    """Number a rank's senders and receivers; the ranks tell each other which senders they need."""
    senders, receivers = index
    rank, (sender_sizes, receiver_sizes) = group.rank, node_sizes
    first, num_senders = sum(sender_sizes[:rank]), sender_sizes[rank]
    remote = (senders < first) | (senders >= first + num_senders)
    needed = torch.unique(senders[remote])
    ends = torch.tensor(list(itertools.accumulate(sender_sizes)), device=index.device)
    owners = torch.searchsorted(ends, needed, right=True)
    counts = torch.bincount(owners, minlength=group.size)
    asked_counts = torch.empty_like(counts)
    dist.all_to_all_single(asked_counts, counts, group=group.process_group)
    outgoing, incoming = counts.tolist(), asked_counts.tolist()
    asked = needed.new_empty(sum(incoming))
    dist.all_to_all_single(asked, needed, incoming, outgoing, group=group.process_group)
    start = sum(edge_sizes[:rank])
    return EdgePart(
        edges=torch.arange(start, start + edge_sizes[rank], device=index.device),
        senders=torch.where(remote, num_senders + torch.searchsorted(needed, senders), senders - first),
        receivers=receivers - sum(receiver_sizes[:rank]),
        num_senders=num_senders,
        num_receivers=receiver_sizes[rank],
        send=(asked - first).split(incoming),
        receive_counts=tuple(outgoing),
        exchanged=True,
        summed=False,
    )


def receiver_chunks(edges: Edges, count: int) -> Iterator[tuple[slice, Edges, Tensor]]:
    """Cut the receivers, with the edges into them, into ``count`` equal parts.

    Parameters
    ----------
    edges : Edges
        Whose senders are all here.
    count : int
        Number of parts.

    Yields
    ------
    receivers : slice
        Rows of the part.
    edges : Edges
        Into them, from the rows in ``senders``.
    senders : Tensor
        Rows of the part's senders, ``(part's senders,)``.
    """
    for rows, _, part in edges.chunks(count):
        senders, numbers = torch.unique(part.senders, return_inverse=True)
        index = torch.stack([numbers, part.receivers])
        yield rows, Edges(EdgeSet(index, part.features, len(senders), part.num_receivers)), senders
