"""Which network, how wide and how deep: everything that decides the names and shapes of the weights."""

from __future__ import annotations

import dataclasses
from typing import Any

from .errors import InvalidInputError

MODELS = ("graph_lam", "hi_lam", "hi_lam_parallel")
GNN_TYPES = ("InteractionNet", "PropagationNet")
AGGREGATIONS = ("sum", "mean")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A neural-lam network without its weights and its graph.

    Parameters
    ----------
    model : {"graph_lam", "hi_lam", "hi_lam_parallel"}
        The network.
    num_state, num_forcing, num_static : int
        Columns of one state, of the *windowed* forcing (variables times window length) and of the static fields.
    hidden_dim, hidden_layers, processor_layers : int
        Width of every hidden representation, hidden layers of every MLP, layers of the processor.
    mesh_aggr : {"sum", "mean"}
        Aggregation of graph_lam's processor. The hierarchical networks ignore it, as neural-lam does.
    output_std : bool
        Whether a standard deviation is predicted beside every state variable.
    g2m_gnn_type, m2g_gnn_type, mesh_up_gnn_type, mesh_down_gnn_type : {"InteractionNet", "PropagationNet"}
        Kind of message passing on the edge sets where neural-lam lets one choose.

    Raises
    ------
    InvalidInputError
        If a value is none of those that neural-lam knows.
    """

    model: str
    num_state: int
    num_forcing: int
    num_static: int
    hidden_dim: int = 64
    hidden_layers: int = 1
    processor_layers: int = 4
    mesh_aggr: str = "sum"
    output_std: bool = False
    g2m_gnn_type: str = "InteractionNet"
    m2g_gnn_type: str = "InteractionNet"
    mesh_up_gnn_type: str = "InteractionNet"
    mesh_down_gnn_type: str = "InteractionNet"

    def __post_init__(self) -> None:
        self._require("model", MODELS)
        self._require("mesh_aggr", AGGREGATIONS)
        for name in ("g2m_gnn_type", "m2g_gnn_type", "mesh_up_gnn_type", "mesh_down_gnn_type"):
            self._require(name, GNN_TYPES)
        least = {"num_state": 1, "num_forcing": 0, "num_static": 0, "hidden_dim": 1, "hidden_layers": 0}
        least["processor_layers"] = 0 if self.hierarchical else 1
        for name, minimum in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise InvalidInputError(
                    f"architecture: {name} is {value!r}; {self.model} needs an integer >= {minimum}"
                )
        if not isinstance(self.output_std, bool):
            raise InvalidInputError(f"architecture: output_std is {self.output_std!r}; use true or false")

    def _require(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise InvalidInputError(f"architecture: {name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}")

    @property
    def hierarchical(self) -> bool:
        """Whether the network needs a mesh of several levels."""
        return self.model != "graph_lam"

    @property
    def grid_input_dim(self) -> int:
        """Columns that the grid embedder reads: two states, the windowed forcing and the static fields."""
        return 2 * self.num_state + self.num_forcing + self.num_static

    @property
    def grid_output_dim(self) -> int:
        """Columns that the network writes: a tendency and, with ``output_std``, a spread for each state variable."""
        return (2 if self.output_std else 1) * self.num_state

    @property
    def mlp_widths(self) -> list[int]:
        """Widths after the input of every MLP."""
        return [self.hidden_dim] * (self.hidden_layers + 1)

    def check_levels(self, levels: int) -> None:
        """Raise `InvalidInputError` unless the network runs on a mesh of so many levels."""
        if self.hierarchical and levels == 1:
            raise InvalidInputError(
                f"{self.model} needs a mesh of several levels, the graph has one; make one of archetype hierarchical"
            )
        if not self.hierarchical and levels > 1:
            raise InvalidInputError(
                f"{self.model} does not use a hierarchical mesh graph, this has {levels} levels; use hi_lam or another"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, fit for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Architecture:
        """Inverse of `to_dict`.

        Raises
        ------
        InvalidInputError
            On an unknown or missing key, by name.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise InvalidInputError(f"architecture: unknown key {unknown[0]!r}; known are {', '.join(fields)}")
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise InvalidInputError(f"architecture: {missing[0]!r} is missing")
        return cls(**values)
