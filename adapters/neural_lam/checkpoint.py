"""neural-lam checkpoints: to and from a `ModelBundle`.

A checkpoint holds weights, training state and the arguments of ``train_model``; the graph, statistics, static fields and
coordinates come from the datastore. Reading runs nothing that is in the file.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import OrderedDict
from pathlib import Path
from typing import Any

import neural_lam.config
import numpy as np
import torch
from neural_lam.loss_weighting import get_state_feature_weighting
from torch import Tensor

from neural_lam_anemoi import provenance, tree
from neural_lam_anemoi.architecture import MODELS, Architecture
from neural_lam_anemoi.bundle import TRAINING_STATE, Fields, Loss, ModelBundle, Variables
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.files import complete_or_absent
from neural_lam_anemoi.forcing import ForcingWindow
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.clamping import BUFFER_NAMES, Clamping
from neural_lam_anemoi.weights import Stub, find_stub_state, read_torch_file

from .arguments import checkpoint_content
from .predictors import load_graph

KIND = "neural-lam checkpoint"
PREFIX = "forecaster.predictor."
CONFIG_TYPES = (
    "NeuralLAMConfig",
    "DatastoreSelection",
    "TrainingConfig",
    "ManualStateFeatureWeighting",
    "UniformFeatureWeighting",
    "OutputClamping",
)
ARGUMENTS = {
    "model": str,
    "graph": str,
    "loss": str,
    "mesh_aggr": str,
    "hidden_dim": int,
    "hidden_layers": int,
    "processor_layers": int,
    "num_past_forcing_steps": int,
    "num_future_forcing_steps": int,
    "output_std": bool,
}
"""Training arguments that decide what the network is, or is trained with."""
ARGUMENT_DEFAULTS = {"loss": "wmse"}


def is_checkpoint(content: Any) -> bool:
    """Whether a file's content looks like a neural-lam checkpoint."""
    return isinstance(content, dict) and "state_dict" in content and "args" in content.get("hyper_parameters", {})


def read_checkpoint(path: Path, config_path: Path, graph_name: str | None = None, content: Any = None) -> ModelBundle:
    """Read a neural-lam 0.7 checkpoint with the datastore and graph it was trained on.

    Parameters
    ----------
    path : Path
        The checkpoint.
    config_path : Path
        neural-lam's configuration file.
    graph_name : str, optional
        Name of the graph, if not the one the checkpoint was trained with.
    content : object, optional
        What `read_torch_file` gave for ``path``, if it was read already.

    Returns
    -------
    ModelBundle
        With all training state and arguments.

    Raises
    ------
    InvalidInputError
        The file is damaged or of another kind, or its widths, clamping limits or graph don't fit the datastore.
    """
    content = read_torch_file(path) if content is None else content
    if not is_checkpoint(content):
        raise InvalidInputError(f"{path}: not a checkpoint of neural-lam 0.7 (no state_dict with training arguments)")
    arguments = _arguments(path, content["hyper_parameters"]["args"])
    config, datastore = load_datastore(config_path)
    weights = _predictor_weights(path, content["state_dict"])
    try:
        bundle = _assemble(arguments, weights, config, datastore, graph_name)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path} with {config_path}: {error}") from None
    bundle.training = {name: content[name] for name in TRAINING_STATE if name in content}
    rest = {name: value for name, value in content.items() if name not in ("state_dict", *TRAINING_STATE)}
    bundle.host = {"neural_lam": rest}
    bundle.provenance = [provenance.record(path, KIND)]
    return bundle


