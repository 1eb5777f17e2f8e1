"""Maps of a forecast, with coastlines from the land-sea mask: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from neural_lam_anemoi.bundle import ModelBundle

from .forecast import Forecast

matplotlib.use("Agg")
from matplotlib import pyplot

LAND_SEA_MASK = "lsm"
PANELS = ("truth (ERA5)", "neural-lam", "Anemoi", "Anemoi minus neural-lam")


def draw_forecasts(
    path: Path, bundle: ModelBundle, ours: Forecast, theirs: Forecast, variables: tuple[str, ...], step: int = -1
) -> None:
    """Draw truth, both forecasts and their difference, a row per variable, and write a PNG.

    Parameters
    ----------
    path : Path
        PNG file to write.
    bundle : ModelBundle
        Its grid must be regular in x and y.
    ours, theirs : Forecast
        By neural-lam (with truth) and by Anemoi.
    variables : tuple of str
        One row each.
    step : int
        Which step to draw.
    """
    grid = _Grid(bundle)
    figure, axes = pyplot.subplots(
        len(variables), len(PANELS), figsize=(17, 3.9 * len(variables)), squeeze=False, layout="constrained"
    )
    assert ours.truth is not None
    for row, name in zip(axes, variables, strict=True):
        column = bundle.variables.state.index(name)
        fields = [grid.on_map(states[step, :, column]) for states in (ours.truth, ours.states, theirs.states)]
        difference = np.where(grid.interior, fields[2] - fields[1], np.nan)
        unit = bundle.variables.units.get(name, "")
        low, high = np.percentile(fields[0], [1, 99])
        for axis, field, title in zip(row, fields, PANELS, strict=False):
            image = grid.draw(axis, field, "viridis", low, high)
            axis.set_title(f"{name}, {title}")
        figure.colorbar(image, ax=list(row[:3]), label=unit, shrink=0.85)
        largest = float(np.nanmax(np.abs(difference))) or 1.0
        image = grid.draw(row[3], difference, "RdBu_r", -largest, largest)
        row[3].set_title(f"{name}, {PANELS[3]}")
        figure.colorbar(image, ax=row[3], label=unit, shrink=0.85)
    lead = (ours.times[step] - ours.start) / np.timedelta64(1, "h")
    valid = str(ours.times[step].astype("datetime64[m]")).replace("T", " ")
    figure.suptitle(
        f"{bundle.architecture.model}: {lead:.0f} h forecast valid {valid} UTC; in the frame the boundary is prescribed"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


class _Grid:
    """A bundle's regular grid as an image: rows are y, columns x."""

    def __init__(self, bundle: ModelBundle) -> None:
        xy = bundle.fields.coordinates.numpy()
        self.x, self.y = np.unique(xy[:, 0]), np.unique(xy[:, 1])
        self._cells = np.searchsorted(self.y, xy[:, 1]), np.searchsorted(self.x, xy[:, 0])
        self.interior = self.on_map(~bundle.fields.boundary.numpy())
        self._land = None
        if LAND_SEA_MASK in bundle.variables.static:
            column = bundle.variables.static.index(LAND_SEA_MASK)
            self._land = self.on_map(bundle.fields.static[:, column].double().numpy())

    def on_map(self, values: np.ndarray) -> np.ndarray:
        image = np.zeros((len(self.y), len(self.x)), dtype=values.dtype)
        image[self._cells] = values
        return image

    def draw(
        self, axis: pyplot.Axes, field: np.ndarray, colours: str, low: float, high: float
    ) -> matplotlib.cm.ScalarMappable:
        image = axis.pcolormesh(self.x, self.y, field, cmap=colours, vmin=low, vmax=high, shading="nearest")
        if self._land is not None:
            axis.contour(self.x, self.y, self._land, levels=[0.5], colors="black", linewidths=0.6)
        axis.contour(self.x, self.y, self.interior, levels=[0.5], colors="white", linewidths=1.0, linestyles="--")
        axis.set_aspect("equal")
        axis.set(xticks=[], yticks=[])
        return image
