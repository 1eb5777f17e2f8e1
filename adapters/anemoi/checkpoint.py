"""Anemoi checkpoints: to and from a `ModelBundle`.

``last.ckpt`` is a Lightning checkpoint for training, ``inference-last.ckpt`` a pickled model with metadata beside it in
the same zip file. Both are read without unpickling classes: weights, graph and metadata are taken from the data alone.
"""

from __future__ import annotations

import datetime
import json
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning
import torch
from anemoi.models.data_indices.collection import IndexCollection
from anemoi.models.interface import AnemoiModelInterface
from anemoi.models.migrations import Migrator
from anemoi.utils.checkpoints import load_metadata, save_metadata
from anemoi.utils.dates import frequency_to_string
from anemoi.utils.provenance import gather_provenance_info
from omegaconf import OmegaConf
from torch import Tensor

from neural_lam_anemoi import provenance, tree
from neural_lam_anemoi.bundle import TRAINING_STATE, ModelBundle
from neural_lam_anemoi.bundle_io import from_manifest, manifest
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.files import complete_or_absent
from neural_lam_anemoi.hetero import GRID, fields_from_hetero, graph_from_hetero, hetero_parts, to_hetero
from neural_lam_anemoi.nn.clamping import BUFFER_NAMES
from neural_lam_anemoi.weights import Stub, find_stub_state, read_torch_file

from .configuration import model_configuration
from .fine_tuning import write_configuration
from .models import INPUT_STEPS
from .section import SECTION, host_text, read_host, read_section
from .variables import dataset_variables, input_names

TRAINING_KIND = "Anemoi training checkpoint"
INFERENCE_KIND = "Anemoi inference checkpoint"
NETWORK_PREFIX = "model.network."
CONSTANTS = ("diff_mean", "diff_std")
KEPT = "neural_lam_anemoi"
FILES = ("inference-last.ckpt", "last.ckpt", "graph.pt", "fine_tuning.yaml")


def write_checkpoints(bundle: ModelBundle, directory: Path, force: bool = False) -> None:
    """Write `FILES` as a new directory.

    Parameters
    ----------
    bundle : ModelBundle
    directory : Path
        Appears when everything in it is complete.
    force : bool
        Replace an existing directory.
    """
    with complete_or_absent(directory, force, directory=True) as made:
        graph = to_hetero(bundle.graph, bundle.fields)
        torch.save(graph, made / "graph.pt")
        interface, metadata = build_interface(bundle, graph)
        write_configuration(bundle, metadata["config"], made / "fine_tuning.yaml", directory)
        arrays = {GRID: _supporting_arrays(bundle)}
        training = _training_content(bundle, interface, graph, metadata, arrays)
        torch.save(training, made / "last.ckpt")
        save_metadata(str(made / "last.ckpt"), metadata, supporting_arrays=arrays)
        interface.config = interface.metadata = interface.supporting_arrays = None
        torch.save(interface, made / "inference-last.ckpt")
        save_metadata(str(made / "inference-last.ckpt"), metadata, supporting_arrays=arrays)


def build_interface(bundle: ModelBundle, graph: Any) -> tuple[Any, dict[str, Any]]:
    """Anemoi's model object with the bundle's weights, and the metadata for its checkpoints."""
    content = manifest(bundle)
    config = OmegaConf.create(model_configuration(content, _small_host(bundle)))
    names = dataset_variables(content)
    indices = {GRID: IndexCollection(config.data.datasets[GRID], {name: i for i, name in enumerate(names)})}
    metadata = _metadata(bundle, config, indices, names)
    interface: Any = AnemoiModelInterface(
        config=config,
        n_step_input=INPUT_STEPS,
        n_step_output=1,
        graph_data=graph,
        statistics={GRID: _dataset_statistics(bundle)},
        data_indices=indices,
        metadata=metadata,
        supporting_arrays={GRID: _supporting_arrays(bundle)},
    )
    network = interface.model.network
    constants = {name: getattr(network, name) for name in CONSTANTS}
    interface.to(next(value.dtype for name, value in bundle.weights.items() if name not in BUFFER_NAMES))
    network.load_state_dict(bundle.weights | constants, strict=True)
    return interface, metadata


