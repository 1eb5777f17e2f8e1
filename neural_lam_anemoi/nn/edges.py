"""One edge set on one device: gathering from nodes onto edges and aggregating back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..graph import EdgeSet


class Edges(nn.Module):
    """Edges sorted by receiver, so that what a receiver aggregates lies together in memory.

    All tensors are node-major: ``(nodes or edges, batch, channels)``; a batch dimension of 1 broadcasts. Nothing here
    is a parameter and nothing is saved in a state_dict.

    Parameters
    ----------
    edges : EdgeSet
        In any order; the features are permuted along with the indices.
    """

    num_chunks: int = 1
    """Parts in which messages are computed, one after the other; may be set any time."""
    senders: Tensor
    receivers: Tensor
    features: Tensor
    in_degree: Tensor

    def __init__(self, edges: EdgeSet) -> None:
        super().__init__()
        order = torch.argsort(edges.index[1], stable=True)
        degree = torch.bincount(edges.index[1], minlength=edges.num_receivers)
        self.num_senders, self.num_receivers = edges.num_senders, edges.num_receivers
        self.regular_degree = _common_value(degree)
        self.register_buffer("senders", edges.index[0][order].contiguous(), persistent=False)
        self.register_buffer("receivers", edges.index[1][order].contiguous(), persistent=False)
        self.register_buffer("features", edges.features[order].contiguous(), persistent=False)
        self.register_buffer("in_degree", degree.clamp(min=1).to(edges.features.dtype), persistent=False)

    def bring(self, x: Tensor) -> Callable[[], Tensor]:
        """Start fetching the rows of remote senders to stand behind the local ones, of which there are none here.

        Parameters
        ----------
        x : Tensor
            Rows of this device's senders, ``(local senders, batch, d)``.

        Returns
        -------
        callable
            Finishes and gives the rows of all senders, ``(senders, batch, d)``. What is computed before it is called
            overlaps with the exchange.
        """
        return lambda: x

    def bring_together(self, edge_sets: Sequence[Edges], rows: Sequence[Tensor]) -> list[Callable[[], Tensor]]:
        """`bring` for several edge sets that are read at once, this one being the first."""
        return [edges.bring(x) for edges, x in zip(edge_sets, rows, strict=True)]

    def from_senders(self, x: Tensor) -> Tensor:
        """Rows of ``x``, shape ``(senders, batch, d)``, for every edge: ``(edges, batch, d)``."""
        return x.index_select(0, self.senders)

    def add_from_receivers(self, on_edges: Tensor, x: Tensor) -> Tensor:
        """``on_edges + x[receivers]`` for ``on_edges (edges, batch, d)`` and ``x (receivers, batch, d)``."""
        if self.regular_degree:
            grouped = on_edges.unflatten(0, (self.num_receivers, self.regular_degree))
            return (grouped + x.unsqueeze(1)).flatten(0, 1)
        return on_edges + x.index_select(0, self.receivers)

    def aggregate(self, messages: Tensor, mean: bool = False) -> Tensor:
        """Sum or mean over the edges into each receiver, accumulated in at least float32.

        Parameters
        ----------
        messages : Tensor
            Shape ``(edges, batch, d)``.
        mean : bool
            Divide by the number of edges. A receiver without edges gets 0 either way.

        Returns
        -------
        Tensor
            Shape ``(receivers, batch, d)``, in the dtype of ``messages``.
        """
        return self.finish(self.sum_by_receiver(messages), mean).to(messages.dtype)

    def sum_by_receiver(self, messages: Tensor) -> Tensor:
        """Sums over the edges that are here, ``(receivers, batch, d)``, in at least float32."""
        wide = messages if messages.dtype in (torch.float32, torch.float64) else messages.float()
        if self.regular_degree:
            return wide.unflatten(0, (self.num_receivers, self.regular_degree)).sum(1)
        return _SumIntoRows.apply(wide, self.receivers, self.num_receivers)

    def finish(self, total: Tensor, mean: bool = False) -> Tensor:
        """Sums, or means, over all edges from what `sum_by_receiver` gave; ``(receivers, batch, d)``."""
        return total / self.in_degree.to(total.dtype).view(-1, 1, 1) if mean else total

    def chunks(self, count: int) -> Iterator[tuple[slice, slice, Edges]]:
        """Cut the receivers, with the edges into them, into ``count`` equal parts.

        Yields
        ------
        receivers, edges : slice
            Rows of the part's receivers, and of its edges.
        part : Edges
            From the same rows of senders.
        """
        stops = [self.num_receivers * i // count for i in range(count + 1)]
        at = torch.searchsorted(self.receivers, torch.tensor(stops, device=self.receivers.device)).tolist()
        for (first, stop), (begin, end) in zip(itertools.pairwise(stops), itertools.pairwise(at), strict=True):
            index = torch.stack([self.senders[begin:end], self.receivers[begin:end] - first])
            part = EdgeSet(index, self.features[begin:end], self.num_senders, stop - first)
            yield slice(first, stop), slice(begin, end), Edges(part)


class _SumIntoRows(torch.autograd.Function):
    """``index_add`` into zeros that keeps no messages for its backward pass; torch's own does and never reads them."""

    @staticmethod
    def forward(context: Any, messages: Tensor, receivers: Tensor, num_receivers: int) -> Tensor:
        context.save_for_backward(receivers)
        return messages.new_zeros(num_receivers, *messages.shape[1:]).index_add_(0, receivers, messages)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return gradient.index_select(0, *context.saved_tensors), None, None


def _common_value(counts: Tensor) -> int:
    """The value that all of ``counts`` share, or 0."""
    if counts.numel() == 0 or int(counts.min()) != int(counts.max()):
        return 0
    return int(counts[0])
