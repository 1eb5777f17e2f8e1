"""With ``--meta_init`` a network takes no memory at first and has the same values in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from neural_lam_anemoi.adapters.neural_lam.meta import Deferred
from neural_lam_anemoi.nn.mlp import make_mlp

from .runs import Runs

STRATEGIES: dict[str, tuple[tuple[object, ...], int]] = {
    "none": ((), 1),
    "ddp in float64": (("--num_gpus_per_model", 2, "--precision", 64), 2),
    "fsdp2": (("--sharding_strategy", "fsdp2", "--num_gpus_per_model", 2), 2),
    "zero3": (("--sharding_strategy", "zero3", "--num_gpus_per_model", 2), 2),
}


def test_values_come_later() -> None:
    """The very same; and so do random numbers drawn meanwhile."""
    torch.manual_seed(3)
    whole, after = nn.ModuleList(make_mlp([5, 8, 8]) for _ in range(3)), torch.rand(2)
    torch.manual_seed(3)
    deferred = Deferred()
    with deferred.building():
        empty = nn.ModuleList(make_mlp([5, 8, 8]) for _ in range(3))
    assert torch.equal(torch.rand(2), after)
    assert len(list(empty.parameters())) > 10 and all(parameter.is_meta for parameter in empty.parameters())
    torch.manual_seed(4)
    deferred.materialise()
    assert torch.equal(torch.rand(1), _first(4))
    for (name, one), (other, two) in zip(whole.named_parameters(), empty.named_parameters(), strict=True):
        assert name == other and torch.equal(one, two)


def _first(seed: int) -> torch.Tensor:
    return torch.rand(1, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_run(strategy: str, runs: Runs, tmp_path: Path) -> None:
    """Losses and weights, bit for bit, whatever is spread."""
    options, ranks = STRATEGIES[strategy]
    plain, meta = (
        runs.succeed(tmp_path / name, *options, *flags, ranks=ranks, LIMIT=2)
        for name, flags in (("plain", ()), ("meta", ("--meta_init",)))
    )
    assert torch.equal(plain.losses, meta.losses)
    weights, others = plain.checkpoint["state_dict"], meta.checkpoint["state_dict"]
    assert weights.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
