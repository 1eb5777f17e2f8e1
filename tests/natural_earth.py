"""A stand-in for the coastlines that cartopy would download, so that neural-lam's plots work without a network."""

from __future__ import annotations

from pathlib import Path

import shapefile

LAYERS = {"physical": "coastline", "cultural": "admin_0_boundary_lines_land"}
SCALES = ("10m", "50m", "110m")


def make_natural_earth(directory: Path) -> dict[str, str]:
    """Write one line per layer and scale; returns the environment in which cartopy finds them."""
    for category, layer in LAYERS.items():
        place = directory / "shapefiles" / "natural_earth" / category
        place.mkdir(parents=True, exist_ok=True)
        for scale in SCALES:
            with shapefile.Writer(str(place / f"ne_{scale}_{layer}"), shapeType=shapefile.POLYLINE) as writer:
                writer.field("name", "C")
                writer.line([[[5.0, 55.0], [15.0, 57.0]]])
                writer.record("line")
    return {"CARTOPY_DATA_DIR": str(directory)}
