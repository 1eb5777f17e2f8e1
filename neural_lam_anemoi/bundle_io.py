"""Bundles on disk: a directory of JSON and safetensors, specified in docs/bundle.md.

The manifest is also what Anemoi checkpoints carry in their configuration: `manifest` and `from_manifest` stand alone.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from . import tree
from .architecture import Architecture
from .bundle import STATISTICS, Fields, Loss, ModelBundle, Variables
from .errors import InvalidInputError
from .files import complete_or_absent
from .forcing import ForcingWindow
from .graph import LamGraph, edge_ends, join_graph
from .nn.clamping import Clamping

FORMAT = "neural-lam-anemoi bundle"
FORMAT_VERSION = 1
MANIFEST = "bundle.json"


def save_bundle(bundle: ModelBundle, directory: Path, force: bool = False) -> None:
    """Write ``bundle`` as a new directory.

    Raises
    ------
    InvalidInputError
        If the directory exists and ``force`` isn't given.
    """
    extra: dict[str, Tensor] = {}
    content = manifest(bundle)
    content["training"] = tree.encode(bundle.training, extra)
    content["host"] = tree.encode(bundle.host, extra)
    groups = {"weights": bundle.weights, "graph": graph_tensors(bundle.graph), "fields": _field_tensors(bundle.fields)}
    if bundle.averaged_weights is not None:
        groups["averaged_weights"] = bundle.averaged_weights
    if extra:
        groups["training"] = extra
    content["sha256"] = {name: {key: _digest(t) for key, t in group.items()} for name, group in groups.items()}
    with complete_or_absent(directory, force, directory=True) as made:
        for name, group in groups.items():
            own = {key: tensor.detach().contiguous().clone() for key, tensor in group.items()}
            safetensors.torch.save_file(own, made / f"{name}.safetensors")
        (made / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def load_bundle(directory: Path) -> ModelBundle:
    """Read what `save_bundle` wrote.

    Raises
    ------
    InvalidInputError
        The directory is no bundle or a newer one, a file is missing or damaged, or its parts don't fit together.
    """
    content = _read_manifest(directory / MANIFEST)
    groups = {name: _read_group(directory / f"{name}.safetensors", sums) for name, sums in content["sha256"].items()}
    extra = groups.get("training", {})
    try:
        return from_manifest(
            content,
            weights=groups["weights"],
            graph=graph_from_tensors(groups["graph"], content["graph"]),
            fields=_fields_from_tensors(groups["fields"]),
            averaged_weights=groups.get("averaged_weights"),
            training=tree.decode(content["training"], extra),
            host=tree.decode(content["host"], extra),
        )
    except KeyError as error:
        raise InvalidInputError(f"{directory}: {error} is missing from the bundle; write it anew") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{directory}: {error}") from None


def manifest(bundle: ModelBundle) -> dict[str, Any]:
    """Everything about ``bundle`` but weights, graph, fields, training state and what is a host's, as JSON values."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "architecture": bundle.architecture.to_dict(),
        **data_manifest(
            bundle.variables,
            bundle.statistics,
            bundle.forcing_window,
            bundle.clamping,
            bundle.time_step,
            bundle.loss,
        ),
        "graph": {
            "num_grid": bundle.graph.num_grid,
            "num_mesh": list(bundle.graph.num_mesh),
            "mesh_scaling": bundle.graph.mesh_scaling,
        },
        "provenance": bundle.provenance,
    }


def data_manifest(
    variables: Variables,
    statistics: dict[str, Tensor],
    window: ForcingWindow,
    clamping: Clamping,
    time_step: datetime.timedelta,
    loss: Loss,
) -> dict[str, Any]:
    """What of a `manifest` the data decide, before there is a network."""
    return {
        "variables": variables.to_dict(),
        "statistics": {name: _numbers(statistics[name]) for name in STATISTICS},
        "forcing_window": window.to_dict(),
        "clamping": dataclasses.asdict(clamping),
        "time_step_seconds": time_step.total_seconds(),
        "loss": {"name": loss.name, "weights": list(loss.weights)},
    }


