"""A rank that raises or is killed ends all of them, soon, with the first error on top; nothing is left running."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.sharding.shard import shard

from .graphs import build_network, pickled, random_graph, random_sample
from .ranks import Place, Ranks, RanksFailedError
from .tasks import Options, Sample, run_sharded

SOON = 60


def fail_in_second_run(place: Place, ranks: int, network: bytes, sample: Sample, how: str) -> None:
    """One rank fails while the others wait for its rows."""
    run_sharded(place, ranks, network, sample, Options())
    if place.rank == 1:
        if how == "raise":
            raise ZeroDivisionError("the first error")
        os.kill(os.getpid(), signal.SIGKILL)
    run_sharded(place, ranks, network, sample, Options())


@pytest.mark.parametrize(("how", "first"), [("raise", "ZeroDivisionError: the first error"), ("kill", "status -9")])
def test_one_failing_rank_ends_all(how: str, first: str, graphs: dict[str, LamGraph]) -> None:
    network = pickled(build_network("graph_lam", graphs["flat"]))
    sample = random_sample(graphs["flat"].num_grid)
    with Ranks(3) as ranks:
        ranks.run(run_sharded, 3, network, sample, Options(), ranks=3)
        start = time.monotonic()
        with pytest.raises(RanksFailedError) as caught:
            ranks.run(fail_in_second_run, 3, network, sample, how, ranks=3, timeout=2 * SOON)
        assert time.monotonic() - start < SOON
        assert all(process.exitcode != 0 for process in ranks.processes)
    report = str(caught.value)
    assert report.startswith("rank 1:")
    assert first in report.split("\nrank ")[0]


def test_the_others_end_by_themselves(graphs: dict[str, LamGraph]) -> None:
    network = pickled(build_network("graph_lam", graphs["flat"]))
    sample = random_sample(graphs["flat"].num_grid)
    with Ranks(3) as ranks:
        ranks.run(run_sharded, 3, network, sample, Options(), ranks=3)
        ranks.start(fail_in_second_run, 3, network, sample, "kill", ranks=3)
        deadline = time.monotonic() + SOON
        for process in ranks.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert [process.exitcode for process in ranks.processes] == [1, -signal.SIGKILL, 1]


def threads_after_destroy(place: Place, network: bytes, sample: Sample, sharded: bool) -> int:
    """How many threads are left when the groups are destroyed, while a model and its graph are alive."""
    model = pickle.loads(network)
    if sharded:
        shard(model, place.groups[2], replicate=())
    older, newer = model.take_rows(sample.initial).unbind(1)
    state, _ = model.step(newer, older, model.take_rows(sample.forcing[:, 0]), model.take_rows(sample.static))
    state.sum().backward()
    place.groups.clear()
    dist.destroy_process_group()
    assert state.grad_fn is not None
    if sharded:
        with pytest.raises(InvalidInputError, match="was destroyed"):
            model.sharding.group.process_group  # noqa: B018
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_destroyed_group_is_gone() -> None:
    """Its threads would abort a process that ends meanwhile."""
    network, sample = pickled(build_network("graph_lam", random_graph(0, 40, (9,), 2.0))), random_sample(40)
    found = []
    for sharded in (False, True):
        with Ranks(2) as ranks:
            found.append(ranks.run(threads_after_destroy, network, sample, sharded, ranks=2))
    assert found[0] == found[1]
