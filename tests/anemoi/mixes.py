"""Anemoi's stock encoder-processor-decoder with our layers in it, and one step of it."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import anemoi.training
import torch
import yaml
from anemoi.models.data_indices.collection import IndexCollection
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from anemoi.training.distributed.strategy import register_gradient_scaling_hooks
from hydra.utils import get_class
from omegaconf import OmegaConf
from torch import Tensor

from neural_lam_anemoi.hetero import GRID, to_hetero

from ..distributed.ranks import Place
from ..models import VARIABLES, make_bundle, make_graph
from .cases import MODULE

GNN = Path(anemoi.training.__file__).parent / "config" / "model" / "gnn.yaml"
"""Anemoi's own configuration of a GNN model: what we change is all that differs from it."""
STOCK = "anemoi.models.layers"
HEADS = {"num_heads": 6, "mlp_hidden_ratio": 1, "graph_attention_backend": "pyg", "shard_strategy": "edges"}
ATTENTION = {"num_heads": 6, "mlp_hidden_ratio": 1, "attention_implementation": "scaled_dot_product_attention"}
ATTENTION |= {"trainable_size": 0}  # it reads no edges
LATER = {"target_node_features": ["coordinates", "forcings", "prognostics", "trainable_parameters"]}
Layer = dict[str, Any]
SMALL: dict[str, Any] = {
    "num_channels": 12,
    "model": {"hidden_nodes_name": "mesh_0"},
    "processor": {"num_layers": 4},
    "node_trainable_parameters": {GRID: 2, "mesh_0": 2},
    "edge_trainable_parameters": {"data2hidden": 2, "hidden2hidden": 2, "hidden2data": 2},
    "attributes": {"edges": ["edge_attr"]},
}
"""What fits Anemoi's configuration to our graphs, and makes it small."""
README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = re.compile(r"^## Mix with Anemoi's own layers\n.*?^```yaml\n(?P<yaml>.*?)^```", re.MULTILINE | re.DOTALL)


def readme_configuration() -> dict[str, Any]:
    """What the README adds to an Anemoi configuration."""
    found = SECTION.search(README)
    assert found is not None
    content: dict[str, Any] = yaml.safe_load(found["yaml"])
    return content


def ours(name: str, **options: Any) -> Layer:
    """One of our layers."""
    return {"_target_": f"{MODULE}.{name}", **options}


def stock(name: str, **options: Any) -> Layer:
    """One of Anemoi's."""
    return {"_target_": f"{STOCK}.{name}", **options}


@dataclasses.dataclass(frozen=True)
class Mix:
    """Encoder, processor and decoder, as changes to Anemoi's GNN configuration."""

    encoder: Layer = dataclasses.field(default_factory=dict)
    processor: Layer = dataclasses.field(default_factory=dict)
    decoder: Layer = dataclasses.field(default_factory=dict)
    around_decoder: Layer = dataclasses.field(default_factory=dict)

    @property
    def all_ours(self) -> bool:
        """Whether no stock layer is left."""
        return all(MODULE in part.get("_target_", "") for part in (self.encoder, self.processor, self.decoder))


