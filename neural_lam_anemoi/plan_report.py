"""A plan as text: a table for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json

from .plan import Plan, PlanRow

TITLES = ("ranks", "kind", "grid", "mesh", "edges", "halo", "MB/step", "read", "imbalance", "cheapest that fits")
LEGEND = (
    "grid, mesh, edges: held by the fullest rank; halo: rows of others that it fetches for one use of every edge set",
    "MB/step: received by the busiest rank in a train step, forward and backward, in float32 with keep; bf16-mixed "
    "halves it, recomputing adds up to half",
    "read: rows read from the data file over rows needed, in chunks of one rank's size; imbalance: most edge work of a "
    "rank over the mean",
)
NO_COORDINATES = "rcb is left out: this graph directory doesn't say where grid nodes lie; give --config_path"


def plan_json(plan: Plan) -> str:
    """Everything about a plan but graph and partitions, as JSON.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    str
        An object of ``model``, ``batch_size``, ``rollout``, ``gpu_memory`` (bytes), ``cheapest`` (null if nothing fits)
        and ``rows``: the fields of `PlanRow`, its settings and loads included. Names that end in ``_mb`` are megabytes.
    """
    found = plan.cheapest
    cheapest = None if found is None else {"ranks": found[0].ranks, "kind": found[0].kind, **vars(found[1])}
    head = {name: getattr(plan, name) for name in ("model", "batch_size", "rollout", "gpu_memory")}
    return json.dumps(head | {"cheapest": cheapest, "rows": [dataclasses.asdict(row) for row in plan.rows]}, indent=1)


def plan_table(plan: Plan) -> list[str]:
    """Lines of text for a terminal: counts and the choice, then the memory of every setting, then what to do.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    list of str
    """
    settings = (f"{setting.knob}, {setting.precision}" for setting in plan.rows[0].settings)
    memory = [["ranks", "kind", "params", "optimizer", *settings], *map(_memory, plan.rows)]
    return [
        *_aligned([list(TITLES), *map(_counts, plan.rows)]),
        *LEGEND,
        *([NO_COORDINATES] if plan.grid_coordinates is None else []),
        "",
        "MB on the fullest rank; activations (an estimate) for each setting:",
        *_aligned(memory),
        _advice(plan),
    ]


def _counts(row: PlanRow) -> list[str]:
    cells = [row.ranks, row.kind, row.grid_nodes, row.mesh_nodes, row.edges, row.halo_rows, f"{row.exchanged_mb:.2f}"]
    return [*map(str, cells), f"{row.read_amplification:.1f}", f"{row.imbalance:.2f}", _choice(row)]


def _choice(row: PlanRow) -> str:
    found = row.cheapest
    if found:
        return f"{found.knob}, {found.precision}"
    return f"too small: needs {min(setting.total_mb for setting in row.settings):.0f} MB"


def _memory(row: PlanRow) -> list[str]:
    sizes = [row.parameters_mb, row.optimizer_mb, *(setting.activations_mb for setting in row.settings)]
    return [str(row.ranks), row.kind, *(f"{size:.0f}" for size in sizes)]


def _advice(plan: Plan) -> str:
    found = plan.cheapest
    if found is None:
        return "nothing fits; add ranks, or lower hidden_dim or the rollout"
    row, setting = found
    return f"cheapest that fits: {row.ranks} ranks, {row.kind}, {setting.knob}, {setting.precision}"


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
