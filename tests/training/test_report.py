"""What a run says of itself, and what `auto` picks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neural_lam_anemoi.adapters.neural_lam.estimate import Expected, choose_strategy, chunks_that_fit
from neural_lam_anemoi.errors import InvalidInputError

from .runs import Runs

GIB = 2**30


def test_auto_picks_what_fits() -> None:
    """Whole parameters, then spread ones, then a refusal with what would help."""
    expected = Expected(activations_mb=2000, parameters_mb=1000, exchanged_mb=0)
    assert expected.total_mb("ddp", 4) == 6000
    assert expected.total_mb("zero1", 4) == 4500
    assert expected.total_mb("zero2", 4) == 3750
    assert expected.total_mb("fsdp2", 4) == expected.total_mb("zero3", 4) == 3000
    assert choose_strategy(expected, 4, 8 * GIB)[0] == "ddp"
    strategy, reason = choose_strategy(expected, 4, 4 * GIB)
    assert strategy == "fsdp2"
    assert "3,000 MB of 3,865 MB" in reason and "ddp would need 6,000 MB" in reason
    with pytest.raises(InvalidInputError, match="3,000 MB per rank are expected, 2,899 MB are usable"):
        choose_strategy(expected, 4, 3 * GIB)


def test_auto_chunks() -> None:
    """None where there is room; a part of many takes an eighth of the device."""
    assert chunks_that_fit(0, 1, 64, GIB) == chunks_that_fit(1000, 1, 64, GIB) == 1
    edges, batch, width = 10_000_000, 2, 128
    chunks = chunks_that_fit(edges, batch, width, 80 * GIB)
    part = edges / chunks * batch * width * 4 * 8
    assert 5 * GIB < part <= 10 * GIB


def test_a_run_says_how_it_is_spread(runs: Runs, tmp_path: Path) -> None:
    """On rank 0 alone; and no more is received than planned, where a rank sends as much as the one that receives most."""
    options = ("--num_gpus_per_model", 2, "--sharding_strategy", "auto", "--batch_size", 2, "--edge_chunks", "auto")
    run = runs.succeed(tmp_path / "run", *options, ranks=4, LIMIT=1)
    first, *others = run.outcome.outputs
    assert not any("train: " in other for other in others)
    assert re.search(r"^train: ddp: [\d,]+ MB of [\d,]+ MB per rank expected; parameters fit whole$", first, re.M)
    assert re.search(
        r"^train: 4 ranks in 2 groups of 2, strategy ddp, 0\.\d+ million parameters; a rank is expected to need",
        first,
        re.M,
    )
    found = re.search(
        r"the fullest rank has had ([\d,]+) MB; ([\d.]+) MB received from its model group in the step \(([\d.]+) exp",
        first,
    )
    assert found is not None
    assert float(found[1].replace(",", "")) > 100
    assert 0 < float(found[3]) / 2 < float(found[2]) <= float(found[3])
