"""Counting what a process group receives, and how many bytes of tensors live."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

REFUSED = ("all_to_all", "batch_isend_irecv", "broadcast", "gather", "recv", "reduce", "reduce_scatter", "scatter")
"""Collectives nobody here uses; if somebody does, counting has to learn them."""


@dataclasses.dataclass
class Traffic:
    """Bytes received and calls made since counting began."""

    received: int = 0
    calls: int = 0

    def add(self, received: float) -> None:
        """Count one call."""
        self.received += int(received)
        self.calls += 1


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextlib.contextmanager
def counted_traffic() -> Iterator[Traffic]:
    """Count every collective of ``torch.distributed`` that this process takes part in, Anemoi's and ours.

    An all-reduce counts as a ring: what is reduced, then what is gathered, ``2 (R - 1) / R`` of the tensor.
    """
    traffic = Traffic()

    def all_to_all_single(output: Tensor, rows: Tensor, out_splits: Any = None, *rest: Any, **options: Any) -> float:
        own = out_splits[dist.get_rank(options.get("group"))] if out_splits else len(output) // _world(options)
        return _size(output) - own * (_size(output) / max(len(output), 1))

    def all_gather(tensors: list[Tensor], tensor: Tensor, *rest: Any, **options: Any) -> float:
        return sum(map(_size, tensors)) - _size(tensor)

    def all_gather_into_tensor(output: Tensor, tensor: Tensor, *rest: Any, **options: Any) -> float:
        return _size(output) - _size(tensor)

    def all_reduce(tensor: Tensor, *rest: Any, **options: Any) -> float:
        return 2 * _size(tensor) * (_world(options) - 1) / _world(options)

    def irecv(tensor: Tensor, *rest: Any, **options: Any) -> float:
        return _size(tensor)

    counters = (all_to_all_single, all_gather, all_gather_into_tensor, all_reduce, irecv)
    originals = {counter.__name__: getattr(dist, counter.__name__) for counter in counters}
    originals |= {name: getattr(dist, name) for name in REFUSED}

    def wrapped(name: str, counter: Callable[..., float]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            traffic.add(counter(*arguments, **options))
            return originals[name](*arguments, **options)

        return call

    try:
        for counter in counters:
            setattr(dist, counter.__name__, wrapped(counter.__name__, counter))
        for name in REFUSED:
            setattr(dist, name, _refuse(name))
        yield traffic
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _world(options: dict[str, Any]) -> int:
    return dist.get_world_size(options.get("group"))


def _refuse(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(f"torch.distributed.{name} isn't counted")

    return call


class LiveTensors(TorchDispatchMode):
    """Bytes of tensors made while it is entered and still alive; ``peak`` is the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        for leaf in tree_leaves((arguments, options)):
            if isinstance(leaf, Tensor):
                self._known.add(leaf.untyped_storage()._cdata)
        result = function(*arguments, **(options or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self._known:
                self._watch(leaf.untyped_storage())
        return result

    def _watch(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage._cdata)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
