"""Runs `record` on several ranks without paying for the imports every time: a process has them and forks the ranks.

Ranks are started as ``torchrun`` starts them, with its variables in their environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GRACE = 20.0
"""Seconds that the other ranks have to end after one of them failed."""
TIMEOUT = 240.0
"""Seconds that a run may take."""
KILLED = 124
"""Status of ranks that had to be ended."""


@dataclasses.dataclass
class Outcome:
    """What became of a run: the exit status of every rank, and what every rank said."""

    statuses: list[int]
    outputs: list[str]


class Launcher:
    """Use it as a context manager; ``variables`` are in the environment of every run."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "tests.training.launcher"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | variables
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, place: Path, *arguments: object, ranks: int = 1, **environment: object) -> Outcome:
        """Run on so many ranks in the new directory ``place``, with these variables in addition."""
        place.mkdir(parents=True)
        variables = {name: str(value) for name, value in environment.items()}
        request = {"place": str(place), "arguments": [*map(str, arguments)], "ranks": ranks, "variables": variables}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        statuses = json.loads(self._process.stdout.readline())
        return Outcome(statuses, [_log(place, rank).read_text() for rank in range(ranks)])


def _log(place: Path, rank: int) -> Path:
    return place / f"rank{rank}.log"


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print isn't an answer
    import deepspeed  # noqa: F401
    import torch
    from neural_lam import train_model  # noqa: F401

    import neural_lam_anemoi.adapters.neural_lam.train  # noqa: F401

    from . import record

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        port = free_port()
        processes = [_fork(record.main, request, rank, port) for rank in range(request["ranks"])]
        print(json.dumps(_wait(processes)), file=answers, flush=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _fork(main: Any, request: dict[str, Any], rank: int, port: int) -> int:
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        place, ranks = Path(request["place"]), str(request["ranks"])
        torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
        torchrun |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        os.environ.update({name: str(value) for name, value in torchrun.items()} if request["ranks"] > 1 else {})
        os.environ.update(request["variables"] | {"RECORD": str(place)})
        os.chdir(place)
        with _log(place, rank).open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            status = main(request["arguments"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait(processes: list[int]) -> list[int]:
    """Statuses in the order of the processes; all end soon after the first failure, and at the latest after `TIMEOUT`."""
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + TIMEOUT
    while len(statuses) < len(processes):
        for process in set(processes) - set(statuses):
            ended, how = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[process] = os.waitstatus_to_exitcode(how)
                if statuses[process]:
                    deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            for process in set(processes) - set(statuses):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                statuses[process] = KILLED
        time.sleep(0.05)
    return [statuses[process] for process in processes]


if __name__ == "__main__":
    _serve()
