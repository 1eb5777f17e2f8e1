"""Pairs of the same network: neural-lam's own class and ours, with the same random weights, and inputs for both."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import neural_lam.models
import torch
from neural_lam.models import ARForecaster, ForecasterModule
from torch import Tensor

import neural_lam_anemoi
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore

CLASSES = {"graph_lam": "GraphLAM", "hi_lam": "HiLAM", "hi_lam_parallel": "HiLAMParallel"}
PROPAGATION = {"g2m_gnn_type": "PropagationNet", "m2g_gnn_type": "PropagationNet"}
PROPAGATION_ALL = PROPAGATION | {"mesh_up_gnn_type": "PropagationNet", "mesh_down_gnn_type": "PropagationNet"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, a graph, options that differ from the defaults, and a datastore without some categories."""

    model: str
    graph: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        options = "-".join(f"{name}={value}" for name, value in self.options.items())
        return "-".join(filter(None, (self.model, self.graph, options, *(f"no-{name}" for name in self.without))))


CASES = [
    Case("graph_lam", "flat"),
    Case("graph_lam", "multiscale", PROPAGATION | {"mesh_aggr": "mean", "output_std": True}),
    Case("graph_lam", "flat", {"hidden_layers": 2}, without=("static", "forcing")),
    Case("hi_lam", "hierarchical"),
    Case("hi_lam", "hierarchical", PROPAGATION_ALL),
    Case("hi_lam", "hierarchical", {"processor_layers": 0}),
    Case("hi_lam_parallel", "hierarchical", {"output_std": True}),
    Case("hi_lam_parallel", "hierarchical", {"processor_layers": 0}),
]
MORE_CASES = [
    Case("graph_lam", "multiscale"),
    Case("graph_lam", "flat", {"hidden_layers": 0}),
    Case("graph_lam", "flat", {"num_past_forcing_steps": 2, "num_future_forcing_steps": 0}),
    Case("hi_lam", "hierarchical", {"hidden_layers": 2, "output_std": True}),
    Case("hi_lam", "hierarchical", {}, without=("static",)),
    Case("hi_lam_parallel", "hierarchical", PROPAGATION_ALL),
    Case("hi_lam_parallel", "hierarchical", {"hidden_layers": 2}, without=("forcing",)),
]


class Reduced:
    """A datastore that has lost categories of variables."""

    def __init__(self, datastore: Any, without: tuple[str, ...]) -> None:
        self._datastore, self._without = datastore, without

    def __getattr__(self, name: str) -> Any:
        return getattr(self._datastore, name)

    def __deepcopy__(self, memo: Any) -> Reduced:
        return self

    def get_dataarray(self, category: str, split: str | None, standardize: bool = False) -> Any:
        return None if category in self._without else self._datastore.get_dataarray(category, split, standardize)

    def get_num_data_vars(self, category: str) -> int:
        return 0 if category in self._without else self._datastore.get_num_data_vars(category)


@dataclasses.dataclass
class Pair:
    """neural-lam's module and ours, and a batch for either."""

    own: ForecasterModule
    ours: ForecasterModule
    batch: tuple[Tensor, Tensor, Tensor, Tensor]

    def to(self, dtype: torch.dtype) -> Pair:
        """The same in another precision."""
        batch = tuple(x.to(dtype) if x.is_floating_point() else x for x in self.batch)
        return Pair(copy.deepcopy(self.own).to(dtype), copy.deepcopy(self.ours).to(dtype), batch)  # type: ignore


def build_predictor(case: Case, datastore: Any, config: Any, package: Any) -> Any:
    """The case's predictor from ``package`` (neural_lam.models or neural_lam_anemoi)."""
    options = {"hidden_dim": 64, "processor_layers": 2} | case.options
    clamping = config.training.output_clamping
    return getattr(package, CLASSES[case.model])(
        datastore,
        graph_name=case.graph,
        output_clamping_lower=clamping.lower,
        output_clamping_upper=clamping.upper,
        **options,
    )


def build_pair(case: Case, config_path: Path, batch_size: int, steps: int = 2) -> Pair:
    """Both modules with equal random weights (biases and LayerNorms too) and a random batch near standardised."""
    config, datastore = load_datastore(config_path)
    if case.without:
        datastore = Reduced(datastore, case.without)
    modules = []
    for package in (neural_lam.models, neural_lam_anemoi):
        torch.manual_seed(0)
        forecaster = ARForecaster(build_predictor(case, datastore, config, package), datastore)
        loss = "nll" if case.options.get("output_std") else "wmse"
        modules.append(ForecasterModule(forecaster=forecaster, config=config, datastore=datastore, loss=loss))
    own, ours = modules
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one, two in zip(own.parameters(), ours.parameters(), strict=True):
            if one.ndim == 1:
                one += 0.1 * torch.randn(one.shape, generator=generator)
            two.copy_(one)

    def random(*shape: int) -> Tensor:
        return 0.5 * torch.randn(*shape, generator=generator)

    nodes, states = datastore.num_grid_points, datastore.get_num_data_vars("state")
    window = case.options.get("num_past_forcing_steps", 1) + case.options.get("num_future_forcing_steps", 1) + 1
    forcings = datastore.get_num_data_vars("forcing") * window
    batch = (
        random(batch_size, 2, nodes, states),
        random(batch_size, steps, nodes, states),
        random(batch_size, steps, nodes, forcings),
        torch.zeros(batch_size, steps, dtype=torch.int64),
    )
    return Pair(own, ours, batch)
