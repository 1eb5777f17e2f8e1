"""What ranks are asked to do, and the same on one device; everything here can be pickled by reference."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from neural_lam_anemoi.nn.networks import LamNetwork
from neural_lam_anemoi.sharding.shard import shard

from .ranks import Place


@dataclasses.dataclass
class Sample:
    """Inputs of a rollout and the weights of its loss, full grid; times and nodes lie in ``(B, T, num_grid, …)``."""

    initial: Tensor
    forcing: Tensor
    static: Tensor
    weights: Tensor

    def to(self, dtype: torch.dtype) -> Sample:
        """The same in another precision."""
        return Sample(*(getattr(self, field.name).to(dtype) for field in dataclasses.fields(self)))


@dataclasses.dataclass
class Options:
    """How to run it."""

    partition: Any = None
    grid_coordinates: Tensor | None = None
    replicate: tuple[str, ...] | None = ()
    overlap: bool = True
    checkpointed: bool = False
    checkpoint_layers: bool = False
    shared_static: bool = False
    autocast: torch.dtype | None = None
    loss_scale: float = 1.0
    deterministic: bool = False


@dataclasses.dataclass
class Result:
    """Outputs on this rank's rows and the gradient of every parameter that has one."""

    rows: Tensor
    states: Tensor
    spreads: Tensor | None
    gradients: dict[str, Tensor]
    buffers: list[str]


def run_model(model: LamNetwork, sample: Sample, options: Options) -> Result:
    """A rollout with its loss contribution and gradients, on whatever rows ``model`` has."""
    model.zero_grad()
    take = model.take_rows
    older, newer = take(sample.initial).unbind(1)
    forcing, static, weights = take(sample.forcing), take(sample.static), take(sample.weights)
    embeddings = model.embed_static() if options.shared_static else None
    states, spreads, loss = [], [], torch.zeros((), dtype=weights.dtype)
    for step in range(forcing.shape[1]):
        arguments = (newer, older, forcing[:, step], static, embeddings)
        if options.checkpointed:
            state, spread = checkpoint(model.step, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            state, spread = model.step(*arguments)
        older, newer = newer, state
        states.append(state)
        loss = loss + (state * weights[:, step]).sum()
        if spread is not None:
            spreads.append(spread)
            loss = loss + (spread * weights[:, step]).sum()
    (loss * options.loss_scale).backward()
    gradients = {name: p.grad / options.loss_scale for name, p in model.named_parameters() if p.grad is not None}
    spread = torch.stack(spreads, 1).detach() if spreads else None
    return Result(model.grid_rows.clone(), torch.stack(states, 1).detach(), spread, gradients, list(model.state_dict()))


@contextlib.contextmanager
def conditions(options: Options) -> Any:
    """Autocast and deterministic mode."""
    precision = contextlib.nullcontext() if options.autocast is None else torch.autocast("cpu", options.autocast)
    torch.use_deterministic_algorithms(options.deterministic)
    try:
        with precision:
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def run_whole(pickled: bytes, sample: Sample, options: Options) -> Result:
    """On one device."""
    with conditions(options):
        return run_model(pickle.loads(pickled), sample, options)


def run_sharded(place: Place, ranks: int, pickled: bytes, sample: Sample, options: Options) -> Result:
    """On a group of ``ranks``."""
    model = pickle.loads(pickled)
    shard(
        model,
        place.groups[ranks],
        options.partition,
        options.grid_coordinates,
        replicate=options.replicate,
        overlap=options.overlap,
    )
    model.checkpoint_layers = options.checkpoint_layers
    with conditions(options):
        return run_model(model, sample, options)
