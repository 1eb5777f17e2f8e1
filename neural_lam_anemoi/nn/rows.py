"""Which rows of the grid a network holds: all of them, or a rank's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from ..sharding.shard import Sharding


class GridRows(nn.Module):
    """What a network knows of its rows.

    Attributes
    ----------
    num_grid : int
        Nodes of the whole grid.
    sharding : Sharding or None
        Set by `neural_lam_anemoi.shard`, with `owned_grid_rows`, ``(local rows,)`` int64.
    """

    num_grid: int
    owned_grid_rows: Tensor
    sharding: Sharding | None = None

    @property
    def grid_rows(self) -> Tensor:
        """Grid nodes that this rank owns, in the order in which it holds them: all of them unless sharded."""
        if self.sharding is None:
            return torch.arange(self.num_grid, device=next(self.parameters()).device)
        return self.owned_grid_rows

    def take_rows(self, x: Tensor) -> Tensor:
        """Cut ``x``, shape ``(..., num_grid, features)``, to the rows in `grid_rows`.

        Raises
        ------
        InvalidInputError
            If ``x`` doesn't have all grid nodes.
        """
        if x.ndim < 2 or x.shape[-2] != self.num_grid:
            raise InvalidInputError(f"take_rows: the shape is {tuple(x.shape)}; the grid has {self.num_grid} nodes")
        return x if self.sharding is None else x.index_select(-2, self.owned_grid_rows)

    def check_rows(self, **fields: Tensor) -> None:
        """Raise `InvalidInputError`, naming the field, unless each of ``fields`` has the rows that are due here."""
        due = self.num_grid if self.sharding is None else len(self.owned_grid_rows)
        for name, field in fields.items():
            rows = field.shape[-2]
            if rows == due:
                continue
            if self.sharding is None:
                raise InvalidInputError(f"{name} has {rows} rows, the grid {due}; call shard before passing local rows")
            hint = "; cut full fields with take_rows" if rows == self.num_grid else ""
            raise InvalidInputError(f"{name} has {rows} rows, this rank owns {due} of {self.num_grid}{hint}")