def write_checkpoint(bundle: ModelBundle, path: Path, force: bool = False, graph_name: str | None = None) -> None:
    """Write a checkpoint that stock neural-lam 0.7 loads.

    Parameters
    ----------
    bundle : ModelBundle
    path : Path
    force : bool
        Replace an existing file.
    graph_name : str, optional
        For a model that wasn't trained in neural-lam: what its arguments call the graph.

    Raises
    ------
    InvalidInputError
        If ``path`` exists and ``force`` isn't given, or nothing of neural-lam came with the bundle.
    """
    kept = bundle.host.get("neural_lam")
    if kept is None:
        raise InvalidInputError(
            "the source holds nothing of neural-lam: neither a checkpoint nor a dataset of its came before it"
        )
    if "args" not in kept["hyper_parameters"]:
        kept = checkpoint_content(bundle, kept["hyper_parameters"]["config"], graph_name)
    tensors: dict[str, Tensor] = {}
    content = tree.decode(tree.encode({**bundle.training, **kept}, tensors), tensors, _construct)
    content["state_dict"] = OrderedDict((f"{PREFIX}{name}", tensor) for name, tensor in bundle.weights.items())
    content.setdefault("optimizer_states", [])
    content.setdefault("lr_schedulers", [])
    with complete_or_absent(path, force) as made:
        torch.save(content, made)


def load_datastore(config_path: Path) -> tuple[Any, Any]:
    """neural-lam's configuration and datastore.

    Raises
    ------
    InvalidInputError
        If either can't be loaded.
    """
    if not config_path.is_file():
        raise InvalidInputError(f"{config_path}: no such file; give neural-lam's configuration with --config_path")
    try:
        return neural_lam.config.load_config_and_datastore(str(config_path))
    except Exception as error:  # a host's own errors are of any type
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInputError(f"{config_path}: neural-lam can't load it ({reason})") from error


def check_datastore(bundle: ModelBundle, config_path: Path) -> None:
    """Compare a bundle's variables and grid with a datastore's.

    Raises
    ------
    InvalidInputError
        Naming what differs: a variable, its place, the number of grid nodes, or a statistic.
    """
    _, datastore = load_datastore(config_path)
    variables = read_variables(datastore)
    for category in ("state", "forcing", "static"):
        have, need = getattr(variables, category), getattr(bundle.variables, category)
        if have != need:
            what = "in another order" if sorted(have) == sorted(need) else "other ones"
            raise InvalidInputError(
                f"{config_path}: {category} variables are {', '.join(have)}; the model has {what}: {', '.join(need)}"
            )
    if datastore.num_grid_points != bundle.graph.num_grid:
        counts = f"{datastore.num_grid_points} grid nodes, the model {bundle.graph.num_grid}"
        raise InvalidInputError(f"{config_path}: the datastore has {counts}")
    for name, values in read_statistics(datastore, variables).items():
        if not torch.allclose(values.double(), bundle.statistics[name].double(), rtol=1e-6, atol=0, equal_nan=True):
            have, need = values.tolist(), bundle.statistics[name].tolist()
            raise InvalidInputError(f"{config_path}: statistics {name} are {have}, the model was trained with {need}")


def datastore_rows(bundle: ModelBundle, datastore: Any) -> Tensor:
    """For each grid node of a bundle the place it has in a datastore: ``(num_grid,)`` int64.

    Raises
    ------
    InvalidInputError
        The grids don't consist of the same nodes.
    """
    return matching_rows(bundle.fields.coordinates, grid_coordinates(datastore))


def matching_rows(ours: Tensor, theirs: Tensor) -> Tensor:
    """For each place in ``ours`` where it stands in ``theirs``: ``(num_grid,)`` int64; both are ``(num_grid, 2)``.

    Raises
    ------
    InvalidInputError
        They aren't the same places.
    """
    orders = [np.lexsort(places.numpy().T) for places in (ours, theirs)]
    if ours.shape != theirs.shape or not torch.equal(ours[orders[0]], theirs[orders[1]]):
        raise InvalidInputError("the grid nodes of the datastore aren't those of the model")
    rows = torch.empty(len(ours), dtype=torch.int64)
    rows[orders[0]] = torch.from_numpy(orders[1])
    return rows


def _arguments(path: Path, namespace: Any) -> dict[str, Any]:
    arguments = ARGUMENT_DEFAULTS | find_stub_state(namespace)
    for name, kind in ARGUMENTS.items():
        if not isinstance(arguments.get(name), kind):
            have = repr(arguments[name]) if name in arguments else "missing"
            raise InvalidInputError(f"{path}: training argument {name} is {have}; it must be of type {kind.__name__}")
    return arguments


