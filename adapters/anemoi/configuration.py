"""The configuration that an Anemoi checkpoint carries: enough for Anemoi to build and run the model again."""

from __future__ import annotations

import datetime
from typing import Any

from anemoi.utils.dates import frequency_to_string

from neural_lam_anemoi.graph import mesh_name
from neural_lam_anemoi.hetero import GRID, INTERIOR

from .models import INPUT_STEPS, MODELS
from .section import HOST, SECTION
from .variables import input_names

BOUNDARY_IS_GIVEN = {"_target_": "anemoi.training.utils.masks.Boolean1DMask", "attribute_name": INTERIOR}
"""Anemoi's mask for the rollout: the boundary is overwritten with the truth after every step."""


def model_configuration(manifest: dict[str, Any], host: str) -> dict[str, Any]:
    """Plain values for an Anemoi configuration, from a bundle's manifest and what to keep under `HOST`.

    The normaliser is ``none``: the model standardises by itself. Precision is 32 because anemoi-inference would run half
    precision where none is given.
    """
    groups = input_names(manifest)
    architecture = manifest["architecture"]
    step = frequency_to_string(datetime.timedelta(seconds=manifest["time_step_seconds"]))
    model = MODELS[architecture["model"]]
    normalizer = {"_target_": "anemoi.models.preprocessing.normalizer.InputNormalizer", "config": {"default": "none"}}
    return {
        "data": {
            "format": "zarr",
            "frequency": step,
            "timestep": step,
            "datasets": {
                GRID: {
                    "forcing": groups["forcing"] + groups["static"],
                    "diagnostic": [],
                    "target": [],
                    "processors": {"normalizer": normalizer},
                }
            },
        },
        "model": {
            "num_channels": architecture["hidden_dim"],
            "model": {
                "_target_": f"{model.__module__}.{model.__qualname__}",
                "_convert_": "none",
                "hidden_nodes_name": [mesh_name(level) for level, _ in enumerate(manifest["graph"]["num_mesh"])],
            },
            "keep_batch_sharded": True,
            "processor": {"num_layers": architecture["processor_layers"], "num_chunks": 1},  # for transfer learning
            "output_mask": {"datasets": {GRID: BOUNDARY_IS_GIVEN}},
            SECTION: manifest | {HOST: host},
        },
        "training": {"precision": "32", "multistep_input": INPUT_STEPS, "multistep_output": 1},
        "task": {"multistep_input": INPUT_STEPS, "multistep_output": 1, "timestep": step},
    }
