"""Who reads what: samples once each over the groups, rows of a rank alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
import zarr
from neural_lam.config import load_config_and_datastore
from neural_lam.weather_dataset import WeatherDataset

from neural_lam_anemoi.adapters.neural_lam.data import BlockSampler, cut_to_rows

RANKS = 4


@pytest.mark.parametrize("samples", [1, 2, 5, 12])
@pytest.mark.parametrize("groups", [1, 2, 3, 7])
def test_every_sample_once(samples: int, groups: int) -> None:
    """What isn't a repetition; and all groups have the same number of steps."""
    samplers = [BlockSampler(samples, groups, group) for group in range(groups)]
    assert len({len(sampler) for sampler in samplers}) == 1
    assert all(len(list(sampler)) == len(sampler) for sampler in samplers)
    assert [sample for sampler in samplers for sample in list(sampler)[: sampler.real]] == list(range(samples))


def test_a_rank_reads_its_rows(era5_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a datastore whose chunks have a part of the grid: its share of the bytes, and the values of the whole sample."""
    project = tmp_path / "project"
    shutil.copytree(era5_project.parent, project, ignore=shutil.ignore_patterns("graph", "cartopy"))
    store = project / "era5.datastore.zarr"
    with xr.open_zarr(store) as whole:
        rows = whole.sizes["grid_index"]
        cut: Any = whole.load().chunk(time=1, grid_index=-(-rows // RANKS))
    for variable in cut.variables.values():
        variable.encoding.clear()
    shutil.rmtree(store)
    cut.to_zarr(store)
    read = {"bytes": 0}
    stock = zarr.storage.DirectoryStore._fromfile

    def counted(name: str) -> bytes:
        content: bytes = stock(name)
        read["bytes"] += len(content) if "/state/" in name or "/forcing/" in name else 0
        return content

    _, datastore = load_config_and_datastore(str(project / "config.yaml"))
    dataset = WeatherDataset(datastore, split="train", ar_steps=1)
    monkeypatch.setattr(zarr.storage.DirectoryStore, "_fromfile", staticmethod(counted))
    whole_sample, everything = dataset[0], read["bytes"]
    shares = []
    for own in torch.arange(rows).chunk(RANKS):
        read["bytes"] = 0
        sample = cut_to_rows(dataset, own)[0]
        shares.append(read["bytes"] / everything)
        for part, all_rows in zip(sample[:3], whole_sample[:3], strict=True):
            assert torch.equal(part, all_rows[:, own])
    assert everything > 0
    assert max(shares) < 1.1 / RANKS, shares
