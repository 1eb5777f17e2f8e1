"""What `neural_lam_anemoi.adapters.neural_lam.train` adds to neural-lam's own arguments."""

from __future__ import annotations

import dataclasses
import importlib.util

from neural_lam_anemoi.errors import InvalidInputError

STRATEGIES = ("auto", "ddp", "zero1", "zero2", "zero3", "fsdp2")
PARTITIONS = ("contiguous", "rcb", "metis")
OFFLOADS = ("none", "optimizer", "parameters")
CHECKPOINTED = ("none", "rollout", "layer", "both")
CAN_OFFLOAD = {"optimizer": ("zero1", "zero2", "zero3"), "parameters": ("zero3", "fsdp2")}
"""Strategies that can keep the optimizer's state, or parameters as well, in the host's memory."""


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How training is spread over ranks, and what is kept for the backward pass.

    Attributes
    ----------
    num_gpus_per_model : int
        Ranks that compute one sample together.
    partition : {"contiguous", "rcb", "metis"}
        How they share the grid.
    sharding_strategy : str, optional
        How parameters, gradients and optimizer state are spread over all ranks, one of `STRATEGIES`; by default
        neural-lam's choice; ``auto`` is replaced by one when the size of the model is known.
    offload : {"none", "optimizer", "parameters"}
        What waits in the host's memory: the optimizer's state, or that and the parameters.
    checkpoint_activations : {"none", "rollout", "layer", "both"}
        What is computed again in the backward pass: the insides of steps, of layers.
    edge_chunks : int or None
        Parts in which messages are computed; None for as many that a part takes an eighth of the device's memory.
    offload_activations : bool
        Whether what is kept for the backward pass waits in the host's memory.
    meta_init : bool
        Whether parameters get their values only when it is known what each rank has of them.

    Raises
    ------
    InvalidInputError
        Values that don't exist or don't go together, or an engine that isn't installed.
    """

    num_gpus_per_model: int = 1
    partition: str = "contiguous"
    sharding_strategy: str | None = None
    offload: str = "none"
    checkpoint_activations: str = "none"
    edge_chunks: int | None = 1
    offload_activations: bool = False
    meta_init: bool = False

    @property
    def strategy(self) -> str | None:
        """The strategy; None if neither it nor a group of ranks is asked for."""
        return self.sharding_strategy or ("ddp" if self.num_gpus_per_model > 1 else None)

    def __post_init__(self) -> None:
        for name in ("num_gpus_per_model", "edge_chunks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInputError(f"--{name} {value}: at least 1 is needed")
        if self.offload != "none" and self.strategy not in CAN_OFFLOAD[self.offload]:
            able = ", ".join(CAN_OFFLOAD[self.offload])
            raise InvalidInputError(
                f"--offload {self.offload}: needs --sharding_strategy {able}; it is {self.strategy or 'not given'}"
            )
        if (self.strategy or "").startswith("zero") and importlib.util.find_spec("deepspeed") is None:
            raise InvalidInputError(
                f"--sharding_strategy {self.strategy}: DeepSpeed isn't installed; pip install 'neural-lam-anemoi[deepspeed]'"
            )
        if self.partition == "metis" and importlib.util.find_spec("pymetis") is None:
            raise InvalidInputError("--partition metis: it isn't installed; pip install 'neural-lam-anemoi[metis]'")
