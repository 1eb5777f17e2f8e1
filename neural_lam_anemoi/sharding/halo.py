"""Fetching the rows of remote senders, and summing over ranks, with gradients.

An exchange is started as soon as there is something to send and finished where the rows are needed; what a caller
computes in between overlaps with it, in the forward and in the backward pass. The backward pass sends the halo's
gradients home, where they are added. Every rank runs every exchange, with no rows if need be, and autograd runs them
backwards in exactly the opposite order on every rank: nobody waits for a partner who isn't coming.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from anemoi.models.distributed.graph import halo_exchange
from anemoi.models.distributed.halo import HaloInfo
from torch import Tensor, nn

from ..errors import InvalidInputError
from .parts import EdgePart


class ModelGroup:
    """The ranks that compute one sample together; shared, not copied, when a model is copied.

    The process group is not kept alive: ``destroy_process_group`` has to end its threads, also while models and graphs
    of autograd are still there. One that ran on into the interpreter's end would abort the process.

    Attributes
    ----------
    size, rank : int
    received_bytes : int
        What halos and sums over ranks have brought to this rank so far; a sum counts as a ring.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.size, self.rank = process_group.size(), dist.get_rank(process_group)
        self._process_group = weakref.ref(process_group)
        self.received_bytes = 0

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The group; raises `InvalidInputError` once it is destroyed."""
        group = self._process_group()
        if group is None:
            raise InvalidInputError("the process group that this model is sharded over was destroyed")
        return group

    def sum_(self, x: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        dist.all_reduce(x, group=self.process_group)
        self.received_bytes += 2 * (self.size - 1) * x.nbytes // self.size
        return x

    def __deepcopy__(self, memo: Any) -> ModelGroup:
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidInputError("a sharded model can't be pickled whole: save its state_dict, the same on any ranks")


class Halo(nn.Module):
    """What one edge set's senders exchange.

    Parameters
    ----------
    part : EdgePart
        Of this rank.
    group : ModelGroup
        All ranks hold the halo of their own part.
    overlap : bool
        Exchange asynchronously; otherwise through Anemoi's ``halo_exchange``.
    """

    send_rows: Tensor

    def __init__(self, part: EdgePart, group: ModelGroup, overlap: bool = True) -> None:
        super().__init__()
        self.group, self.overlap = group, overlap
        self.num_local = part.num_senders
        self.send_counts = [len(rows) for rows in part.send]
        self.receive_counts = list(part.receive_counts)
        self.register_buffer("send_rows", torch.cat(part.send), persistent=False)

    def bring(self, x: Tensor) -> Callable[[], Tensor]:
        """Start fetching; the returned function finishes.

        Parameters
        ----------
        x : Tensor
            Rows of the local senders, ``(local senders, B, d)``.

        Returns
        -------
        callable
            Gives ``(local senders + halo, B, d)``.
        """
        if self.overlap:
            finish = bring_together([self], [x])
            return lambda: finish()[0]
        rows = halo_exchange(x, self.info(), self.group.process_group)
        return lambda: rows

    def info(self) -> HaloInfo:
        """The plan in Anemoi's form; its edge index is left empty, the exchange doesn't read it."""
        return HaloInfo(
            num_local_nodes=self.num_local,
            num_halo_nodes=sum(self.receive_counts),
            send_indices=self.send_rows.split(self.send_counts),
            recv_counts=tuple(self.receive_counts),
            recv_global_ids=None,
            edge_index_local=self.send_rows.new_empty(2, 0),
        )


def bring_together(halos: Sequence[Halo], rows: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start one exchange for several edge sets; the returned function finishes.

    Parameters
    ----------
    halos : sequence of Halo
        Of one model group.
    rows : sequence of Tensor
        Per halo ``(local senders, B, d)``, all of one B, d and dtype.

    Returns
    -------
    callable
        Gives per halo ``(local senders + halo, B, d)``.
    """
    group = halos[0].group
    packed = [x.index_select(0, halo.send_rows).split(halo.send_counts) for halo, x in zip(halos, rows, strict=True)]
    by_rank = [piece for pieces in zip(*packed, strict=True) for piece in pieces]
    counts = [list(column) for column in zip(*(halo.receive_counts for halo in halos), strict=True)]
    flight = _Flight(
        group,
        [sum(column) for column in zip(*(halo.send_counts for halo in halos), strict=True)],
        [sum(column) for column in counts],
    )
    arriving = _Depart.apply(torch.cat(by_rank), flight)

    def finish() -> list[Tensor]:
        pieces = _Arrive.apply(arriving, flight).split([count for column in counts for count in column])
        step = len(halos)
        return [torch.cat([x, *pieces[i::step]]) for i, x in enumerate(rows)]

    return finish


@dataclasses.dataclass
class _Flight:
    """An exchange on its way: forwards between departure and arrival, backwards between arrival and departure."""

    group: ModelGroup
    send_counts: list[int]
    receive_counts: list[int]
    work: Any = None
    buffer: Tensor | None = None

    def start(self, rows: Tensor, backward: bool) -> Tensor:
        outgoing, incoming = self.send_counts, self.receive_counts
        if backward:
            outgoing, incoming = incoming, outgoing
        buffer = rows.new_empty((sum(incoming), *rows.shape[1:]))
        self.group.received_bytes += buffer.nbytes
        self.work = dist.all_to_all_single(
            buffer, rows.contiguous(), incoming, outgoing, group=self.group.process_group, async_op=True
        )
        return buffer

    def wait(self) -> None:
        self.work.wait()
        self.work = None


class _Depart(torch.autograd.Function):
    """Rows to send in, the buffer that will hold the received ones out."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, flight: _Flight) -> Tensor:
        ctx.flight = flight
        return flight.start(rows, backward=False)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        flight = ctx.flight
        flight.wait()
        gradient, flight.buffer = flight.buffer, None
        return gradient, None


class _Arrive(torch.autograd.Function):
    """The buffer in, the same buffer with the received rows out."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, flight: _Flight) -> Tensor:
        ctx.flight = flight
        flight.wait()
        ctx.mark_dirty(buffer)
        return buffer

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.flight.buffer = ctx.flight.start(gradient, backward=True)
        return gradient, None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ModelGroup) -> Tensor:
        ctx.group = group
        return group.sum_(x.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.group.sum_(gradient.contiguous().clone()), None


def sum_over_ranks(x: Tensor, group: ModelGroup) -> Tensor:
    """Sum a tensor over the ranks; its gradient is summed too, for every rank's copy of the sum has its own.

    Anemoi's ``reduce_tensor`` hands the gradient back as it is and rounds to float32: right where all ranks go on to
    compute the same loss, wrong here, where each computes a part of it.
    """
    return _SumOverRanks.apply(x, group)
