"""Messages computed in parts: the same numbers with less memory, unsharded and sharded, in training and in a forecast."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.observe import LiveTensors
from neural_lam_anemoi import InvalidInputError, shard
from neural_lam_anemoi.adapters.anemoi.checkpoint import build_interface
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.hetero import GRID, to_hetero
from neural_lam_anemoi.nn.networks import LamNetwork

from .distributed.comparison import distance
from .distributed.graphs import STATES, STATICS, build_network
from .distributed.ranks import Place, Ranks
from .models import make_bundle, make_graph

MODELS = {"graph_lam": "multiscale", "hi_lam": "hierarchical", "hi_lam_parallel": "hierarchical"}
PROPAGATING = {f"{name}_gnn_type": "PropagationNet" for name in ("g2m", "m2g", "mesh_up", "mesh_down")}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LamGraph]:
    place = tmp_path_factory.mktemp("graphs")
    return {kind: make_graph(place / kind, kind) for kind in set(MODELS.values())}


def make_inputs(network: LamNetwork, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Two states, forcing and static fields of a batch of two."""
    generator = torch.Generator().manual_seed(4)
    widths = (len(STATES), len(STATES), network.architecture.num_forcing, STATICS)
    return [torch.randn(2, network.num_grid, width, generator=generator).clamp(-1, 1).to(dtype) for width in widths]


def run(network: LamNetwork, inputs: list[Tensor]) -> dict[str, Tensor]:
    """The prediction and every parameter's gradient."""
    network.zero_grad()
    prediction, _ = network.step(*inputs)
    prediction.square().sum().backward()
    gradients = {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    return {"prediction": prediction.detach(), **{name: value.clone() for name, value in gradients.items()}}


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor], bound: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert (ours[name] - value).abs().max() <= bound * value.abs().max(), name


@pytest.mark.parametrize("options", [{}, PROPAGATING, {"mesh_aggr": "mean"}], ids=["", "propagating", "mean"])
@pytest.mark.parametrize("model", MODELS)
def test_same_gradients(model: str, options: dict[str, Any], graphs: dict[str, LamGraph]) -> None:
    network = build_network(model, graphs[MODELS[model]], **options).double()
    inputs = make_inputs(network)
    whole = run(network, inputs)
    for grid, mesh in ((2, 3), (150, 1)):  # more parts than receivers, too
        network.chunk_edges(grid, mesh)
        assert_equal(run(network, inputs), whole, 1e-12)