def from_manifest(
    content: dict[str, Any], *, weights: dict[str, Tensor], graph: LamGraph, fields: Fields, **optional: Any
) -> ModelBundle:
    """A bundle from a `manifest` and the parts it leaves out.

    Raises
    ------
    InvalidInputError
        If the manifest is incomplete or the parts don't fit together.
    """
    try:
        parts = _parts(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"the manifest is damaged or incomplete ({type(error).__name__}: {error})") from None
    return ModelBundle(weights=weights, graph=graph, fields=fields, **parts, **optional)


def _parts(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "architecture": Architecture.from_dict(content["architecture"]),
        "variables": Variables.from_dict(content["variables"]),
        "statistics": statistics_from_manifest(content),
        "forcing_window": ForcingWindow(**content["forcing_window"]),
        "clamping": Clamping(**content["clamping"]),
        "time_step": datetime.timedelta(seconds=content["time_step_seconds"]),
        "loss": Loss(content["loss"]["name"], tuple(content["loss"]["weights"])),
        "provenance": list(content["provenance"]),
    }


def statistics_from_manifest(content: dict[str, Any]) -> dict[str, Tensor]:
    """The statistics in a `manifest`, in the precision they were written with."""
    return {
        name: torch.tensor(numbers["values"], dtype=getattr(torch, numbers["dtype"]))
        for name, numbers in content["statistics"].items()
    }


def graph_tensors(graph: LamGraph) -> dict[str, Tensor]:
    """The tensors of a graph by name: ``mesh_coordinates.0``, ``g2m.index``, ``g2m.features``, …."""
    tensors = {f"mesh_coordinates.{level}": values for level, values in enumerate(graph.mesh_coordinates)}
    for name, edges in graph.edge_sets().items():
        tensors |= {f"{name}.index": edges.index, f"{name}.features": edges.features}
    return tensors


def graph_from_tensors(tensors: dict[str, Tensor], sizes: dict[str, Any]) -> LamGraph:
    """Inverse of `graph_tensors`; ``sizes`` has ``num_grid`` and ``mesh_scaling``."""
    levels = sum(name.startswith("mesh_coordinates.") for name in tensors)
    mesh = tuple(tensors[f"mesh_coordinates.{level}"] for level in range(levels))
    edges = {name: (tensors[f"{name}.index"], tensors[f"{name}.features"]) for name in edge_ends(levels)}
    return join_graph(sizes["num_grid"], mesh, edges, sizes["mesh_scaling"])


def _field_tensors(fields: Fields) -> dict[str, Tensor]:
    named = {
        field.name: getattr(fields, field.name) for field in dataclasses.fields(fields) if field.name != "mesh_latlons"
    }
    return named | {f"mesh_latlons.{level}": values for level, values in enumerate(fields.mesh_latlons)}


def _fields_from_tensors(tensors: dict[str, Tensor]) -> Fields:
    levels = sum(name.startswith("mesh_latlons.") for name in tensors)
    mesh = tuple(tensors[f"mesh_latlons.{level}"] for level in range(levels))
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("mesh_latlons.")}
    return Fields(**rest, mesh_latlons=mesh)


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InvalidInputError(f"{path.parent}: no bundle, {MANIFEST} is missing")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InvalidInputError(f"{path}: not valid JSON; write the bundle anew") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidInputError(f"{path}: not the manifest of a {FORMAT}")
    if content.get("format_version") != FORMAT_VERSION:
        version = content.get("format_version")
        raise InvalidInputError(
            f"{path}: bundle format {version}; this version reads {FORMAT_VERSION}, get a newer one"
        )
    return content


def _read_group(path: Path, sums: dict[str, str]) -> dict[str, Tensor]:
    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(
            f"{path}: can't be read ({str(error).splitlines()[0]}); write the bundle anew"
        ) from None
    if set(tensors) != set(sums):
        odd = sorted(set(tensors) ^ set(sums))
        raise InvalidInputError(f"{path}: tensors don't match the manifest: {', '.join(odd)}")
    for name, tensor in tensors.items():
        if _digest(tensor) != sums[name]:
            raise InvalidInputError(f"{path}: {name} is damaged, its checksum is wrong")
    return tensors


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()


def _numbers(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "values": tensor.tolist()}
