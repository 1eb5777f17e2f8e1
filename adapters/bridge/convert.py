"""From any checkpoint to any other, through the bundle."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neural_lam_anemoi.bundle import ModelBundle
from neural_lam_anemoi.bundle_io import MANIFEST, load_bundle, save_bundle
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.files import complete_or_absent, refuse_existing
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.graph_io import write_graph_directory
from neural_lam_anemoi.sharding.cuts import spatial_order
from neural_lam_anemoi.weights import read_torch_file

TARGETS = ("anemoi", "neural-lam", "bundle")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What to convert and how; see ``neural-lam-anemoi convert --help``."""

    source: Path
    target: str
    output: Path
    config_path: Path | None = None
    graph: str | None = None
    verify: bool = False
    force: bool = False
    order: str = "datastore"
    write_graph: Path | None = None


def convert(job: Conversion) -> list[str]:
    """Convert, and verify if asked.

    Returns
    -------
    list of str
        Lines that tell a person what was done.

    Raises
    ------
    InvalidInputError
        The source can't be read, the output exists, something is missing or doesn't fit, or verification failed. The
        output isn't there then.
    """
    for output in filter(None, (job.output, job.write_graph)):
        refuse_existing(output, job.force)
    if job.verify and job.config_path is None:
        raise InvalidInputError("--verify needs neural-lam's datastore for a sample; give --config_path")
    bundle = read_any(job.source, job.config_path, job.graph)
    if job.order == "rcb":
        if job.target == "neural-lam":
            raise InvalidInputError("--order rcb: a neural-lam checkpoint has no grid, its order is the datastore's")
        bundle = bundle.reordered(spatial_order(bundle.fields.coordinates))
    lines = [f"{job.source}: {describe(bundle)}"]
    if job.verify:
        lines += _verified(bundle, job)
    graph = _datastore_graph(bundle, job) if job.write_graph else None
    name = job.graph or (job.write_graph.name if job.write_graph else None)
    write_any(bundle, job.target, job.output, job.force, name)
    lines.append(f"{job.output}: written for {job.target}")
    if job.write_graph and graph:
        with complete_or_absent(job.write_graph, job.force, directory=True) as made:
            write_graph_directory(graph, made)
        lines.append(f"{job.write_graph}: the graph, for neural-lam")
    return lines


def read_any(source: Path, config_path: Path | None = None, graph: str | None = None) -> ModelBundle:
    """Read a neural-lam checkpoint, an Anemoi training or inference checkpoint, or a bundle.

    Parameters
    ----------
    source : Path
    config_path : Path, optional
        neural-lam's configuration: needed for its checkpoints; for others the datastore is compared with the source.
    graph : str, optional
        Name of the graph, if not the one that the neural-lam checkpoint names.

    Raises
    ------
    InvalidInputError
        As the readers; or the datastore's variables differ from the source's.
    """
    if (source / MANIFEST).exists() or source.is_dir():
        bundle = load_bundle(source)
    else:
        content = read_torch_file(source)
        if _is_neural_lam(content):
            return _read_neural_lam(source, content, config_path, graph)
        bundle = _read_anemoi(source, content)
    if config_path is not None:
        from neural_lam_anemoi.adapters.neural_lam.checkpoint import check_datastore

        check_datastore(bundle, config_path)
    return bundle


def write_any(
    bundle: ModelBundle, target: str, output: Path, force: bool = False, graph_name: str | None = None
) -> None:
    """Write ``bundle`` as one of `TARGETS`: a directory for anemoi and bundle, a file for neural-lam.

    ``graph_name`` is what a neural-lam checkpoint calls its graph if the model was born in Anemoi.
    """
    if target == "bundle":
        save_bundle(bundle, output, force)
    elif target == "anemoi":
        from neural_lam_anemoi.adapters.anemoi.checkpoint import write_checkpoints

        write_checkpoints(bundle, output, force)
    else:
        from neural_lam_anemoi.adapters.neural_lam.checkpoint import write_checkpoint

        write_checkpoint(bundle, output, force, graph_name)


def _datastore_graph(bundle: ModelBundle, job: Conversion) -> LamGraph:
    """The graph with grid nodes in the datastore's order."""
    graph, places = bundle.graph, bundle.fields.coordinates
    if job.config_path is not None:
        from neural_lam_anemoi.adapters.neural_lam.checkpoint import datastore_rows, load_datastore

        return graph.reordered(torch.argsort(datastore_rows(bundle, load_datastore(job.config_path)[1])))
    in_place = np.arange(len(places))
    if not any(np.array_equal(np.lexsort(keys.numpy()), in_place) for keys in (places.T, places.flip(1).T)):
        raise InvalidInputError(
            f"{job.source}: grid nodes are neither in rows nor in columns; give --config_path for the datastore's order"
        )
    return graph


def describe(bundle: ModelBundle) -> str:
    """One line about a model."""
    a, graph = bundle.architecture, bundle.graph
    mesh = "+".join(str(count) for count in graph.num_mesh)
    parameters = sum(tensor.numel() for tensor in bundle.weights.values())
    return (
        f"{a.model}, {a.processor_layers} layers of {a.hidden_dim}, {parameters:,} weights; "
        f"{graph.num_grid} grid and {mesh} mesh nodes; {', '.join(bundle.variables.state)} every {bundle.time_step}"
    )


def _verified(bundle: ModelBundle, job: Conversion) -> list[str]:
    """Write to a temporary place, read that back, and compare its forecast with neural-lam's own."""
    import tempfile

    from .verify import compare

    assert job.config_path is not None
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "written"
        write_any(bundle, job.target, written)
        again = read_any(
            written / "inference-last.ckpt" if job.target == "anemoi" else written, job.config_path, job.graph
        )
    comparison = compare(bundle, again, job.config_path)
    comparison.require_agreement()
    return comparison.lines()


def _is_neural_lam(content: Any) -> bool:
    hyper_parameters = content.get("hyper_parameters") if isinstance(content, dict) else None
    return isinstance(hyper_parameters, dict) and "args" in hyper_parameters


def _read_neural_lam(source: Path, content: Any, config_path: Path | None, graph: str | None) -> ModelBundle:
    from neural_lam_anemoi.adapters.neural_lam.checkpoint import read_checkpoint

    if config_path is None:
        raise InvalidInputError(
            f"{source}: a neural-lam checkpoint; its graph and statistics are in the datastore, give --config_path"
        )
    return read_checkpoint(source, config_path, graph, content)


def _read_anemoi(source: Path, content: Any) -> ModelBundle:
    from neural_lam_anemoi.adapters.anemoi.checkpoint import (
        is_inference_checkpoint,
        is_training_checkpoint,
        read_checkpoint,
    )

    if not (is_training_checkpoint(content) or is_inference_checkpoint(content)):
        raise InvalidInputError(f"{source}: a torch file, but no checkpoint of neural-lam 0.7 or of Anemoi")
    return read_checkpoint(source, content)
