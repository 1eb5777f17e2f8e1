"""Parameters that take no memory until it is known what each rank has of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

KINDS: tuple[type[nn.Module], ...] = (nn.Linear, nn.LayerNorm)
"""All that the networks' parameters are made by."""


@dataclasses.dataclass(frozen=True)
class _Made:
    """A module, how to make another like it, and the random state to do so in."""

    module: nn.Module
    make: Callable[[], nn.Module]
    random_state: Tensor


class Deferred:
    """The modules of a network whose values are still to be drawn."""

    def __init__(self) -> None:
        self._made: list[_Made] = []

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Inside, linear layers and LayerNorms lose their values when made; random numbers go on as if they hadn't."""
        with contextlib.ExitStack() as patched:
            for kind in KINDS:
                patched.enter_context(mock.patch.object(kind, "__init__", self._losing_values(kind)))
            yield

    def _losing_values(self, kind: type[nn.Module]) -> Callable[..., None]:
        make: Any = kind.__init__

        def __init__(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            state = torch.get_rng_state()
            make(module, *args, **kwargs)
            module.to("meta")
            self._made.append(_Made(module, lambda: kind(*args, **kwargs), state))

        return __init__

    def materialise(self, spread_now: Callable[[nn.Module], None] = lambda _: None) -> None:
        """Give every module its values, one after the other; of what is spread, this rank's part.

        Parameters
        ----------
        spread_now : callable
            Spreads the parameters of a small module, if the engine does so one by one.
        """
        dtype = torch.get_default_dtype()  # Lightning sets another for what is made now
        torch.set_default_dtype(torch.float32)
        try:
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                for made in self._made:
                    torch.set_rng_state(made.random_state)
                    twin = made.make()
                    spread_now(twin)
                    _fill(made.module, twin)
        finally:
            torch.set_default_dtype(dtype)
        self._made.clear()


def _fill(module: nn.Module, twin: nn.Module) -> None:
    for name, value in list(twin.named_parameters()):
        held = getattr(module, name)
        new = _own_part(value.detach(), held) if isinstance(held, DTensor) else value
        parameter = new if isinstance(new, nn.Parameter) else nn.Parameter(new)
        setattr(module, name, parameter.requires_grad_(held.requires_grad))


def _own_part(value: Tensor, held: DTensor) -> DTensor:
    """This rank's part of a whole tensor, without the rest of its memory."""
    mesh, placements = held.device_mesh, held.placements
    part = distribute_tensor(value.to(mesh.device_type), mesh, placements, src_data_rank=None).to_local().clone()
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())
