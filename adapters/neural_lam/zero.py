"""DeepSpeed's ZeRO, stages 1 to 3, on GPUs and (for tests) on CPUs, with neural-lam's own checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import deepspeed
import deepspeed.ops
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
    set_z3_leaf_modules,
)
from lightning_fabric.utilities.seed import reset_seed
from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import DDPStrategy, DeepSpeedStrategy
from torch import Tensor, nn

from .engines import LAYERS, Spread

PARTITIONS_PARAMETERS = 3
"""The stage from which on parameters are spread, too."""


class ZeroRedundancy(Spread, DeepSpeedStrategy):
    """DeepSpeed with checkpoints that are whole.

    Parameters
    ----------
    stage : int
        1 spreads the optimizer's state, 2 gradients too, 3 parameters too.
    offload : {"none", "optimizer", "parameters"}
        What waits in the host's memory.
    """

    def __init__(self, stage: int, offload: str) -> None:
        super().__init__(stage=stage, offload_optimizer=offload != "none", offload_parameters=offload == "parameters")
        assert isinstance(self.config, dict)
        self.config["zero_force_ds_cpu_optimizer"] = False  # AdamW stays neural-lam's
        self.stage = stage

    @property
    def root_device(self) -> torch.device:
        """With an index, which DeepSpeed asks for."""
        device = super().root_device
        return torch.device("cpu", 0) if device.type == "cpu" else device

    def setup_environment(self) -> None:
        """Lightning's, which would refuse CPUs."""
        if super().root_device.type != "cpu":
            super().setup_environment()
            return
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled
        DDPStrategy.setup_environment(self)

    def setup_distributed(self) -> None:
        """Lightning's, which would look for GPUs."""
        if super().root_device.type != "cpu":
            super().setup_distributed()
            return
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    def spread(self, module: LightningModule) -> None:
        """DeepSpeed spreads parameters later; a layer's are to be brought together at once."""
        if self.stage == PARTITIONS_PARAMETERS:
            set_z3_leaf_modules(module, [type(layer) for layer in module.modules() if isinstance(layer, LAYERS)])

    def spread_now(self, module: nn.Module) -> None:
        """In stage 3."""
        if self.stage == PARTITIONS_PARAMETERS:
            deepspeed.zero.Init(module=module, config_dict_or_path=self.config, remote_device=self.remote_device)

    @contextlib.contextmanager
    def model_sharded_context(self) -> Iterator[None]:
        """Nothing that is made inside is spread by itself: `spread_now` does that, from values drawn on the CPU."""
        self._init_config_if_needed()
        yield

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole weights."""
        module = self._module
        weights = {name: self._whole(parameter) for name, parameter in module.named_parameters()}
        return {name: weights.get(name, value) for name, value in module.state_dict().items()}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take this rank's part of whole weights."""
        module, weights = self._module, checkpoint["state_dict"]
        with deepspeed.zero.GatheredParameters(list(module.parameters()), modifier_rank=0):
            module.load_state_dict(weights, strict=strict)
        if self.lightning_module is not None and self.lightning_module.trainer.training:
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    self._set(parameter, weights[name].float())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Whole state by position of the parameter, as PyTorch saves it."""
        inner, parameters = optimizer.optimizer, list(self._module.parameters())
        held: dict[str, Any] = next((state for state in inner.state.values() if state), {})
        keys = [name for name, value in held.items() if name != "step" and isinstance(value, Tensor)]
        state = {}
        for place, parameter in enumerate(parameters):
            if parameter.requires_grad and held:
                moments = {name: safe_get_full_optimizer_state(parameter, name).cpu().clone() for name in keys}
                state[place] = ({"step": held["step"].cpu().clone()} if "step" in held else {}) | moments
        return {"state": state, "param_groups": [_settings(inner) | {"params": list(range(len(parameters)))}]}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take this rank's part of a whole state."""
        (saved,) = checkpoint["optimizer_states"]
        (optimizer,) = self.optimizers
        inner: Any = optimizer.optimizer  # type: ignore[attr-defined]
        for group in inner.param_groups:
            group.update({name: value for name, value in saved["param_groups"][0].items() if name in _settings(inner)})
        if not saved["state"]:
            return
        held = optimizer.fp32_partitioned_groups_flat if self.stage == PARTITIONS_PARAMETERS else _parameters(inner)  # type: ignore[attr-defined]
        _fill(inner, held, next(iter(saved["state"].values())))
        if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
            optimizer._lazy_init_hp_params_optimizer_state()
        for place, parameter in enumerate(self._module.parameters()):
            for name, value in saved["state"].get(place, {}).items():
                if name != "step":
                    self._set(parameter, value, name)

    @property
    def _module(self) -> nn.Module:
        assert self.lightning_module is not None
        return self.lightning_module

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        if parameter.requires_grad:
            whole: Tensor = safe_get_full_fp32_param(parameter)
            return whole.detach().cpu().clone()
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().cpu().clone()

    def _set(self, parameter: nn.Parameter, value: Tensor, name: str | None = None) -> None:
        """A parameter's value, or its ``name`` in the optimizer's state."""
        value = value.to(self.root_device)
        if self.stage == PARTITIONS_PARAMETERS:
            part = _partition(value, parameter.ds_tensor.ds_numel, self.global_rank)  # type: ignore[attr-defined]
            set_to = safe_set_local_fp32_param if name is None else safe_set_local_optimizer_state
            set_to(parameter, part, *([] if name is None else [name]))
        elif name is None:
            safe_set_full_fp32_param(parameter, value)
        else:
            safe_set_full_optimizer_state(parameter, value, name)


def _partition(value: Tensor, size: int, rank: int) -> Tensor:
    """The rows of ``rank`` of a flattened tensor that is cut into parts of ``size``, the last padded."""
    flat = value.flatten()[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(flat, (0, size - len(flat)))


def _settings(optimizer: Any) -> dict[str, Any]:
    return {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _fill(optimizer: Any, parameters: Sequence[Tensor], like: Mapping[str, Any]) -> None:
    """Give an optimizer that hasn't made a step the state of one that has, with zeros for the moments."""
    for flat in parameters:
        optimizer.state[flat] = {
            name: value.clone() if name == "step" else torch.zeros_like(flat) for name, value in like.items()
        }
