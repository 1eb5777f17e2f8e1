"""The edges of one rank, in the place of the whole edge set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from ..graph import EdgeSet
from ..nn.edges import Edges
from .halo import Halo, ModelGroup, bring_together, sum_over_ranks
from .parts import EdgePart


class LocalEdges(Edges):
    """A rank's part of ``whole``.

    Parameters
    ----------
    whole : Edges
        The edge set on one device, from which dtype and device are taken.
    part : EdgePart
        Of ``whole``, whose edges are sorted by receiver.
    group : ModelGroup
        Who holds the other parts.
    overlap : bool
        Whether exchanges overlap with computation.
    """

    def __init__(self, whole: Edges, part: EdgePart, group: ModelGroup, overlap: bool) -> None:
        device = whole.senders.device
        features = whole.features[part.edges.to(device)]
        index = torch.stack([part.senders, part.receivers]).to(device)
        super().__init__(EdgeSet(index, features, part.num_senders + part.num_halo, part.num_receivers))
        self.group, self.summed, self.num_chunks = group, part.summed, whole.num_chunks
        self.halo = Halo(part, group, overlap).to(device) if part.exchanged else None
        if part.summed:
            self.in_degree = whole.in_degree  # of all edges, here and elsewhere

    def bring(self, x: Tensor) -> Callable[[], Tensor]:
        """Start fetching the halo of ``x``; see `neural_lam_anemoi.nn.edges.Edges.bring`."""
        return super().bring(x) if self.halo is None else self.halo.bring(x)

    def bring_together(self, edge_sets: Sequence[Edges], rows: Sequence[Tensor]) -> list[Callable[[], Tensor]]:
        """One exchange for all of ``edge_sets`` that have a halo."""
        exchanging = [i for i, edges in enumerate(edge_sets) if cast(LocalEdges, edges).halo is not None]
        halos = [cast(Halo, edge_sets[i].halo) for i in exchanging]
        if len(halos) < 2 or not halos[0].overlap:
            return super().bring_together(edge_sets, rows)
        batch = max(rows[i].shape[1] for i in exchanging)
        finish = functools.cache(bring_together(halos, [rows[i].expand(-1, batch, -1) for i in exchanging]))
        arriving = [Edges.bring(self, x) for x in rows]
        for place, i in enumerate(exchanging):
            arriving[i] = functools.partial(lambda place: finish()[place], place)
        return arriving

    def finish(self, total: Tensor, mean: bool = False) -> Tensor:
        """Sums, or means, over the edges of all ranks; see `neural_lam_anemoi.nn.edges.Edges.finish`."""
        return super().finish(sum_over_ranks(total, self.group) if self.summed else total, mean)
