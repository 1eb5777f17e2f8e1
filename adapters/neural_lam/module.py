"""neural-lam's training loop for samples that several ranks compute together: the numbers of one process on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from neural_lam.models import ForecasterModule
from torch import Tensor

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.sharding.halo import ModelGroup
from neural_lam_anemoi.sharding.shard import gather_grid, shard

from .checkpoint import grid_coordinates
from .engines import Spread
from .estimate import chunks_that_fit, device_memory
from .forecaster import Forecaster
from .meta import Deferred
from .metrics import GridMean
from .options import TrainingOptions
from .placement import Placement, check_rows, take_place

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
COMPARED = ("model", "graph", *(name for name in Architecture.__dataclass_fields__ if name != "model"))
"""Arguments that have to be a checkpoint's."""


class Module(ForecasterModule):
    """``neural_lam.models.ForecasterModule`` whose grid may be spread over a model group.

    Losses and metrics are reduced by a `GridMean`, which has to stand in for neural-lam's reduction. Every group
    evaluates a block of the samples; results are those of all samples, each counted once, on every rank.
    """

    forecaster: Forecaster
    interior_mask_bool: Tensor
    spatial_loss_maps: list[Tensor]
    options = TrainingOptions()
    grid_mean: GridMean | None = None
    deferred: Deferred | None = None
    placement = Placement()
    _configured = False
    _whole: tuple[Tensor, Tensor] | None = None
    _examples_seen = 0

    @property
    def shares_samples(self) -> bool:
        """Whether samples are shared out by this package and not by neural-lam."""
        return self.options.strategy is not None or self.trainer.world_size > 1

    def configure_model(self) -> None:
        """Cut the model to this rank's part and set what is to be kept for the gradients; once the ranks are connected."""
        if self._configured:
            return
        self._configured = True
        options, predictor = self.options, self.forecaster.predictor
        for parameter in predictor.unread_parameters():
            parameter.requires_grad_(False)
        self.placement = take_place(options.num_gpus_per_model)
        if self.placement.members is not None:
            self._shard(self.placement.members)
        predictor.checkpoint_layers = options.checkpoint_activations in ("layer", "both")
        self._chunk_edges()
        self.forecaster.checkpoint_steps = options.checkpoint_activations in ("rollout", "both")
        self.forecaster.offload_activations = options.offload_activations
        strategy = self.trainer.strategy
        if isinstance(strategy, Spread):
            strategy.spread(self)
        if self.deferred is not None:
            self.deferred.materialise(strategy.spread_now if isinstance(strategy, Spread) else lambda _: None)

    def _chunk_edges(self) -> None:
        predictor, args, chunks = self.forecaster.predictor, self.hparams.args, self.options.edge_chunks
        memory = device_memory(self.trainer.strategy.root_device.type)
        for name in predictor.edges:
            edges = predictor.edge_set(name)
            count, width = len(edges.features), predictor.architecture.hidden_dim
            edges.num_chunks = chunks or chunks_that_fit(count, args.batch_size, width, memory)

    def _shard(self, group: ModelGroup) -> None:
        predictor = self.forecaster.predictor
        check_rows(group.size, self.datastore.num_grid_points)
        coordinates = grid_coordinates(self.datastore) if self.options.partition == "rcb" else None
        shard(predictor, group.process_group, self.options.partition, coordinates)
        assert self.grid_mean is not None
        self.grid_mean.group = group
        self.forecaster.cut_to_rows()
        self.interior_mask_bool = self.interior_mask_bool[predictor.grid_rows]
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]  # they differ among ranks

    def all_gather_cat(self, tensor_to_gather: Tensor) -> Tensor:
        """Samples of all model groups, ``(n, ...)``; groups may have different n."""
        return self.placement.gather_from_peers(tensor_to_gather)

    def _log_step_loss(self, time_step_loss: Tensor, mean_loss: Tensor, phase: str, batch_size: int) -> None:
        if phase != "train" and self.placement.peers is not None:
            packed = torch.cat([time_step_loss * batch_size, time_step_loss.new_tensor([batch_size])])
            total = self.placement.sum_over_peers(packed)
            batch_size = int(total[-1])
            time_step_loss = total[:-1] / batch_size
            mean_loss = time_step_loss.mean()
        super()._log_step_loss(time_step_loss, mean_loss, phase, batch_size)

    def _compute_prediction_and_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        result: tuple[Tensor, Tensor, Tensor, Tensor] = super()._compute_prediction_and_loss(batch)
        if self.trainer.testing and self._examples_seen < self.n_example_pred:
            self._examples_seen += len(batch[0])
            prediction, target = (gather_grid(x, self.forecaster.predictor) for x in result[:2])
            self._whole = (prediction, target)
        return result

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Evaluate what is no repetition."""
        real = self._real_samples(batch, batch_idx, self.trainer.val_dataloaders)
        if len(real[0]):
            super().validation_step(real, batch_idx)
        else:
            self._idle_step(batch, "val", self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Evaluate what is no repetition."""
        real = self._real_samples(batch, batch_idx, self.trainer.test_dataloaders)
        if not len(real[0]):
            steps = [step for step in self.hparams.val_steps_to_log if step <= batch[1].shape[1]]
            self.spatial_loss_maps.append(batch[1].new_empty(0, len(steps), batch[1].shape[2]))
            self._idle_step(batch, "test", self.test_metrics)
            return
        super().test_step(real, batch_idx)
        members = self.placement.members
        if self.forecaster.predicts_std and members is not None:
            spreads = self.test_metrics["output_std"]
            spreads[-1] = self._mean_over_group(spreads[-1], members)

    def on_test_epoch_end(self) -> None:
        """neural-lam's tables and maps, of the whole grid."""
        predictor = self.forecaster.predictor
        maps = [gather_grid(losses.unsqueeze(-1), predictor).squeeze(-1) for losses in self.spatial_loss_maps]
        self.spatial_loss_maps = maps
        super().on_test_epoch_end()
        self._examples_seen = 0

    def plot_examples(self, batch: Batch, n_examples: int, split: str, prediction: Tensor) -> None:
        """Plot whole fields: those of the last prediction, gathered from the group."""
        assert self._whole is not None
        prediction, target = self._whole
        super().plot_examples((batch[0], target, *batch[2:]), n_examples, split=split, prediction=prediction)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """As neural-lam; refuses the checkpoint of another architecture, naming what differs."""
        theirs = checkpoint.get("hyper_parameters", {}).get("args")
        for name in COMPARED:
            given, held = getattr(self.hparams.args, name, None), getattr(theirs, name, None)
            if held is not None and given is not None and held != given:
                raise InvalidInputError(f"--load: the checkpoint's {name} is {held}, --{name} is {given}")
        super().on_load_checkpoint(checkpoint)

    def _real_samples(self, batch: Batch, batch_idx: int, loader: Any) -> Batch:
        if not self.shares_samples:
            return batch
        left = max(0, loader.sampler.real - batch_idx * loader.batch_size)
        real: Any = [part[:left] for part in batch]
        return real

    def _idle_step(self, batch: Batch, phase: str, metrics: dict[str, list[Tensor]]) -> None:
        """Take part in what all groups do together, and count for nothing."""
        self._compute_prediction_and_loss(batch)
        target = batch[1]
        for values in metrics.values():
            values.append(target.new_empty(0, target.shape[1], target.shape[-1]))
        nothing = target.new_zeros(target.shape[1])
        self._log_step_loss(nothing, nothing.mean(), phase, 0)

    def _mean_over_group(self, mean: Tensor, members: ModelGroup) -> Tensor:
        """Mean over the interior of the grid from the mean over that of this rank, which is NaN if there is none."""
        local = self.interior_mask_bool.sum()
        packed = torch.cat([(mean.nan_to_num() * local).flatten(), local.to(mean.dtype).view(1)])
        dist.all_reduce(packed, group=members.process_group)
        return (packed[:-1] / packed[-1]).view_as(mean)