def _predictor_weights(path: Path, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state_dict.items()):
        raise InvalidInputError(f"{path}: state_dict holds something else than named tensors")
    foreign = [name for name in state_dict if not name.startswith(PREFIX)]
    if foreign:
        hint = "was it written by a neural-lam before 0.7?" if "grid_embedder.0.weight" in foreign else "unknown"
        raise InvalidInputError(f"{path}: weight {foreign[0]} is not under {PREFIX}: {hint}")
    return {name.removeprefix(PREFIX): tensor.detach() for name, tensor in state_dict.items()}


def _assemble(
    arguments: dict[str, Any], weights: dict[str, Tensor], config: Any, datastore: Any, graph_name: str | None
) -> ModelBundle:
    variables = read_variables(datastore)
    window = ForcingWindow(arguments["num_past_forcing_steps"], arguments["num_future_forcing_steps"])
    architecture = _architecture(arguments, variables, window)
    check_widths(weights, variables, window, architecture)
    statistics = read_statistics(datastore, variables)
    graph = load_graph(datastore, graph_name or arguments["graph"], datastore.num_grid_points)
    bundle = ModelBundle(
        architecture=architecture,
        weights=weights,
        graph=graph,
        variables=variables,
        statistics=statistics,
        fields=read_fields(datastore, graph, variables),
        forcing_window=window,
        clamping=read_clamping(config),
        time_step=datastore.step_length,
        loss=read_loss(config, datastore, arguments["loss"]),
    )
    _check_clamping(bundle)
    return bundle


def _architecture(arguments: dict[str, Any], variables: Variables, window: ForcingWindow) -> Architecture:
    model = arguments["model"]
    if "efm" in model:
        raise InvalidInputError(
            f"{model} is a Graph-EFM model, which isn't supported; supported are {', '.join(MODELS)}"
        )
    known = [field.name for field in dataclasses.fields(Architecture) if field.name in arguments]
    return Architecture.from_dict(variables.columns(window) | {name: arguments[name] for name in known})


def check_widths(
    weights: dict[str, Tensor], variables: Variables, window: ForcingWindow, architecture: Architecture
) -> None:
    """Compare the checkpoint's input and output widths with the datastore's variables.

    Raises
    ------
    InvalidInputError
        Saying how many columns the weights have and which variables make up those of the datastore.
    """
    first = weights.get("grid_embedder.0.weight")
    if first is not None and first.shape[1] != architecture.grid_input_dim:
        raise InvalidInputError(
            f"grid_embedder reads {first.shape[1]} columns, but the datastore gives {architecture.grid_input_dim}: "
            f"2 x {len(variables.state)} state ({', '.join(variables.state)}), {window.length} x "
            f"{len(variables.forcing)} forcing ({', '.join(variables.forcing)}), {len(variables.static)} static "
            f"({', '.join(variables.static)})"
        )
    last = weights.get(f"output_map.{2 * architecture.hidden_layers}.weight")
    if last is not None and last.shape[0] != architecture.grid_output_dim:
        raise InvalidInputError(
            f"output_map writes {last.shape[0]} columns, but the datastore has {len(variables.state)} state variables "
            f"({', '.join(variables.state)}){', with a spread each' if architecture.output_std else ''}"
        )


def _check_clamping(bundle: ModelBundle) -> None:
    statistics = bundle.state_statistics()
    expected = bundle.clamping.buffers(bundle.variables.state, statistics.mean, statistics.std)
    for name in BUFFER_NAMES:
        have = bundle.weights[name]
        if not torch.allclose(have.double(), expected[name].double(), rtol=1e-5, atol=1e-6):
            raise InvalidInputError(
                f"{name} is {have.tolist()} in the checkpoint, but output clamping and statistics of the datastore "
                f"give {expected[name].tolist()}: the variables are in another order, or it is another dataset"
            )


