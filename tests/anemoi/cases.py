"""Our layers with random weights, and inputs as Anemoi's models hand them over."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from anemoi.models.distributed.shapes import BipartiteGraphShardInfo, GraphShardInfo
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import Tensor, nn

from neural_lam_anemoi.graph import EdgeSet
from neural_lam_anemoi.nn.edges import Edges

from ..distributed.graphs import random_graph, randomise

MODULE = "neural_lam_anemoi.adapters.anemoi.layers"
GNNS = ("InteractionNet", "PropagationNet")
KINDS = ("Processor", "ForwardMapper", "BackwardMapper")
LAYERS = tuple(f"{gnn}{kind}" for gnn in GNNS for kind in KINDS)
DATA, HIDDEN, EDGE, OUT, WIDTH = 7, 5, 4, 3, 8
NUM_GRID, NUM_MESH = 29, 17


def build(name: str, **options: Any) -> nn.Module:
    """A layer as Anemoi makes it from a configuration, in float64; also what only Anemoi reads is handed over.

    Hydra wraps what a constructor raises; here it comes as it was raised.
    """
    config = {"_target_": f"{MODULE}.{name}", "num_channels": WIDTH, "trainable_size": 1}
    config |= {"sub_graph_edge_attributes": ["edge_attr"], "num_chunks": 1, "mlp_extra_layers": 0}
    config |= {"mlp_hidden_ratio": 1.0, "mlp_implementation": "mlp", "cpu_offload": False}
    config |= {"gradient_checkpointing": False, "layer_kernels": None}
    by_kind = {
        "Processor": {"num_layers": 2},
        "ForwardMapper": {"in_channels_src": DATA, "in_channels_dst": HIDDEN},
        "BackwardMapper": {"in_channels_src": WIDTH, "in_channels_dst": DATA, "out_channels_dst": OUT},
    }
    config |= next(changes for kind, changes in by_kind.items() if name.endswith(kind)) | options
    torch.manual_seed(0)
    try:
        layer: nn.Module = instantiate(config, _recursive_=False, edge_dim=EDGE)
    except InstantiationException as error:
        raise error.__cause__ or error from None
    randomise(layer)
    return layer.double()


@dataclasses.dataclass
class Inputs:
    """Node rows and edges of a layer: ``nodes`` are senders and receivers, or the one node set of a processor."""

    nodes: tuple[Tensor, ...]
    attributes: Tensor
    index: Tensor
    weights: Tensor

    def repeated(self, batch: int) -> Inputs:
        """As Anemoi flattens a batch: rows one entry after the other, edges repeated with shifted indices."""
        shift = torch.tensor([[len(self.nodes[0])], [len(self.nodes[-1])]])
        return Inputs(
            tuple(x.repeat(batch, 1) for x in self.nodes),
            self.attributes.repeat(batch, 1),
            torch.cat([self.index + i * shift for i in range(batch)], dim=1),
            self.weights.repeat(batch, 1),
        )

    def leaves(self) -> list[Tensor]:
        """What gradients are wanted for, besides parameters."""
        return [*self.nodes, self.attributes]


def make_inputs(name: str, seed: int = 3) -> Inputs:
    """Random fields on a random graph, asymmetric and with nodes that have no edges; edges sorted by receiver."""
    graph = random_graph(seed, NUM_GRID, (NUM_MESH,), density=2.5)
    generator = torch.Generator().manual_seed(seed)
    edges, widths, out = {
        "Processor": (graph.m2m[0], (WIDTH,), WIDTH),
        "ForwardMapper": (graph.g2m, (DATA, HIDDEN), WIDTH),
        "BackwardMapper": (graph.m2g, (WIDTH, WIDTH), OUT),
    }[next(kind for kind in KINDS if name.endswith(kind))]
    counts = (edges.num_senders, edges.num_receivers)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    attributes = normal(edges.num_edges, EDGE)
    ordered = Edges(EdgeSet(edges.index, attributes, *counts))
    return Inputs(
        tuple(normal(count, width) for count, width in zip(counts, widths, strict=False)),
        ordered.features,
        torch.stack([ordered.senders, ordered.receivers]),
        normal(counts[1], out),
    )


def call(layer: nn.Module, inputs: Inputs, sizes: tuple[Any, ...] = (None, None, None), **options: Any) -> Any:
    """Call a layer as Anemoi's model does; ``sizes`` are those of senders, receivers and edges."""
    senders, receivers, edges = sizes
    if len(inputs.nodes) == 1:
        options.pop("keep_x_dst_sharded", None)
        x, info = inputs.nodes[0], GraphShardInfo(nodes=receivers, edges=edges)
    else:
        x, info = inputs.nodes, BipartiteGraphShardInfo(src_nodes=senders, dst_nodes=receivers, edges=edges)
    arguments = {"edge_attr": inputs.attributes, "edge_index": inputs.index, "batch_size": 1, "model_comm_group": None}
    return layer(x, shard_info=info, **(arguments | options))


def outputs_of(found: Any) -> tuple[Tensor, ...]:
    """Senders, if the layer gives them back, and receivers."""
    return found if isinstance(found, tuple) else (found,)


@dataclasses.dataclass
class Result:
    """Outputs of a layer and the gradients of its parameters and inputs."""

    outputs: tuple[Tensor, ...]
    parameters: dict[str, Tensor | None]
    inputs: list[Tensor | None]


def loss_of(outputs: tuple[Tensor, ...], weights: Tensor) -> Tensor:
    """Weighted receivers, and the senders' squares."""
    return (outputs[-1] * weights).sum() + sum(x.square().sum() for x in outputs[:-1])


def run(layer: nn.Module, inputs: Inputs, sizes: tuple[Any, ...] = (None, None, None), **options: Any) -> Result:
    """Forwards and backwards."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs.leaves()]
    asked = dataclasses.replace(inputs, nodes=tuple(leaves[:-1]), attributes=leaves[-1])
    outputs = outputs_of(call(layer, asked, sizes, **options))
    layer.zero_grad()
    loss_of(outputs, inputs.weights).backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return Result(tuple(x.detach() for x in outputs), gradients, [x.grad for x in leaves])


def relative(found: Tensor | None, expected: Tensor | None) -> float:
    """The largest difference over the largest expected number."""
    assert found is not None and expected is not None
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-300))


def assert_equal(found: Result, expected: Result, bound: float = 1e-12) -> None:
    """Outputs and gradients."""
    assert found.parameters.keys() == expected.parameters.keys()
    pairs = [*zip(found.outputs, expected.outputs, strict=True), *zip(found.inputs, expected.inputs, strict=True)]
    pairs += [(found.parameters[name], gradient) for name, gradient in expected.parameters.items()]
    for one, two in pairs:
        assert relative(one, two) <= bound
