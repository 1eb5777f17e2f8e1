"""The model bundle: everything that makes a trained model, independent of any host framework."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import torch
from torch import Tensor

from .architecture import Architecture
from .errors import InvalidInputError
from .forcing import ForcingWindow
from .graph import LamGraph, join_graph
from .nn.clamping import Clamping
from .nn.networks import NETWORKS, LamNetwork, StateStatistics

TRAINING_STATE = ("epoch", "global_step", "optimizer_states", "lr_schedulers")
"""What Lightning checkpoints of either host call the state of a training run."""
STATISTICS = (
    "state_mean",
    "state_std",
    "state_diff_mean",
    "state_diff_std",
    "forcing_mean",
    "forcing_std",
    "static_mean",
    "static_std",
)


@dataclasses.dataclass(frozen=True)
class Variables:
    """Names, in the order of the columns, and units of the variables of each category."""

    state: tuple[str, ...]
    forcing: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    units: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"state": [*self.state], "forcing": [*self.forcing], "static": [*self.static], "units": self.units}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Variables:
        """Inverse of `to_dict`."""
        return cls(tuple(values["state"]), tuple(values["forcing"]), tuple(values["static"]), values["units"])

    def columns(self, window: ForcingWindow) -> dict[str, int]:
        """What an `Architecture` that reads these variables, the forcing in a window, says of its columns."""
        return {
            "num_state": len(self.state),
            "num_forcing": len(self.forcing) * window.length,
            "num_static": len(self.static),
        }


@dataclasses.dataclass(frozen=True)
class Fields:
    """What belongs to the place the model is for.

    Parameters
    ----------
    latitudes, longitudes : Tensor
        Degrees, shape ``(num_grid,)``.
    coordinates : Tensor
        x and y in the unit of the datastore's projection, shape ``(num_grid, 2)``.
    boundary : Tensor
        True where the state is prescribed, shape ``(num_grid,)``, bool.
    static : Tensor
        Static fields in physical units, shape ``(num_grid, num_static)``.
    mesh_latlons : tuple of Tensor
        Per mesh level latitude and longitude in degrees, shape ``(nodes, 2)``.
    """

    latitudes: Tensor
    longitudes: Tensor
    coordinates: Tensor
    boundary: Tensor
    static: Tensor
    mesh_latlons: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss a model is trained with: its name in neural-lam, and the weight of each state variable."""

    name: str
    weights: tuple[float, ...]


