"""What a network computes from its graph and weights alone, and reuse of it over the steps of a forecast."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .networks import LamNetwork


@dataclasses.dataclass(frozen=True)
class StaticEmbeddings:
    """Embeddings of mesh nodes and edges: one batch entry, valid until weights change.

    Attributes
    ----------
    mesh : list of Tensor
        Per level ``(nodes, 1, d)``.
    edges : dict of Tensor
        Per edge set ``(edges, 1, d)``.
    """

    mesh: list[Tensor]
    edges: dict[str, Tensor]


class ReusedEmbeddings:
    """Embeddings that are kept from step to step of a forecast, for whoever can't tell when a forecast begins.

    They are computed anew whenever a weight they were computed from has another value, bit for bit, or network or
    precision are others: comparing a few small tensors costs nothing beside embedding the edges.
    """

    def __init__(self) -> None:
        self._network: LamNetwork | None = None
        self._weights: list[Tensor] = []
        self._autocast: tuple[bool, torch.dtype] | None = None
        self._kept: StaticEmbeddings | None = None

    def get(self, network: LamNetwork) -> StaticEmbeddings:
        """The network's embeddings, without gradients."""
        weights = [parameter.detach() for mlp in network.static_embedders() for parameter in mlp.parameters()]
        device = weights[0].device.type
        autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        if self._kept is None or (network, autocast) != (self._network, self._autocast) or not self._same(weights):
            self._network, self._autocast = network, autocast
            self._weights = [value.clone() for value in weights]
            with torch.no_grad():
                self._kept = network.embed_static()
        return self._kept

    def _same(self, weights: list[Tensor]) -> bool:
        kept = self._weights
        pairs = zip(weights, kept, strict=True)
        return all(new.dtype == old.dtype and new.device == old.device and torch.equal(new, old) for new, old in pairs)
