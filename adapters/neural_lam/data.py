"""neural-lam's samples, shared out among model groups; a rank reads its own rows alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from neural_lam.weather_dataset import WeatherDataModule, WeatherDataset
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from .placement import Placement


class BlockSampler(Sampler[int]):
    """One group's block of the samples, in order, as long as every other's: the last sample is repeated if need be.

    Attributes
    ----------
    real : int
        How many of them are no repetition.
    """

    def __init__(self, samples: int, groups: int, group: int) -> None:
        self.samples, self.length = samples, -(-samples // groups)
        self.first = group * self.length
        self.real = max(0, min(self.length, samples - self.first))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter([min(self.first + i, self.samples - 1) for i in range(self.length)])


class DataModule(WeatherDataModule):
    """``neural_lam``'s data module for several ranks."""

    def train_dataloader(self) -> DataLoader:
        """Batches of this group's samples, shuffled with the seed of the run and the epoch."""
        loader, place = super().train_dataloader(), self._placement
        if place is None:
            return loader
        seed = self.trainer.lightning_module.hparams.args.seed  # type: ignore[union-attr]
        sampler: Any = DistributedSampler(loader.dataset, place.groups, place.group, seed=seed)
        return self._own(loader, sampler)

    def val_dataloader(self) -> DataLoader:
        """Batches of this group's block of samples."""
        return self._evaluation(super().val_dataloader())

    def test_dataloader(self) -> DataLoader:
        """Batches of this group's block of samples."""
        return self._evaluation(super().test_dataloader())

    @property
    def _placement(self) -> Placement | None:
        """None where neural-lam's own order of samples holds: one process, and no strategy asked for."""
        module: Any = self.trainer.lightning_module  # type: ignore[union-attr]
        return module.placement if module.shares_samples else None

    def _evaluation(self, loader: DataLoader) -> DataLoader:
        place = self._placement
        if place is None:
            return loader
        return self._own(loader, BlockSampler(len(loader.dataset), place.groups, place.group))  # type: ignore[arg-type]

    def _own(self, loader: DataLoader, sampler: Sampler[int]) -> DataLoader:
        predictor: Any = self.trainer.lightning_module.forecaster.predictor  # type: ignore[union-attr]
        dataset: Any = loader.dataset
        if predictor.sharding is not None:
            dataset = cut_to_rows(dataset, predictor.grid_rows.cpu())
        return DataLoader(
            dataset,
            batch_size=loader.batch_size,
            sampler=sampler,
            num_workers=loader.num_workers,
            multiprocessing_context=loader.multiprocessing_context,
            persistent_workers=loader.persistent_workers,
            pin_memory=loader.pin_memory,
        )


def cut_to_rows(dataset: WeatherDataset, rows: Tensor) -> WeatherDataset:
    """A dataset that reads the grid nodes ``rows``, ``(local rows,)``, and no others."""
    cut = copy.copy(dataset)
    where: Any = rows.numpy()
    if len(rows) and bool((rows.diff() == 1).all()):
        where = slice(int(rows[0]), int(rows[-1]) + 1)
    cut.da_state = dataset.da_state.isel(grid_index=where)
    if dataset.da_forcing is not None:
        cut.da_forcing = dataset.da_forcing.isel(grid_index=where)
    return cut
