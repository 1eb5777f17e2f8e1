"""Processes that form gloo groups: started once, given one task after another, ended together."""

from __future__ import annotations

import dataclasses
import datetime
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

GRACE = 1.0
"""Seconds in which further errors may arrive, so that the earliest can be told."""


class RanksFailedError(RuntimeError):
    """A task raised or a rank died; the first error is on top."""


@dataclasses.dataclass
class Place:
    """What a task gets to know: its rank and the groups of the first 1, 2, … ranks."""

    rank: int
    groups: dict[int, Any]


class Ranks:
    """So many processes, each with a gloo group of the first R of them for every R.

    Use it as a context manager. After a failure all processes are gone and `run` raises.
    """

    def __init__(self, count: int, timeout: float = 60.0) -> None:
        context = multiprocessing.get_context("spawn")
        self.timeout = timeout
        self._directory = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(count):
            here, there = context.Pipe()
            arguments = (rank, count, self._directory.name, there, timeout)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def run(self, task: Callable[..., Any], *arguments: Any, ranks: int, timeout: float | None = None) -> list[Any]:
        """``task(place, *arguments)`` on the first ``ranks`` processes, and what each returned.

        Raises
        ------
        RanksFailedError
            A rank raised, died, or wasn't ready in time; all are ended.
        """
        self.start(task, *arguments, ranks=ranks)
        answers = self._answers(ranks, time.monotonic() + (timeout or self.timeout))
        errors = sorted((when, rank, text) for rank, (kind, when, text) in answers.items() if kind == "error")
        if errors or len(answers) < ranks:
            self.end()
            raise RanksFailedError(_report(errors, [rank for rank in range(ranks) if rank not in answers]))
        return [answers[rank][2] for rank in range(ranks)]

    def start(self, task: Callable[..., Any], *arguments: Any, ranks: int) -> None:
        """Only begin, as `run` does."""
        order = pickle.dumps((task, arguments))
        for pipe in self._pipes[:ranks]:
            pipe.send_bytes(order)

    def _answers(self, ranks: int, deadline: float) -> dict[int, tuple[str, float, Any]]:
        answers: dict[int, tuple[str, float, Any]] = {}
        while len(answers) < ranks and time.monotonic() < deadline:
            waiting = {self._pipes[rank]: rank for rank in range(ranks) if rank not in answers}
            for pipe in wait(list(waiting), timeout=0.1):
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    answers[rank] = pickle.loads(self._pipes[rank].recv_bytes())
                except EOFError:
                    self.processes[rank].join(GRACE)
                    answers[rank] = ("error", 0.0, f"it ended with exit status {self.processes[rank].exitcode}")
            if any(kind == "error" for kind, _, _ in answers.values()):
                deadline = min(deadline, time.monotonic() + GRACE)
        return answers

    def end(self) -> None:
        """Kill whoever is still there."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self._directory.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


def _report(errors: Sequence[tuple[float, int, str]], missing: Sequence[int]) -> str:
    parts = [f"rank {rank}: {text}" for _, rank, text in errors]
    return "\n".join([*parts, *(f"rank {rank}: no answer in time" for rank in missing)])


def _serve(rank: int, count: int, directory: str, pipe: Connection, timeout: float) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(Path(directory) / "store"), count)
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=limit)
    place = Place(rank, {size: dist.new_group(list(range(size))) for size in range(1, count + 1)})
    while True:
        try:
            task, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            answer = ("done", time.time(), task(place, *arguments))
        except BaseException:
            answer = ("error", time.time(), traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))
        if answer[0] == "error":
            raise SystemExit(1)
