"""Message passing: InteractionNet, PropagationNet and the many-edge-sets form that hi_lam_parallel uses.

With MLPs ``phi`` (on edges) and ``psi`` (on nodes), an InteractionNet (Battaglia et al., 2016; neural-lam 0.7.0) is

    message = phi([edge, sender, receiver])         edge'     = edge + message
    total   = sum or mean of messages per receiver  receiver' = receiver + psi([receiver, total])

A PropagationNet adds the sender to the message, always takes the mean, and adds psi to the total, not the receiver.
Concatenations are never made: each part is projected by itself, nodes before they are gathered onto edges. When sharded
it is the projected rows of remote senders that are fetched; a PropagationNet fetches the raw ones, once, and projects
them here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .edges import Edges
from .mlp import after_first_linear, make_mlp, split_first_linear


class InteractionNet(nn.Module):
    """Update receivers, and the edges if asked, from senders over one edge set.

    Parameters
    ----------
    hidden_dim : int
        Width of nodes and edges.
    hidden_layers : int
        Hidden layers of both MLPs.
    mean : bool
        Aggregate by the mean instead of the sum.
    """

    propagates = False

    def __init__(self, hidden_dim: int, hidden_layers: int = 1, mean: bool = False) -> None:
        nn.Module.__init__(self)
        widths = [hidden_dim] * (hidden_layers + 1)
        self.mean = mean
        self.edge_mlp: nn.Sequential = make_mlp([3 * hidden_dim, *widths])
        self.aggr_mlp: nn.Sequential = make_mlp([2 * hidden_dim, *widths])

    def forward(
        self, edges: Edges, senders: Tensor, receivers: Tensor, edge_rep: Tensor, update_edges: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Pass messages once.

        Parameters
        ----------
        edges : Edges
            Who sends to whom.
        senders, receivers, edge_rep : Tensor
            Shapes ``(senders, B, d)``, ``(receivers, B, d)``, ``(edges, B, d)``; each B may be 1.
        update_edges : bool
            Whether the new edges are wanted.

        Returns
        -------
        receivers : Tensor
            Shape ``(receivers, B, d)``.
        edge_rep : Tensor or None
            Shape ``(edges, B, d)``.
        """
        arriving = edges.bring(senders if self.propagates else project_senders(self.edge_mlp, senders))
        total, new_edges = pass_edges(
            self.edge_mlp, edges, arriving, receivers, edge_rep, update_edges, self.propagates, self.mean
        )
        return update_nodes(self.aggr_mlp, receivers, total, self.propagates), new_edges


class PropagationNet(InteractionNet):
    """InteractionNet that hands the sender's representation on to the receiver."""

    propagates = True


class SplitMLPs(nn.Module):
    """One MLP per section (edge set or mesh level) of what neural-lam keeps in one tensor."""

    def __init__(self, widths: list[int], sections: int) -> None:
        super().__init__()
        self.mlps = nn.ModuleList([make_mlp(widths) for _ in range(sections)])