def test_autocast_is_no_further_from_whole_than_its_own_rounding(graphs: dict[str, LamGraph]) -> None:
    network = build_network("hi_lam", graphs["hierarchical"])
    inputs = make_inputs(network, torch.float32)
    exact = run(network, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        whole = run(network, inputs)
        network.chunk_edges(3, 2)
        chunked = run(network, inputs)
    assert {name: value.dtype for name, value in chunked.items()} == {
        name: value.dtype for name, value in whole.items()
    }
    assert 0 < distance(chunked, whole, exact) <= distance(whole, exact, exact)


def run_rank(place: Place, pickled: bytes, inputs: list[Tensor]) -> dict[str, Tensor]:
    """Gradients of one rank's rows, summed over the ranks."""
    network = pickle.loads(pickled)
    shard(network, place.groups[3])
    found = run(network, [network.take_rows(x) for x in inputs])
    del found["prediction"]
    for value in found.values():
        torch.distributed.all_reduce(value, group=place.groups[3])
    return found


@pytest.mark.parametrize("model", ["graph_lam", "hi_lam_parallel"])
def test_same_gradients_on_three_ranks(model: str, graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    network = build_network(model, graphs[MODELS[model]]).double()
    inputs = make_inputs(network)
    whole = run(network, inputs)
    del whole["prediction"]
    network.zero_grad()
    network.chunk_edges(3, 2)
    for found in ranks.run(run_rank, pickle.dumps(network), inputs, ranks=3):
        assert_equal(found, whole, 1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_less_memory(training: bool, graphs: dict[str, LamGraph]) -> None:
    network = build_network("graph_lam", graphs["multiscale"], hidden_dim=64, processor_layers=8)
    inputs = make_inputs(network, torch.float32)

    def peak() -> int:
        with LiveTensors() as live, torch.set_grad_enabled(training):
            prediction, _ = network.step(*inputs)
            if training:
                prediction.sum().backward()
        return live.peak

    whole = peak()
    network.chunk_edges(8, 8)
    assert peak() <= 0.6 * whole


def forecaster(graphs: dict[str, LamGraph], model: str = "graph_lam") -> tuple[Any, Tensor]:
    """Anemoi's model object, and a batch for it."""
    bundle = make_bundle(graphs[MODELS[model]], model)
    interface, _ = build_interface(bundle, to_hetero(bundle.graph, bundle.fields))
    columns = len(interface.data_indices[GRID].model.input.name_to_index)
    return interface.eval(), 0.1 * torch.randn(1, 2, bundle.graph.num_grid, columns)


def predict(interface: Any, batch: Tensor, group: Any = None) -> Tensor:
    prediction: Tensor = interface.predict_step({GRID: batch}, model_comm_group=group)[GRID]
    return prediction


@pytest.mark.parametrize("model", MODELS)
def test_a_forecast_embeds_mesh_and_edges_once(model: str, graphs: dict[str, LamGraph]) -> None:
    interface, batch = forecaster(graphs, model)
    network, calls = interface.model.network, []
    for mlp in network.static_embedders():
        mlp.register_forward_hook(lambda mlp, *_: calls.append(mlp))
    first = predict(interface, batch)
    assert len(calls) == len(network.static_embedders())
    assert torch.equal(predict(interface, batch), first)
    predict(interface, 2 * batch)
    assert len(calls) == len(network.static_embedders())
    interface.model({GRID: batch.unsqueeze(2)})  # training goes through here
    assert len(calls) == 2 * len(network.static_embedders())


def test_kept_embeddings_follow_the_weights(graphs: dict[str, LamGraph]) -> None:
    """However a weight changes, in inference mode too, and whatever copies the model."""
    interface, batch = forecaster(graphs)
    before = predict(interface, batch)
    with torch.inference_mode():
        interface.model.network.m2m_embedder[0].weight.data.mul_(1.5)
    fresh = pickle.loads(pickle.dumps(interface))
    after = predict(interface, batch)
    assert torch.equal(after, predict(fresh, batch)) and not torch.equal(after, before)
    assert torch.equal(after, predict(copy.deepcopy(interface), batch))
    interface.double()
    assert predict(interface, batch.double()).dtype == torch.float64
    assert "_reused" not in pickle.loads(pickle.dumps(interface)).model.__dict__


@pytest.mark.parametrize("variable", ["", "_MAPPER", "_PROCESSOR"])
def test_a_forecast_in_chunks(variable: str, graphs: dict[str, LamGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    interface, batch = forecaster(graphs)
    whole = predict(interface, batch)
    monkeypatch.setenv(f"ANEMOI_INFERENCE_NUM_CHUNKS{variable}", "3")
    chunked = predict(interface, batch)
    assert (chunked - whole).abs().max() <= 1e-5 * whole.abs().max()
    counts = {name: edges.num_chunks for name, edges in interface.model.network.edges.items()}
    grid, mesh = (1 if variable == other else 3 for other in ("_PROCESSOR", "_MAPPER"))
    assert counts == {"g2m": grid, "m2g": grid, "m2m_0": mesh}
    monkeypatch.setenv(f"ANEMOI_INFERENCE_NUM_CHUNKS{variable}", "many")
    with pytest.raises(InvalidInputError, match=r"NUM_CHUNKS.* is 'many'; it must be a whole number"):
        predict(interface, batch)


def peak_of_a_forecast(place: Place | None, ranks: int, pickled: bytes, batch: Tensor) -> int:
    """Bytes of tensors that live at once on one rank while it computes a step of a forecast, inputs left out."""
    interface = pickle.loads(pickled)
    group = None if place is None else place.groups[ranks]
    predict(interface, batch, group)  # connects the ranks
    interface.model.__dict__.pop("_reused")
    with LiveTensors() as live:
        predict(interface, batch, group)
    return live.peak


def test_memory_of_a_forecast_falls_with_the_ranks(graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    interface, batch = forecaster(graphs)
    pickled = pickle.dumps(interface)
    alone = peak_of_a_forecast(None, 1, pickled, batch)
    shared = ranks.run(peak_of_a_forecast, 4, pickled, batch, ranks=4)
    assert max(shared) <= 1.3 / 4 * alone