RAW = {"update_src_nodes": False}
EMBED = {"embed_dst_nodes": True}
OUR_ENDS = {"encoder": ours("InteractionNetForwardMapper"), "decoder": ours("PropagationNetBackwardMapper")}
TRANSFORMER_ENDS = {
    "encoder": stock("mapper.GraphTransformerForwardMapper", **HEADS),
    "decoder": stock("mapper.GraphTransformerBackwardMapper", **HEADS),
}
MIXES = {
    "our processor, GNN mappers": Mix(processor=ours("InteractionNetProcessor")),
    "our other processor, GNN mappers": Mix(processor=ours("PropagationNetProcessor")),
    "our processor, transformer mappers": Mix(processor=ours("InteractionNetProcessor"), **TRANSFORMER_ENDS),
    "our mappers, GNN processor": Mix(**OUR_ENDS),
    "our mappers, graph transformer": Mix(processor=stock("processor.GraphTransformerProcessor", **HEADS), **OUR_ENDS),
    "our mappers, transformer": Mix(processor=stock("processor.TransformerProcessor", **ATTENTION), **OUR_ENDS),
    "our encoder": Mix(encoder=ours("PropagationNetForwardMapper")),
    "our decoder": Mix(decoder=ours("InteractionNetBackwardMapper")),
    "our encoder, transformer decoder": Mix(
        encoder=ours("InteractionNetForwardMapper", **RAW), decoder=TRANSFORMER_ENDS["decoder"]
    ),
    "transformer encoder, our decoder": Mix(
        encoder=TRANSFORMER_ENDS["encoder"], decoder=ours("InteractionNetBackwardMapper", **EMBED)
    ),
    "all ours": Mix(
        ours("InteractionNetForwardMapper", num_chunks=2),
        ours("InteractionNetProcessor"),
        ours("InteractionNetBackwardMapper", num_chunks=3),
    ),
    "all ours, other target features": Mix(
        ours("PropagationNetForwardMapper", **RAW),
        ours("PropagationNetProcessor", aggr="mean"),
        ours("PropagationNetBackwardMapper", **EMBED),
        LATER,
    ),
}


def configuration(mix: Any) -> Any:
    """Anemoi's GNN configuration for the test graph, with the layers of a `Mix` or the changes of a mapping."""
    model = OmegaConf.load(GNN)
    changes = mix
    if isinstance(mix, Mix):
        decoder = {"mapper": mix.decoder, **mix.around_decoder}
        changes = {"processor": mix.processor, "encoders": {"0": {"mapper": mix.encoder}}, "decoders": {"0": decoder}}
    merged = OmegaConf.merge({"model": model}, {"model": SMALL}, {"model": changes})
    merged.model.bounding = []
    return merged


def build(mix: Any, directory: Path) -> Any:
    """Anemoi's model in float64, all its parameters moved off their initial values."""
    graph = make_graph(directory, "flat")
    names = [*VARIABLES.state, *VARIABLES.forcing, *VARIABLES.static]
    data = OmegaConf.create({"forcing": [*VARIABLES.forcing, *VARIABLES.static], "diagnostic": [], "target": []})
    config = configuration(mix)
    torch.manual_seed(0)
    model = get_class(config.model.model["_target_"])(
        model_config=config,
        data_indices={GRID: IndexCollection(data, {name: i for i, name in enumerate(names)})},
        statistics={GRID: {}},
        n_step_input=2,
        n_step_output=1,
        graph_data=to_hetero(graph, make_bundle(graph, "graph_lam").fields),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.double()


@dataclasses.dataclass
class Step:
    """Prediction of a model, whole, and the gradients of its parameters."""

    prediction: Tensor
    gradients: dict[str, Tensor | None]


def run(model: Any, inputs: Tensor, weights: Tensor, **options: Any) -> Step:
    """Forwards and backwards."""
    prediction = model({GRID: inputs}, **options)[GRID]
    (prediction * weights).sum().backward()
    return Step(prediction.detach(), {name: parameter.grad for name, parameter in model.named_parameters()})


def run_rank(place: Place, count: int, saved: bytes, inputs: Tensor, weights: Tensor, cut: bool) -> Step:
    """On one of the ranks, as Anemoi trains: its strategy's hooks, and its mean over the ranks."""
    model, group = torch.load(io.BytesIO(saved), weights_only=False), place.groups[count]
    register_gradient_scaling_hooks(model, count)
    if cut:
        sizes = get_balanced_partition_sizes(inputs.shape[-2], count)
        start = sum(sizes[: place.rank])
        rows = slice(start, start + sizes[place.rank])
        options = {"model_comm_group": group, "grid_shard_sizes": {GRID: sizes}}
        step = run(model, inputs[..., rows, :], weights[..., rows, :], **options)
        whole = torch.zeros_like(weights)
        whole[..., rows, :] = step.prediction
        torch.distributed.all_reduce(whole, group=group)
        step.prediction = whole
    else:
        step = run(model, inputs, weights, model_comm_group=group)
    for gradient in step.gradients.values():
        if gradient is not None:
            torch.distributed.all_reduce(gradient, group=group)
            gradient /= count
    return step