class ParallelInteractionNet(nn.Module):
    """An InteractionNet over several edge sets and node sets at once, all read before any is written.

    Parameters
    ----------
    hidden_dim, hidden_layers : int
        As in `InteractionNet`.
    edge_sections, node_sections : int
        Number of edge sets and of node sets, each with MLPs of its own.
    """

    def __init__(self, hidden_dim: int, hidden_layers: int, edge_sections: int, node_sections: int) -> None:
        nn.Module.__init__(self)
        widths = [hidden_dim] * (hidden_layers + 1)
        self.edge_mlp = SplitMLPs([3 * hidden_dim, *widths], edge_sections)
        self.aggr_mlp = SplitMLPs([2 * hidden_dim, *widths], node_sections)

    def forward(
        self,
        edge_sets: list[tuple[Edges, int, int]],
        nodes: list[Tensor],
        edge_reps: list[Tensor],
        wanted: list[bool],
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Pass messages once along every edge set.

        Parameters
        ----------
        edge_sets : list of (Edges, int, int)
            Edges with the positions in ``nodes`` of their senders and receivers.
        nodes : list of Tensor
            One ``(nodes, B, d)`` per node set.
        edge_reps : list of Tensor
            One ``(edges, B, d)`` per edge set.
        wanted : list of bool
            Which edge sets are to be updated.

        Returns
        -------
        nodes : list of Tensor
        edge_reps : list of Tensor or None
        """
        totals: list[Tensor | None] = [None] * len(nodes)
        new_edges: list[Tensor | None] = []
        mlps = list(self.edge_mlp.mlps)
        projected = [project_senders(mlp, nodes[sender]) for mlp, (_, sender, _) in zip(mlps, edge_sets, strict=True)]
        arriving = edge_sets[0][0].bring_together([edges for edges, _, _ in edge_sets], projected)
        for i, (edges, _, receiver_set) in enumerate(edge_sets):
            partial, updated = pass_edges(mlps[i], edges, arriving[i], nodes[receiver_set], edge_reps[i], wanted[i])
            total = totals[receiver_set]
            totals[receiver_set] = partial if total is None else total + partial
            new_edges.append(updated)
        new_nodes = []
        for mlp, rep, total in zip(self.aggr_mlp.mlps, nodes, totals, strict=True):
            assert total is not None, "every mesh level has edges inside it"
            new_nodes.append(update_nodes(mlp, rep, total))
        return new_nodes, new_edges


def project_senders(mlp: nn.Module, senders: Tensor) -> Tensor:
    """The senders' part of the first layer of an edge MLP, ``(senders, B, d)``."""
    assert isinstance(mlp, nn.Sequential)
    (_, of_sender, _), _ = split_first_linear(mlp, 3)
    return F.linear(senders, of_sender)


def pass_edges(
    mlp: nn.Module,
    edges: Edges,
    arriving: Callable[[], Tensor],
    receivers: Tensor,
    edge_rep: Tensor,
    update_edges: bool,
    propagates: bool = False,
    mean: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Messages along one edge set: what receivers aggregate, ``(receivers, B, d)``, and the new edges if asked for.

    With several `Edges.num_chunks` only one part's messages exist at a time; the backward pass computes them again.
    """
    if edges.num_chunks == 1:
        messages = edge_messages(mlp, edges, arriving, receivers, edge_rep, propagates)
        return edges.aggregate(messages, mean or propagates), edge_rep + messages if update_edges else None
    senders = arriving()

    def chunk(part: Edges, receivers: Tensor, edge_rep: Tensor) -> tuple[Tensor, torch.dtype, Tensor | None]:
        messages = edge_messages(mlp, part, lambda: senders, receivers, edge_rep, propagates)
        return part.sum_by_receiver(messages), messages.dtype, edge_rep + messages if update_edges else None

    results = [
        recomputed(chunk, part, receivers[rows], edge_rep[held]) for rows, held, part in edges.chunks(edges.num_chunks)
    ]
    totals, dtypes, new_edges = zip(*results, strict=True)
    total = edges.finish(torch.cat(totals), mean or propagates).to(dtypes[0])
    return total, torch.cat(new_edges) if update_edges else None


def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``; if gradients are wanted its insides are computed again for them, and not kept."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    dtype = torch.get_default_dtype()  # which the backward pass may not see: Lightning sets it for the forward pass
    contexts = lambda: (contextlib.nullcontext(), _default_dtype(dtype))  # noqa: E731
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def edge_messages(
    mlp: nn.Module,
    edges: Edges,
    arriving: Callable[[], Tensor],
    receivers: Tensor,
    edge_rep: Tensor,
    propagates: bool = False,
) -> Tensor:
    """``mlp([edge, sender, receiver])`` for every edge, plus the sender if ``propagates``: ``(edges, B, d)``.

    ``arriving`` gives the rows of all senders: projected ones, raw ones if ``propagates``.
    """
    assert isinstance(mlp, nn.Sequential)
    (of_edge, _, of_receiver), bias = split_first_linear(mlp, 3)
    from_edges, from_receivers = F.linear(edge_rep, of_edge, bias), F.linear(receivers, of_receiver)
    senders = arriving()
    projected = project_senders(mlp, senders) if propagates else senders
    hidden = edges.add_from_receivers(from_edges + edges.from_senders(projected), from_receivers)
    messages = after_first_linear(mlp, hidden)
    return edges.from_senders(senders) + messages if propagates else messages


def update_nodes(mlp: nn.Module, receivers: Tensor, total: Tensor, propagates: bool = False) -> Tensor:
    """``base + mlp([receiver, total])``, the base being the receiver or, if ``propagates``, the total."""
    assert isinstance(mlp, nn.Sequential)
    (of_receiver, of_total), bias = split_first_linear(mlp, 2)
    update = after_first_linear(mlp, F.linear(receivers, of_receiver, bias) + F.linear(total, of_total))
    return (total if propagates else receivers) + update
