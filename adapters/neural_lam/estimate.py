"""What a rank is expected to need: activations as planned, parameters and optimizer by how they are spread."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import torch

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.plan import MEGABYTE, USABLE, plan
from neural_lam_anemoi.sharding.costs import FLOAT32
from neural_lam_anemoi.sharding.shard import graph_of

from .checkpoint import grid_coordinates
from .options import TrainingOptions
from .predictors import Predictor

COPIES = {"ddp": (4, 0), "zero1": (2, 2), "zero2": (1, 3), "zero3": (0, 4), "fsdp2": (0, 4)}
"""Of weights, gradients and AdamW's two moments: how many every rank has whole, how many it has its part of."""
KNOBS = {"none": "keep", "layer": "checkpoint_layers", "rollout": "checkpoint_steps", "both": "checkpoint_steps"}
"""The plan's names of what is computed again."""

ROWS_PER_EDGE = 8
"""Rows of ``hidden_dim`` numbers that computing a message and its gradient has at once."""
SHARE_OF_MESSAGES = 1 / 8
"""Of a device's memory, for one part of an edge set's messages."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """MB of activations on the fullest rank, of all parameters in float32, and received in a train step at most."""

    activations_mb: float
    parameters_mb: float
    exchanged_mb: float

    def total_mb(self, strategy: str, world: int) -> float:
        """MB that the fullest rank needs with a strategy, `COPIES`' names, over ``world`` ranks."""
        whole, spread = COPIES[strategy]
        return self.activations_mb + self.parameters_mb * (whole + spread / world)


def expect(predictor: Predictor, datastore: Any, options: TrainingOptions, args: Any) -> Expected:
    """Plan a run of a network that isn't sharded yet; chunks and what waits in the host's memory aren't counted.

    Parameters
    ----------
    predictor : Predictor
    datastore : neural-lam datastore
    options : TrainingOptions
    args : argparse.Namespace
        neural-lam's arguments.
    """
    kind = options.partition if options.num_gpus_per_model > 1 else "contiguous"
    found = plan(
        graph_of(predictor),
        predictor.architecture,
        [options.num_gpus_per_model],
        args.batch_size,
        args.ar_steps_train,
        grid_coordinates=grid_coordinates(datastore) if kind == "rcb" else None,
        kinds=[kind],
    )
    (row,) = found.rows
    precision = "32-true" if str(args.precision).startswith(("32", "64")) else "bf16-mixed"
    wanted = (precision, KNOBS[options.checkpoint_activations])
    (setting,) = (setting for setting in row.settings if (setting.precision, setting.knob) == wanted)
    return Expected(setting.activations_mb, row.parameters_mb, row.exchanged_mb)


def choose_strategy(expected: Expected, world: int, memory: int) -> tuple[str, str]:
    """The strategy that spreads least among those that are estimated to fit, and one line that says why.

    Parameters
    ----------
    expected : Expected
    world : int
        Number of ranks.
    memory : int
        Bytes of a device.

    Raises
    ------
    InvalidInputError
        Nothing fits.
    """
    usable = memory * USABLE / MEGABYTE
    for strategy in ("ddp", "fsdp2"):
        needed = expected.total_mb(strategy, world)
        if needed <= usable:
            alone = expected.total_mb("ddp", world)
            what = "parameters fit whole" if strategy == "ddp" else f"ddp would need {alone:,.0f} MB"
            return strategy, f"{strategy}: {needed:,.0f} MB of {usable:,.0f} MB per rank expected; {what}"
    raise InvalidInputError(
        f"--sharding_strategy auto: {needed:,.0f} MB per rank are expected, {usable:,.0f} MB are usable; "
        "use more --num_gpus_per_model or --checkpoint_activations rollout, or name a strategy to try it all the same"
    )


def device_memory(accelerator: str) -> int:
    """Bytes of one rank's device: the GPU's, or, for ``cpu``, its share of the host's memory."""
    if accelerator != "cpu":
        return torch.cuda.get_device_properties(0).total_memory
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return host // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def chunks_that_fit(edges: int, batch_size: int, hidden_dim: int, memory: int) -> int:
    """In how many parts to compute the messages of so many edges on a device of ``memory`` bytes."""
    needed = edges * batch_size * hidden_dim * FLOAT32 * ROWS_PER_EDGE
    return max(1, math.ceil(needed / (memory * SHARE_OF_MESSAGES)))