def read_checkpoint(path: Path, content: Any = None) -> ModelBundle:
    """Read an Anemoi training or inference checkpoint of one of this package's models.

    Parameters
    ----------
    path : Path
    content : object, optional
        What `read_torch_file` gave for ``path``, if it was read already.

    Raises
    ------
    InvalidInputError
        The file is damaged or of another kind, or holds a model of another package.
    """
    content = read_torch_file(path) if content is None else content
    metadata = _read_metadata(path)
    config = metadata.get("config", {})
    if config.get("model", {}).get(SECTION) is None:
        raise InvalidInputError(f"{path}: an Anemoi checkpoint, but not of a neural-lam model (no model.{SECTION})")
    section = _section(path, config)
    if isinstance(content, dict):
        kind, state = TRAINING_KIND, content["state_dict"]
        prefix = f"model.{NETWORK_PREFIX}"
        graph = content.get("hyper_parameters", {}).get("graph_data")
    else:
        kind, state, prefix = INFERENCE_KIND, module_state(content), NETWORK_PREFIX
        graph = find_stub_state(content).get("graph_data")
    parts = hetero_parts(graph)
    weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    for name in CONSTANTS:
        _check_constant(path, name, weights.pop(name, None), section)
    try:
        bundle = from_manifest(
            section, weights=weights, graph=graph_from_hetero(parts), fields=fields_from_hetero(parts)
        )
        _restore_training(bundle, content, section)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None
    bundle.provenance.append(provenance.record(path, kind))
    return bundle


def is_training_checkpoint(content: Any) -> bool:
    """Whether a file's content looks like an Anemoi training checkpoint."""
    return (
        isinstance(content, dict) and "state_dict" in content and "data_indices" in content.get("hyper_parameters", {})
    )


def is_inference_checkpoint(content: Any) -> bool:
    """Whether a file's content looks like an Anemoi inference checkpoint."""
    return isinstance(content, Stub) and content.stub_name.endswith("AnemoiModelInterface")


def module_state(module: Any, prefix: str = "") -> dict[str, Tensor]:
    """The state_dict of the stand-in for a pickled ``torch.nn.Module``."""
    attributes = find_stub_state(module)
    transient = attributes.get("_non_persistent_buffers_set", set())
    state = {f"{prefix}{name}": value for name, value in attributes.get("_parameters", {}).items() if value is not None}
    for name, value in attributes.get("_buffers", {}).items():
        if value is not None and name not in transient:
            state[f"{prefix}{name}"] = value
    for name, child in attributes.get("_modules", {}).items():
        state |= module_state(child, f"{prefix}{name}.")
    return {name: value.detach() for name, value in state.items()}


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        return load_metadata(str(path))
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path}: Anemoi's metadata can't be read ({error})") from None


