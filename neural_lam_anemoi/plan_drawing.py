"""A plan as a picture: partitions on the map, memory against ranks. Needs matplotlib, which comes with either host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import InvalidInputError
from .files import complete_or_absent
from .plan import USABLE, Plan
from .sharding.costs import KNOBS, PRECISIONS
from .sharding.partition import plot_partition

PANEL_INCHES = 5.5


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw every kind of partition for most ranks, and memory on the fullest rank against ranks.

    Grid nodes are squares and mesh nodes rings in the colour of their owner; lines are settings, the dashed one is what
    fits.

    Parameters
    ----------
    plan : Plan
        Made with grid coordinates.
    path : Path
        Image file to write or to replace; its suffix says which format.

    Raises
    ------
    InvalidInputError
        No grid coordinates, no matplotlib, or a file that can't be written.
    """
    if plan.grid_coordinates is None:
        raise InvalidInputError("plan: a map needs grid_coordinates; this directory has none, give --config_path")
    figure_class = _figure_class()
    _require_format(path)
    most = max(row.ranks for row in plan.rows)
    kinds = [row.kind for row in plan.rows if row.ranks == most]
    figure = figure_class(figsize=(PANEL_INCHES * (len(kinds) + 1), PANEL_INCHES), layout="constrained")
    *maps, memory = figure.subplots(1, len(kinds) + 1)
    _draw_maps(plan, most, kinds, plan.grid_coordinates, maps)
    _draw_memory(plan, kinds[-1], memory)
    with complete_or_absent(path, force=True) as made:
        figure.savefig(made)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInputError("plan: a picture needs matplotlib; pip install matplotlib") from None
    return Figure


def _require_format(path: Path) -> None:
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lower().lstrip(".") not in known:
        raise InvalidInputError(f"{path}: not the name of an image; its suffix has to be one of {', '.join(known)}")


def _draw_maps(plan: Plan, ranks: int, kinds: list[str], places: Tensor, maps: list[Any]) -> None:
    for kind, axes in zip(kinds, maps, strict=True):
        plot_partition(plan.partitions[ranks, kind], plan.graph, places, axes)


def _draw_memory(plan: Plan, kind: str, axes: Any) -> None:
    rows = sorted((row for row in plan.rows if row.kind == kind or row.ranks == 1), key=lambda row: row.ranks)
    ranks = [row.ranks for row in rows]
    for precision in PRECISIONS:
        for knob in KNOBS:
            drawn = [
                s.total_mb / 1e3 for row in rows for s in row.settings if (s.precision, s.knob) == (precision, knob)
            ]
            axes.plot(ranks, drawn, marker="o", label=f"{knob}, {precision}")
    axes.axhline(plan.gpu_memory * USABLE / 1e9, color="black", linestyle="--", label=f"{USABLE:.0%} of GPU memory")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="GB on the fullest rank", title=f"memory, {kind}")
    axes.set_xticks(ranks, labels=map(str, ranks), minor=False)
    axes.minorticks_off()
    axes.legend(fontsize=7)