def read_clamping(config: Any) -> Clamping:
    """Limits of the state in neural-lam's configuration."""
    limits = config.training.output_clamping
    return Clamping(dict(limits.lower), dict(limits.upper))


def read_loss(config: Any, datastore: Any, name: str = ARGUMENT_DEFAULTS["loss"]) -> Loss:
    """The loss of this name with the variables' weights in neural-lam's configuration."""
    return Loss(name, tuple(get_state_feature_weighting(config, datastore)))


def read_variables(datastore: Any) -> Variables:
    """Names and units of a datastore's variables."""
    names: dict[str, tuple[str, ...]] = {}
    units: dict[str, str] = {}
    for category in ("state", "forcing", "static"):
        absent = category == "static" and datastore.get_dataarray("static", split=None) is None
        names[category] = () if absent else tuple(datastore.get_vars_names(category))
        if names[category]:
            units |= dict(zip(names[category], datastore.get_vars_units(category), strict=True))
    return Variables(names["state"], names["forcing"], names["static"], units)


def read_statistics(datastore: Any, variables: Variables) -> dict[str, Tensor]:
    """Standardisation of every variable and one-step differences of the state, in the datastore's precision."""
    statistics: dict[str, Tensor] = {}
    for category in ("state", "forcing", "static"):
        columns = {f"{category}_{kind}": f"{category}_{kind}" for kind in ("mean", "std")}
        if category == "state":
            columns |= {f"state_diff_{kind}": f"state_diff_{kind}_standardized" for kind in ("mean", "std")}
        if getattr(variables, category):
            values = datastore.get_standardization_dataarray(category)
            statistics |= {name: torch.tensor(values[column].values) for name, column in columns.items()}
        else:
            statistics |= {name: torch.empty(0) for name in columns}
    return statistics


def grid_coordinates(datastore: Any) -> Tensor:
    """x and y of a datastore's grid nodes in the unit of its projection, ``(num_grid, 2)`` float64."""
    return torch.tensor(np.asarray(datastore.get_xy("state", stacked=True), dtype=np.float64))


def read_fields(datastore: Any, graph: LamGraph, variables: Variables) -> Fields:
    """Coordinates, boundary and static fields of a datastore."""
    lon_lat = np.asarray(datastore.get_lat_lon("state"), dtype=np.float64)
    xy = grid_coordinates(datastore)
    static = torch.empty(graph.num_grid, 0)
    if variables.static:
        static = torch.tensor(datastore.get_dataarray("static", split=None).values)
    return Fields(
        latitudes=torch.tensor(lon_lat[:, 1]),
        longitudes=torch.tensor(lon_lat[:, 0]),
        coordinates=xy,
        boundary=torch.tensor(datastore.boundary_mask.values == 1),
        static=static,
        mesh_latlons=tuple(
            _mesh_latlon(datastore, level, graph.mesh_scaling, xy.numpy()) for level in graph.mesh_coordinates
        ),
    )


def _mesh_latlon(datastore: Any, level: Tensor, scaling: float, grid_xy: np.ndarray) -> Tensor:
    import cartopy.crs

    xy = level[:, :2].double().numpy()
    if scaling == 1.0:  # legacy: stored divided by the largest absolute grid coordinate
        xy = xy * np.abs(grid_xy).max()
    lon_lat = cartopy.crs.PlateCarree().transform_points(datastore.coords_projection, xy[:, 0], xy[:, 1])
    return torch.tensor(np.stack([lon_lat[:, 1], lon_lat[:, 0]], axis=1))


def _construct(stub: Stub) -> Any:
    """The objects a neural-lam checkpoint consists of besides containers; nothing else is made."""
    state = find_stub_state(stub)
    if stub.stub_name == "argparse.Namespace":
        return argparse.Namespace(**state)
    module, name = stub.stub_name.rsplit(".", 1)
    if module == "neural_lam.config" and name in CONFIG_TYPES:
        made = object.__new__(getattr(neural_lam.config, name))
        made.__dict__.update(state)
        return made
    raise InvalidInputError(f"the source holds an object of type {stub.stub_name}, which no neural-lam checkpoint has")