@dataclasses.dataclass
class ModelBundle:
    """A trained model.

    Parameters
    ----------
    architecture : Architecture
    weights : dict of Tensor
        Under the names of a neural-lam predictor, clamping buffers included.
    graph : LamGraph
    variables : Variables
    statistics : dict of Tensor
        One ``(n,)`` tensor for each of `STATISTICS`; the difference statistics are those of the standardised state.
    fields : Fields
    forcing_window : ForcingWindow
    clamping : Clamping
    time_step : datetime.timedelta
    loss : Loss
    provenance : list of dict
        What was made from what, oldest first.
    averaged_weights : dict of Tensor, optional
        An exponential or stochastic average of the weights.
    training : dict
        The entries of `TRAINING_STATE` that are known.
    host : dict
        What only one host understands, by host.
    """

    architecture: Architecture
    weights: dict[str, Tensor]
    graph: LamGraph
    variables: Variables
    statistics: dict[str, Tensor]
    fields: Fields
    forcing_window: ForcingWindow
    clamping: Clamping
    time_step: datetime.timedelta
    loss: Loss
    provenance: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    averaged_weights: dict[str, Tensor] | None = None
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    host: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = self._check()
        self.weights = {name: self.weights[name] for name in expected}  # optimizer state counts on the order
        if self.averaged_weights is not None:
            self.averaged_weights = {name: self.averaged_weights[name] for name in expected}

    def state_statistics(self) -> StateStatistics:
        """Statistics of the state in float32, as neural-lam casts them."""
        columns = {name: self.statistics[f"state_{name}"].float() for name in ("mean", "std", "diff_mean", "diff_std")}
        return StateStatistics(self.variables.state, **columns)

    def standardisation(self, category: str) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every column of a category; see the function of this name."""
        return standardisation(self.statistics, self.forcing_window, category)

    def network(self) -> LamNetwork:
        """A ready network on the CPU with the bundle's weights."""
        network = self.empty_network()
        network.load_state_dict(self.weights, strict=True)
        return network

    def empty_network(self) -> LamNetwork:
        """A network of this architecture on this graph, freshly initialised."""
        build = NETWORKS[self.architecture.model]
        return build(self.architecture, self.graph, self.state_statistics(), self.clamping)

    def reordered(self, order: Tensor) -> ModelBundle:
        """The same model with grid node ``order[i]`` in place i; ``order`` is ``(num_grid,)`` int64."""
        rows = ("latitudes", "longitudes", "coordinates", "boundary", "static")
        fields = dataclasses.replace(self.fields, **{name: getattr(self.fields, name)[order] for name in rows})
        return dataclasses.replace(self, graph=self.graph.reordered(order), fields=fields)

    def _check(self) -> dict[str, Tensor]:
        """Raise `InvalidInputError`, naming the part, unless all parts fit; return a state_dict of the right shapes."""
        a, v = self.architecture, self.variables
        window = self.forcing_window.length
        for name, have, need in (
            ("state variables", len(v.state), a.num_state),
            (f"forcing variables in a window of {window}", len(v.forcing) * window, a.num_forcing),
            ("static fields", len(v.static), a.num_static),
            ("loss weights", len(self.loss.weights), a.num_state),
            ("mesh coordinates", len(self.fields.mesh_latlons), self.graph.num_levels),
        ):
            if have != need:
                raise InvalidInputError(f"bundle: {name}: {have}, but the model has {need}")
        for name in STATISTICS:
            count = len(getattr(v, name.split("_")[0]))
            if name not in self.statistics or self.statistics[name].shape != (count,):
                raise InvalidInputError(f"bundle: statistics {name} must have {count} values")
        n = self.graph.num_grid
        for name, width in (("latitudes", ()), ("longitudes", ()), ("boundary", ()), ("coordinates", (2,))):
            _check_shape(f"fields {name}", getattr(self.fields, name), (n, *width))
        _check_shape("fields static", self.fields.static, (n, a.num_static))
        expected = self._skeleton().state_dict()
        for weights in (self.weights, self.averaged_weights):
            if weights is not None:
                check_weights(weights, expected)
        return expected

    def _skeleton(self) -> LamNetwork:
        """A network with the right parameters but no memory behind them, on a graph of one node per set."""
        graph = _one_node_graph(self.graph)
        statistics = self.state_statistics()
        with torch.device("meta"):
            return NETWORKS[self.architecture.model](self.architecture, graph, statistics, self.clamping)


def standardisation(statistics: dict[str, Tensor], window: ForcingWindow, category: str) -> tuple[Tensor, Tensor]:
    """What columns of a category are standardised with: ``(x - mean) / std``, in float32.

    Parameters
    ----------
    statistics : dict of Tensor
        Of a bundle.
    window : ForcingWindow
        Forcing columns are by variable, then by offset.
    category : {"state", "forcing", "static"}

    Returns
    -------
    mean, std : Tensor
        One value per column. Where a state or forcing variable doesn't vary, neural-lam 0.7.0 divides by the smallest
        relative step of float32.
    """
    mean, std = (statistics[f"{category}_{kind}"].float() for kind in ("mean", "std"))
    if category != "static":
        std = std.clamp(min=torch.finfo(torch.float32).eps)
    repeats = window.length if category == "forcing" else 1
    return mean.repeat_interleave(repeats), std.repeat_interleave(repeats)


def check_weights(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare names, shapes and dtypes of weights with those a network has.

    Raises
    ------
    InvalidInputError
        Naming every missing, unexpected or misshapen tensor.
    """
    problems = [f"{name} is missing" for name in expected if name not in weights]
    problems += [f"{name} is unexpected" for name in weights if name not in expected]
    for name in expected:
        if name not in weights:
            continue
        have, need = weights[name], expected[name]
        if have.shape != need.shape:
            problems.append(f"{name} has shape {tuple(have.shape)}, not {tuple(need.shape)}")
        elif have.is_floating_point() != need.is_floating_point():
            problems.append(f"{name} is of {have.dtype}, not {need.dtype}")
    if problems:
        raise InvalidInputError(f"weights don't fit the architecture: {'; '.join(problems)}")


def _one_node_graph(graph: LamGraph) -> LamGraph:
    one = torch.zeros(2, 1, dtype=torch.int64)
    edges = {name: (one, torch.ones(1, held.features.shape[1])) for name, held in graph.edge_sets().items()}
    return join_graph(1, tuple(torch.zeros(1, level.shape[1]) for level in graph.mesh_coordinates), edges)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise InvalidInputError(f"bundle: {name} has shape {tuple(tensor.shape)}, the model needs {shape}")