def _section(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    try:
        return read_section(config)
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"model.{SECTION} is damaged ({type(error).__name__}: {error})"
        raise InvalidInputError(f"{path}: {reason}") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _check_constant(path: Path, name: str, stored: Tensor | None, section: dict[str, Any]) -> None:
    expected = torch.tensor(section["statistics"][f"state_{name}"]["values"]).float()
    if stored is None or not torch.equal(stored.float(), expected):
        have = None if stored is None else stored.tolist()
        raise InvalidInputError(f"{path}: {name} is {have} among the weights, {expected.tolist()} in model.{SECTION}")


def _supporting_arrays(bundle: ModelBundle) -> dict[str, np.ndarray]:
    fields = bundle.fields
    return {
        "latitudes": fields.latitudes.numpy(),
        "longitudes": fields.longitudes.numpy(),
        "output_mask": (~fields.boundary).numpy(),
    }


def _dataset_statistics(bundle: ModelBundle) -> dict[str, np.ndarray]:
    """Mean and standard deviation in dataset order; the range, which neural-lam doesn't know, is not a number."""
    window = bundle.forcing_window.length

    def column(kind: str) -> np.ndarray:
        values = (bundle.statistics[f"{category}_{kind}"].double() for category in ("state", "forcing", "static"))
        state, forcing, static = (value.numpy() for value in values)
        return np.concatenate([state, np.repeat(forcing, window), static])

    mean, std = column("mean"), column("std")
    return {"mean": mean, "stdev": std, "minimum": np.full_like(mean, np.nan), "maximum": np.full_like(mean, np.nan)}


def _metadata(bundle: ModelBundle, config: Any, indices: dict[str, Any], names: list[str]) -> dict[str, Any]:
    content = manifest(bundle)
    groups = input_names(content)
    forcing = groups["forcing"] + groups["static"]
    step = frequency_to_string(bundle.time_step)
    units = bundle.variables.units
    described: dict[str, dict[str, Any]] = {name: {"units": units.get(name, "")} for name in names}
    for name in groups["static"]:
        described[name]["constant_in_time"] = True
    index = indices[GRID]
    inference = {
        "data_indices": {"input": index.model.input.name_to_index, "output": index.model.output.name_to_index},
        "variable_types": {"forcing": forcing, "target": [], "diagnostic": [], "prognostic": groups["state"]},
        "timesteps": {
            "relative_date_indices_training": [0, 1, 2],
            "input_relative_date_indices": [0, 1],
            "output_relative_date_indices": [2],
            "timestep": step,
        },
    }
    return {
        "version": "2.0",
        "config": OmegaConf.to_container(config, resolve=True),
        "seed": 0,
        "run_id": str(uuid.uuid4()),
        "uuid": str(uuid.uuid4()),
        "task": "forecaster",
        "timestamp": datetime.datetime.now(tz=datetime.UTC).isoformat(),
        "provenance_training": json.loads(json.dumps(gather_provenance_info(), default=str)),
        "data_indices": {GRID: _plain(index.todict())},
        "dataset": {
            GRID: {
                "variables": names,
                "variables_metadata": described,
                "shape": [1, len(names), 1, bundle.graph.num_grid],
                "frequency": step,
                "constant_fields": groups["static"],
                "data_request": {"grid": None, "area": None},
            }
        },
        "metadata_inference": {"dataset_names": [GRID], "task": "forecaster", GRID: inference},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, Tensor | np.ndarray) else value


def _small_host(bundle: ModelBundle) -> str:
    """What fits into a configuration: hyper-parameters; callbacks and loops stay in the training checkpoint."""
    small = {
        name: {key: value for key, value in kept.items() if key not in ("callbacks", "loops")}
        for name, kept in bundle.host.items()
    }
    return host_text(small)


def _training_content(
    bundle: ModelBundle, interface: Any, graph: Any, metadata: dict[str, Any], arrays: dict[str, Any]
) -> dict[str, Any]:
    kept: dict[str, Tensor] = {}
    host = json.dumps(tree.encode({"host": bundle.host, "training": list(bundle.training)}, kept))
    content: dict[str, Any] = {
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": pytorch_lightning.__version__,
        "state_dict": {f"model.{name}": value for name, value in interface.state_dict().items()},
        "hparams_name": "kwargs",
        "hyper_parameters": {
            "config": interface.config,
            "graph_data": graph,
            "statistics": interface.statistics,
            "statistics_tendencies": None,
            "data_indices": interface.data_indices,
            "metadata": metadata,
            "supporting_arrays": arrays,
        },
        "callbacks": {},
        "optimizer_states": [],
        "lr_schedulers": [],
        **bundle.training,
        KEPT: {"json": host, "tensors": kept, "averaged_weights": bundle.averaged_weights},
    }
    Migrator().register_migrations(content)
    return content


def _restore_training(bundle: ModelBundle, content: Any, section: dict[str, Any]) -> None:
    kept = content.get(KEPT) if isinstance(content, dict) else None
    if kept is not None:
        decoded = tree.decode(json.loads(kept["json"]), kept["tensors"])
        bundle.host, names = decoded["host"], decoded["training"]
        bundle.averaged_weights = kept["averaged_weights"]
    else:
        bundle.host, names = read_host(section), list(TRAINING_STATE)
    if isinstance(content, dict):
        bundle.training = {name: content[name] for name in names if name in content}
