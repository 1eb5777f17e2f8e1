"""Where a rank stands among all: its model group, which computes a sample together, and its peers in other groups."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.sharding.halo import ModelGroup


@dataclasses.dataclass(frozen=True)
class Placement:
    """The model group of this rank.

    Attributes
    ----------
    groups, group : int
        Number of model groups, and which this rank is in; each has a share of the samples.
    members : ModelGroup or None
        Ranks of the model group; None if it is this rank alone.
    peers : ModelGroup or None
        Ranks that hold the same rows in the other groups, by group; None if there is one group.
    """

    groups: int = 1
    group: int = 0
    members: ModelGroup | None = None
    peers: ModelGroup | None = None

    def sum_over_peers(self, x: Tensor) -> Tensor:
        """Sum over the model groups, in place."""
        if self.peers is not None:
            dist.all_reduce(x, group=self.peers.process_group)
        return x

    def gather_from_peers(self, x: Tensor) -> Tensor:
        """What all groups have, ``(n, ...)`` each with its own n, one after the other."""
        if self.peers is None:
            return x
        pieces: list[Any] = [None] * self.groups
        dist.all_gather_object(pieces, x.cpu(), group=self.peers.process_group)
        return torch.cat(pieces).to(x.device)


def check_group_size(size: int, world: int) -> None:
    """Raise `InvalidInputError` unless model groups of ``size`` ranks fill a world of ``world``."""
    if size < 1 or world % size:
        raise InvalidInputError(
            f"--num_gpus_per_model {size}: doesn't divide the {world} ranks there are; change either"
        )


def check_rows(size: int, nodes: int) -> None:
    """Raise `InvalidInputError` if a model group of ``size`` ranks would share fewer than as many grid nodes."""
    if size > nodes:
        raise InvalidInputError(f"--num_gpus_per_model {size}: the grid has {nodes} nodes; use at most as many ranks")


def take_place(size: int) -> Placement:
    """Make model groups of ``size`` consecutive ranks; every rank of the world calls this.

    Raises
    ------
    InvalidInputError
        ``size`` doesn't divide the number of ranks.
    """
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    check_group_size(size, world)
    groups = world // size
    if world == 1:
        return Placement()
    members = [dist.new_group(list(range(group * size, (group + 1) * size))) for group in range(groups)]
    peers = [dist.new_group(list(range(place, world, size))) for place in range(size)]
    group, place = divmod(rank, size)
    return Placement(
        groups,
        group,
        ModelGroup(members[group]) if size > 1 else None,
        ModelGroup(peers[place]) if groups > 1 else None,
    )
