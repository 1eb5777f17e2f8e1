"""Sharded networks equal neural-lam's own classes; the drop-in classes are sharded as they are."""

from __future__ import annotations

import copy
import pickle
import types
from pathlib import Path
from typing import Any

import neural_lam.models
import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor

import neural_lam_anemoi
from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.clamping import Clamping
from neural_lam_anemoi.nn.networks import NETWORKS, LamNetwork, StateStatistics

from .comparison import assert_equal
from .graphs import FORCINGS, STATES, STATICS, grid_coordinates, pickled, random_sample, randomise
from .ranks import Place, Ranks
from .tasks import Options, Result, Sample, run_sharded

CLASSES = {"graph_lam": "GraphLAM", "hi_lam": "HiLAM", "hi_lam_parallel": "HiLAMParallel"}
PROPAGATION = {"g2m_gnn_type": "PropagationNet", "m2g_gnn_type": "PropagationNet"}
WINDOW = {"num_past_forcing_steps": 1, "num_future_forcing_steps": 2}
CLAMPING = {"output_clamping_lower": {"t": -4.0, "q": -4.0}, "output_clamping_upper": {"u": 4.0, "q": 5.0}}
ALL_CASES = [
    ("graph_lam", "flat", {}),
    ("graph_lam", "multiscale", PROPAGATION | {"output_std": True, "mesh_aggr": "mean"}),
    ("hi_lam", "hierarchical", {"output_std": True}),
    ("hi_lam", "hierarchical", PROPAGATION | {"mesh_up_gnn_type": "PropagationNet"}),
    ("hi_lam_parallel", "hierarchical", PROPAGATION),
]


class SmallDatastore:
    """As much of a datastore as a neural-lam predictor asks for."""

    def __init__(self, root: Path) -> None:
        self.root_path = root
        self.coordinates = grid_coordinates()
        self.num_grid_points = len(self.coordinates)
        self.static = np.random.default_rng(0).standard_normal((self.num_grid_points, STATICS)).astype("float32")

    def get_num_data_vars(self, category: str) -> int:
        return {"state": len(STATES), "forcing": 1, "static": STATICS}[category]

    def get_vars_names(self, category: str) -> list[str]:
        return list(STATES)

    def get_dataarray(self, category: str, split: str | None, standardize: bool = False) -> Any:
        return types.SimpleNamespace(values=self.static)

    def get_standardization_dataarray(self, category: str) -> Any:
        one = np.ones(len(STATES), "float32")
        values = {"mean": 0 * one, "std": one, "diff_mean_standardized": 0.1 * one, "diff_std_standardized": 0.5 * one}
        return xr.Dataset({f"state_{name}": ("feature", numbers) for name, numbers in values.items()})

    def get_xy_extent(self, category: str) -> list[float]:
        low, high = self.coordinates.min(0), self.coordinates.max(0)
        return [low[0], high[0], low[1], high[1]]


def run_own(own: torch.nn.Module, sample: Sample) -> Result:
    """One step of neural-lam's class, with the loss of `run_model`."""
    older, newer = sample.initial.unbind(1)
    state, spread = own(newer, older, sample.forcing[:, 0])
    loss = (state * sample.weights[:, 0]).sum()
    if spread is not None:
        loss = loss + (spread * sample.weights[:, 0]).sum()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in own.named_parameters() if p.grad is not None}
    spread = None if spread is None else spread.detach().unsqueeze(1)
    return Result(torch.arange(state.shape[1]), state.detach().unsqueeze(1), spread, gradients, list(own.state_dict()))


def build_own(root: Path, model: str, graph: str, options: dict[str, Any]) -> torch.nn.Module:
    """neural-lam's class with random weights."""
    torch.manual_seed(0)
    arguments = {"hidden_dim": 12, "processor_layers": 2} | WINDOW | CLAMPING | options
    own = getattr(neural_lam.models, CLASSES[model])(SmallDatastore(root), graph_name=graph, **arguments)
    randomise(own)
    return own


def core_twin(own: torch.nn.Module, model: str, graph: LamGraph, options: dict[str, Any]) -> LamNetwork:
    """The core network with the weights of neural-lam's class."""
    architecture = Architecture(
        model, len(STATES), FORCINGS, STATICS, **({"hidden_dim": 12, "processor_layers": 2} | options)
    )
    one = torch.ones(len(STATES))
    statistics = StateStatistics(STATES, 0 * one, one, 0.1 * one, 0.5 * one)
    network = NETWORKS[model](architecture, graph, statistics, Clamping(*CLAMPING.values()))
    network.load_state_dict(own.state_dict())
    return network


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("model", "graph", "options"), ALL_CASES)
def test_equals_neural_lam(
    model: str,
    graph: str,
    options: dict[str, Any],
    dtype: torch.dtype,
    graph_directory: Path,
    graphs: dict[str, LamGraph],
    ranks: Ranks,
) -> None:
    own = build_own(graph_directory, model, graph, options)
    network = core_twin(own, model, graphs[graph], options)
    sample = random_sample(network.num_grid, batch=2).to(dtype)
    sample.static = torch.tensor(SmallDatastore(graph_directory).static).to(dtype)
    expected = run_own(copy.deepcopy(own).to(dtype), sample)
    run = Options(replicate=None)
    for count in (2, 7) if dtype == torch.float64 else (3,):
        assert_equal(expected, ranks.run(run_sharded, count, pickled(network, dtype), sample, run, ranks=count), dtype)


def run_drop_in(place: Place, network: bytes, sample: Sample) -> Result:
    """Shard a drop-in class and call it as neural-lam does."""
    model = pickle.loads(network)
    neural_lam_anemoi.shard(model, place.groups[2])
    rows = model.grid_rows

    def local(x: Tensor) -> Tensor:
        return x[..., rows, :]

    cut = Sample(*(local(x) for x in (sample.initial, sample.forcing, sample.static, sample.weights)))
    result = run_own(model, cut)
    result.rows = rows.clone()
    return result


@pytest.mark.parametrize(("model", "graph"), [("graph_lam", "multiscale"), ("hi_lam_parallel", "hierarchical")])
def test_a_drop_in_class_is_sharded(model: str, graph: str, graph_directory: Path, ranks: Ranks) -> None:
    own = build_own(graph_directory, model, graph, {})
    torch.manual_seed(0)
    ours = getattr(neural_lam_anemoi, CLASSES[model])(
        SmallDatastore(graph_directory), graph_name=graph, hidden_dim=12, processor_layers=2, **WINDOW, **CLAMPING
    )
    ours.load_state_dict(own.state_dict())
    sample = random_sample(ours.num_grid, batch=1)
    expected = run_own(own.double(), sample)
    results = ranks.run(run_drop_in, pickle.dumps(ours.double()), sample, ranks=2)
    assert_equal(expected, results, torch.float64)
