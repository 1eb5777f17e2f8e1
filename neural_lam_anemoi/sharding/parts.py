"""One rank's part of an edge set, and what the parts cost: computed from plain data, without a process group.

A rank holds the edges into the nodes it owns. Senders that others own are its *halo*; their rows have to be fetched
before every use. Where the receivers are replicated and the senders are not, a rank holds the edges out of the nodes it
owns instead, and what receivers aggregate is summed over the ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from ..graph import LamGraph, edge_ends
from .partition import Partition


@dataclasses.dataclass(frozen=True)
class EdgePart:
    """A rank's edges of one set, with local node numbers.

    Attributes
    ----------
    edges : Tensor
        Positions of these edges in the whole set, ascending, ``(local edges,)``.
    senders : Tensor
        ``(local edges,)``; own nodes come first, then the halo, ordered by owner and node.
    receivers : Tensor
        ``(local edges,)``.
    num_senders, num_receivers : int
        Local nodes of both ends, without the halo.
    send : tuple of Tensor
        Per rank, the local sender rows that it fetches from here.
    receive_counts : tuple of int
        Per rank, how many halo rows come from it.
    exchanged : bool
        Whether any rank has a halo: then all take part in the exchange, or none.
    summed : bool
        Whether what receivers aggregate has to be summed over the ranks.
    """

    edges: Tensor
    senders: Tensor
    receivers: Tensor
    num_senders: int
    num_receivers: int
    send: tuple[Tensor, ...]
    receive_counts: tuple[int, ...]
    exchanged: bool
    summed: bool

    @property
    def num_halo(self) -> int:
        """Number of remote senders."""
        return sum(self.receive_counts)


def edge_part(index: Tensor, partition: Partition, ends: tuple[str, str], rank: int) -> EdgePart:
    """The part of ``rank`` of an edge set.

    Parameters
    ----------
    index : Tensor
        Shape ``(2, E)``: senders and receivers.
    partition : Partition
        Of the graph.
    ends : (str, str)
        Node sets of senders and receivers.
    rank : int
        Of the partition.
    """
    (sender_set, receiver_set), (senders, receivers) = ends, index
    whole_senders, whole_receivers = (name in partition.replicated for name in ends)
    own_senders, own_receivers = partition.rows(sender_set, rank), partition.rows(receiver_set, rank)
    if not whole_receivers:
        mine = partition.owners[receiver_set][receivers] == rank
    elif not whole_senders:
        mine = partition.owners[sender_set][senders] == rank
    else:
        mine = torch.ones_like(receivers, dtype=torch.bool)
    edges = torch.nonzero(mine).flatten()
    send: tuple[Tensor, ...] = (torch.empty(0, dtype=torch.int64),) * partition.ranks
    counts: tuple[int, ...] = (0,) * partition.ranks
    exchanged = False
    local = _numbering(own_senders, len(partition.owners[sender_set]))
    if not whole_receivers and not whole_senders:
        reader, node = remote_reads(index, partition, ends)
        owner = partition.owners[sender_set][node]
        exchanged = len(node) > 0
        halo = node[reader == rank]
        counts = tuple(torch.bincount(owner[reader == rank], minlength=partition.ranks).tolist())
        asked = owner == rank
        send = tuple(local[node[asked & (reader == other)]] for other in range(partition.ranks))
        local[halo] = len(own_senders) + torch.arange(len(halo))
    return EdgePart(
        edges=edges,
        senders=local[senders[edges]],
        receivers=_numbering(own_receivers, len(partition.owners[receiver_set]))[receivers[edges]],
        num_senders=len(own_senders),
        num_receivers=len(own_receivers),
        send=send,
        receive_counts=counts,
        exchanged=exchanged,
        summed=whole_receivers and not whole_senders,
    )


def remote_reads(index: Tensor, partition: Partition, ends: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """Every (rank, sender) where a rank has an edge from a sender it doesn't own, once, by rank, owner and node.

    Returns
    -------
    reader, node : Tensor
        Each ``(reads,)`` int64.
    """
    sender_owner, receiver_owner = (partition.owners[name] for name in ends)
    reader, owner = receiver_owner[index[1]], sender_owner[index[0]]
    remote = reader != owner
    nodes = max(len(sender_owner), 1)
    key = (reader[remote] * partition.ranks + owner[remote]) * nodes + index[0][remote]
    key = torch.unique(key)
    return key // (nodes * partition.ranks), key % nodes


def _numbering(rows: Tensor, total: int) -> Tensor:
    """Local number of each global node; those not in ``rows`` get -1, which indexing would show at once."""
    local = torch.full((total,), -1, dtype=torch.int64)
    local[rows] = torch.arange(len(rows))
    return local


def halo_rows(graph: LamGraph, partition: Partition) -> dict[str, Tensor]:
    """Rows each rank fetches for one use of every edge set, per edge set ``(ranks,)`` int64."""
    rows = {}
    edge_sets = graph.edge_sets()
    for name, ends in edge_ends(graph.num_levels).items():
        if set(ends) & set(partition.replicated):
            rows[name] = torch.zeros(partition.ranks, dtype=torch.int64)
            continue
        reader, _ = remote_reads(edge_sets[name].index, partition, ends)
        rows[name] = torch.bincount(reader, minlength=partition.ranks)
    return rows


def edges_per_rank(graph: LamGraph, partition: Partition) -> dict[str, Tensor]:
    """Edges each rank holds, per edge set ``(ranks,)`` int64; replicated ones count on every rank."""
    counts = {}
    edge_sets = graph.edge_sets()
    for name, (sender, receiver) in edge_ends(graph.num_levels).items():
        index = edge_sets[name].index
        whole = sender in partition.replicated, receiver in partition.replicated
        if all(whole):
            counts[name] = torch.full((partition.ranks,), index.shape[1], dtype=torch.int64)
            continue
        owner = partition.owners[sender][index[0]] if whole[1] else partition.owners[receiver][index[1]]
        counts[name] = torch.bincount(owner, minlength=partition.ranks)
    return counts


def edge_work(graph: LamGraph, partition: Partition, passes: Mapping[str, int]) -> Tensor:
    """Edges that messages pass along in a step on each rank, ``(ranks,)`` int64."""
    counts = edges_per_rank(graph, partition)
    return torch.stack([passes[name] * count for name, count in counts.items()]).sum(0)


def imbalance(work: Tensor) -> float:
    """The largest share over the mean one; 1 is perfect."""
    return float(work.max() / work.double().mean()) if work.sum() else 1.0
