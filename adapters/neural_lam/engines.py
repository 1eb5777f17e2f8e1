"""How parameters, gradients and optimizer state are spread over ranks: Lightning's strategies with plain checkpoints.

Whatever is spread, a checkpoint is neural-lam's own, whole and in one file, and any strategy on any number of ranks goes
on from it. The rule of all of them: a rank's gradient is that of its contribution times the size of its model group, and
the engine averages over the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from neural_lam_anemoi.nn.interaction import InteractionNet, ParallelInteractionNet

from .options import TrainingOptions

LAYERS = (InteractionNet, ParallelInteractionNet)
"""Parameters of one layer are brought together at a time, the rest all at once."""


class Spread(Strategy):
    """A strategy that spreads parameters, and saves and restores them whole, in neural-lam's own checkpoints."""

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Restore into what is spread."""
        return True

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Let Lightning call `load_optimizer_state_dict`."""
        return True

    def spread(self, module: LightningModule) -> None:
        """Spread the parameters of a module; every rank calls this."""
        raise NotImplementedError

    def spread_now(self, module: nn.Module) -> None:
        """Spread the parameters of a small module that has just got its values, if that isn't done as a whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Rank 0 writes."""
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Every rank reads the whole file."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)


class FullyShardedDataParallel(Spread, ModelParallelStrategy):
    """PyTorch's FSDP2 over all ranks.

    Parameters
    ----------
    offload : bool
        Keep parameters and optimizer state in the host's memory.
    """

    def __init__(self, offload: bool) -> None:
        super().__init__()
        self.offload = offload

    def spread(self, module: LightningModule) -> None:
        """Layer by layer, then what is left."""
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        policy = CPUOffloadPolicy() if self.offload and self.root_device.type != "cpu" else OffloadPolicy()
        for layer in module.modules():
            if isinstance(layer, LAYERS):
                fully_shard(layer, mesh=mesh, offload_policy=policy)
        fully_shard(module.forecaster, mesh=mesh, offload_policy=policy)  # type: ignore[arg-type]

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole weights, on the CPU; empty on all ranks but 0."""
        assert self.lightning_module is not None
        return self._on_rank_0(self.lightning_module.state_dict())

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take this rank's part of whole weights."""
        assert self.lightning_module is not None
        held = self.lightning_module.state_dict()
        parts = {name: _part(value, held.get(name)) for name, value in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(parts, strict=strict)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Whole state by position of the parameter, as PyTorch saves it; no state on all ranks but 0."""
        saved = optimizer.state_dict()
        return saved | {"state": {place: self._on_rank_0(state) for place, state in saved["state"].items()}}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take this rank's part of a whole state."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            state = {
                place: {name: _part(value, parameters[place]) for name, value in values.items()}
                for place, values in saved["state"].items()
            }
            optimizer.load_state_dict(saved | {"state": state})

    def _on_rank_0(self, values: Mapping[str, Any]) -> dict[str, Any]:
        whole = {name: _whole(value) for name, value in values.items()}
        return whole if self.is_global_zero else {}


def _whole(value: Any) -> Any:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return whole.detach().cpu() if isinstance(whole, Tensor) else whole


def _part(value: Any, like: Any) -> Any:
    """What ``like`` has of a whole tensor of its shape; other values as they are."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    mesh = like.device_mesh
    return distribute_tensor(value.to(mesh.device_type), mesh, like.placements, src_data_rank=None)


def make_strategy(options: TrainingOptions) -> Strategy | str:
    """Lightning's strategy; ``auto``, neural-lam's own, if none is asked for."""
    if options.strategy is None:
        return "auto"
    if options.strategy == "ddp":
        return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)
    if options.strategy == "fsdp2":
        return FullyShardedDataParallel(offload=options.offload == "parameters")
    from .zero import ZeroRedundancy

    return ZeroRedundancy(stage=int(options.strategy[-1]), offload=options.offload)
