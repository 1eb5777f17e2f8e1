"""Training what one process may not hold, over several ranks and with less kept: ``python -m benchmarks.training``.

Every process of a run gets the same limit of memory (``RLIMIT_DATA``: heap and private mappings, of which the libraries reserve 2200 MB). Runs of
``neural-lam-anemoi train`` on the ERA5 sample; writes ``training.json`` and ``training.md`` into ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import tempfile
from pathlib import Path

from neural_lam_anemoi.adapters.bridge.processes import executable
from neural_lam_anemoi.adapters.bridge.sample import make_era5_project, make_graph

from .machine import describe_machine
from .report import RESULTS, write_report

TITLES = ("run", "ranks", "limit per process, MB", "trains", "peak per process, MB", "received in a step, MB")
MODEL = ("--model", "graph_lam", "--graph", "multiscale", "--hidden_dim", "64", "--processor_layers", "4")
SIZE = ("--batch_size", "4", "--ar_steps_train", "4", "--ar_steps_eval", "1", "--val_steps_to_log", "1")
RUN = ("--epochs", "1", "--num_workers", "0", "--num_sanity_val_steps", "0", "--val_interval", "9", "--seed", "1")
SAID = re.compile(r"the fullest rank has had ([\d,]+) MB; ([\d.,]+) MB received")
MEGABYTE = 10**6


@dataclasses.dataclass
class Row:
    """A line of the table."""

    run: str
    ranks: int
    limit_mb: int | None
    trains: bool
    peak_mb: float | None
    received_mb: float | None


def main() -> None:
    """Run everything, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", type=int, default=4200, help="MB that a process may have (default 4200)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    limit = options.limit
    with tempfile.TemporaryDirectory() as directory:
        config = make_era5_project(Path(directory))
        make_graph(config, "multiscale", "graphcast", mesh_grid_distance_ratio=4)
        rows = [
            measure(config, "one process, no limit", 1, None),
            measure(config, "one process", 1, limit),
            measure(config, "--num_gpus_per_model 2", 2, limit),
            measure(config, "--num_gpus_per_model 4", 4, limit),
            measure(config, "--checkpoint_activations rollout", 1, limit),
            measure(config, "--checkpoint_activations both --edge_chunks 8", 1, limit),
            measure(config, "--num_gpus_per_model 4 --checkpoint_activations both --edge_chunks 8", 4, limit),
        ]
    machine = describe_machine()
    report = {"machine": machine, "rows": [dataclasses.asdict(row) for row in rows]}
    write_report(options.output, "training", report, _markdown(machine, rows))


def measure(config: Path, flags: str, ranks: int, limit: int | None) -> Row:
    """An epoch with these flags; a run that exceeds its limit ends with an error."""
    print(f"training: {flags}, limit {limit} MB", flush=True)
    with tempfile.TemporaryDirectory() as place:
        own = flags.split() if flags.startswith("--") else []
        command = [executable("neural-lam-anemoi"), "train", "--config_path", str(config), *own, *MODEL, *SIZE, *RUN]
        command += ["--runs_root", place, "--logger_run_name", "run"]
        limited = ["prlimit", f"--data={limit * MEGABYTE}"] if limit else []
        command = [executable("torchrun"), f"--nproc_per_node={ranks}", "--no-python", *limited, *map(str, command)]
        environment = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1800, env=environment)
        if done.returncode and "allocate" not in done.stderr + done.stdout:
            raise RuntimeError(f"{flags}: {done.stderr[-2000:]}")
        trained = not done.returncode and (Path(place) / "run" / "checkpoints" / "last.ckpt").exists()
    found = SAID.search(done.stdout)
    numbers = [float(text.replace(",", "")) for text in found.groups()] if found and trained else [None, None]
    return Row(flags, ranks, limit, trained, *numbers)


def _markdown(machine: dict[str, object], rows: list[Row]) -> str:
    lines = [
        "# Training within a limit of memory",
        "",
        f"{machine['cpu']}, torch {machine['torch']}, gloo. graph_lam, hidden 64, 4 layers, 11011 grid nodes, batch 4, "
        "4 steps that gradients flow through. The peak is that of a whole process, libraries included.",
        "",
        "| " + " | ".join(TITLES) + " |",
        "|" + " --- |" * len(TITLES),
    ]
    for row in rows:
        numbers = ["" if number is None else f"{number:,.0f}" for number in (row.limit_mb, row.peak_mb)]
        received = "" if row.received_mb is None else f"{row.received_mb:,.1f}"
        trains = "yes" if row.trains else "out of memory"
        lines.append(f"| `{row.run}` | {row.ranks} | {numbers[0]} | {trains} | {numbers[1]} | {received} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
