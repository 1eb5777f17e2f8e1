"""neural-lam's reduction over the grid, for a grid that is spread over the ranks of a model group."""

from __future__ import annotations

from typing import Any

import neural_lam.metrics
import torch
import torch.distributed as dist
from torch import Tensor

from neural_lam_anemoi.sharding.halo import ModelGroup

REDUCE = neural_lam.metrics.mask_and_reduce_metric
"""What is replaced: every loss and metric of neural-lam goes through it."""


class GridMean:
    """``neural_lam.metrics.mask_and_reduce_metric`` over local rows, with the result of the whole grid on every rank.

    The gradient that a rank gets is that of its own contribution times the size of the group, as an engine that averages
    over all ranks of the world needs it.
    """

    group: ModelGroup | None = None
    """Model group over which the grid is spread; None if it isn't."""

    def __call__(self, values: Tensor, mask: Tensor | None, average_grid: bool, sum_vars: bool) -> Tensor:
        if self.group is None or not average_grid:
            return REDUCE(values, mask=mask, average_grid=average_grid, sum_vars=sum_vars)
        mean = group_mean(values if mask is None else values[..., mask, :], self.group)
        return mean.sum(-1) if sum_vars else mean


def group_mean(values: Tensor, group: ModelGroup) -> Tensor:
    """Mean over dimension -2, of whatever rows the ranks of ``group`` have; gradients as in `GridMean`."""
    mean: Tensor = _GroupMean.apply(values.sum(-2), values.shape[-2], group)  # type: ignore[no-untyped-call]
    return mean


class _GroupMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor, count: int, group: ModelGroup) -> Tensor:
        precise = torch.promote_types(sums.dtype, torch.float32)  # in half precision not even the count would be exact
        packed = torch.cat([sums.to(precise).flatten(), sums.new_tensor([count], dtype=precise)])
        dist.all_reduce(packed, group=group.process_group)
        ctx.scale = group.size / float(packed[-1])
        return (packed[:-1].view_as(sums) / packed[-1]).to(sums.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return gradient * ctx.scale, None, None
