"""Our processors and mappers, alone, on one device."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from anemoi.models.layers.mapper import BaseMapper
from anemoi.models.layers.normalization import AutocastLayerNorm
from anemoi.models.layers.processor import BaseProcessor
from neural_lam import gnn_layers
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_WRAPPED_MODULE as WRAPPED
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import OffloadWrapper

from neural_lam_anemoi.errors import InvalidInputError

from .cases import (
    EDGE,
    LAYERS,
    NUM_GRID,
    NUM_MESH,
    OUT,
    WIDTH,
    Inputs,
    Result,
    assert_equal,
    build,
    call,
    loss_of,
    make_inputs,
    outputs_of,
    relative,
    run,
)

LAST_RECEIVERS_HAVE_EDGES = 64
"""A seed; neural-lam counts receivers by the largest index."""


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("name", LAYERS)
def test_shapes(name: str, batch: int) -> None:
    """Of every output; a batch is computed as its entries are."""
    layer, inputs = build(name), make_inputs(name)
    assert isinstance(layer, BaseProcessor if name.endswith("Processor") else BaseMapper)
    found = outputs_of(call(layer, inputs.repeated(batch), batch_size=batch))
    shapes = {
        "Processor": [(batch * NUM_MESH, WIDTH)],
        "ForwardMapper": [(batch * NUM_GRID, WIDTH), (batch * NUM_MESH, WIDTH)],
        "BackwardMapper": [(batch * NUM_GRID, OUT)],
    }
    assert [x.shape for x in found] == next(due for kind, due in shapes.items() if name.endswith(kind))
    for x, alone in zip(found, outputs_of(call(layer, inputs)), strict=True):
        assert relative(x, alone.repeat(batch, 1)) <= 1e-12


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_reach_everything(name: str) -> None:
    """Every parameter, the nodes and the edge attributes, which may be trained."""
    found = run(build(name), make_inputs(name))
    for key, gradient in [*found.parameters.items(), *enumerate(found.inputs)]:
        assert gradient is not None and gradient.abs().max() > 0, key


@pytest.mark.parametrize("name", LAYERS)
def test_chunks_and_checkpoints_change_nothing_but_memory(name: str) -> None:
    inputs = make_inputs(name)
    expected = run(build(name, num_layers=4) if name.endswith("Processor") else build(name), inputs)
    kept = {}
    for chunks in (1, 2, 4, *(() if name.endswith("Processor") else (3, 2 * NUM_GRID))):
        for checkpointed in (False, True):
            options: dict[str, Any] = {"num_chunks": chunks, "gradient_checkpointing": checkpointed}
            layer = build(name, **options, **({"num_layers": 4} if name.endswith("Processor") else {}))
            assert_equal(run(layer, inputs), expected)
            kept[chunks, checkpointed] = bytes_kept(layer, inputs)
    assert max(kept[1, True], kept[2, True]) < 0.7 * kept[1, False]


@pytest.mark.parametrize("name", [name for name in LAYERS if name.endswith("Mapper")])
def test_mappers_see_a_chunk_of_the_edges_at_a_time(name: str) -> None:
    layer, inputs, seen = build(name, num_chunks=4), make_inputs(name), []
    layer.emb_edges.register_forward_hook(lambda module, arguments, output: seen.append(len(output)))
    call(layer, inputs)
    assert len(seen) == 4 and sum(seen) == len(inputs.attributes)
    assert max(seen) < 0.5 * len(inputs.attributes)


def bytes_kept(layer: nn.Module, inputs: Inputs) -> int:
    """Size of the activations that autograd keeps after the forward pass."""
    sizes: dict[int, int] = {}
    own = {parameter.data_ptr() for parameter in layer.parameters()}

    def keep(x: Tensor) -> Tensor:
        if x.data_ptr() not in own:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        alive = call(layer, inputs)
    del alive
    return sum(sizes.values())


@pytest.mark.parametrize("name", LAYERS)
def test_offloading_to_the_cpu_changes_nothing(name: str) -> None:
    inputs, plain, offloaded = make_inputs(name), build(name), build(name, cpu_offload=True)
    assert list(offloaded.state_dict()) == list(plain.state_dict())
    found = run(offloaded, inputs)
    found.parameters = {key.replace(f"{WRAPPED}.", ""): gradient for key, gradient in found.parameters.items()}
    assert len(found.parameters) > 0 and count(offloaded, OffloadWrapper) > 0
    assert_equal(found, run(plain, inputs))


@pytest.mark.parametrize("name", LAYERS)
def test_edges_in_any_order(name: str) -> None:
    layer, inputs = build(name), make_inputs(name)
    expected = run(layer, inputs)
    order = torch.randperm(len(inputs.attributes), generator=torch.Generator().manual_seed(4))
    shuffled = dataclasses.replace(inputs, attributes=inputs.attributes[order], index=inputs.index[:, order])
    found = run(layer, shuffled, edges_are_dst_sorted=False)
    found.inputs[-1] = found.inputs[-1][torch.argsort(order)]  # type: ignore[index]
    assert_equal(found, expected)


@pytest.mark.parametrize("aggr", ("sum", "mean"))
@pytest.mark.parametrize("name", LAYERS)
def test_numbers_are_neural_lam_s(name: str, aggr: str) -> None:
    """Of its own classes with the same weights, put together as its models do."""
    layer, inputs = build(name, aggr=aggr), make_inputs(name, seed=LAST_RECEIVERS_HAVE_EDGES)
    found = run(layer, inputs)
    theirs = TheirLayer(layer, inputs.index, aggr)
    leaves = [x.detach().clone().requires_grad_() for x in inputs.leaves()]
    outputs = theirs(*leaves)
    loss_of(outputs, inputs.weights).backward()
    gradients = {key: parameter.grad for key, parameter in theirs.layer.named_parameters() if "proc" not in key}
    for place, gnn in zip(theirs.places, theirs.gnns, strict=True):
        gradients |= {f"{place}.{key}": parameter.grad for key, parameter in gnn.named_parameters()}
    expected = Result(tuple(x.detach() for x in outputs), gradients, [x.grad for x in leaves])
    found.parameters = {key: found.parameters[key] for key in expected.parameters}
    assert len(found.parameters) == len(list(layer.parameters()))
    assert_equal(found, expected)


class TheirLayer(nn.Module):
    """neural-lam's message passing between our MLPs, which are its own by name, order and shape."""

    def __init__(self, layer: nn.Module, index: Tensor, aggr: str) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        self.processor = isinstance(layer, BaseProcessor)
        ours = dict(layer.proc.named_children()) if self.processor else {"": layer.proc}
        self.places = [f"proc.{key}".rstrip(".") for key in ours]
        kind = getattr(gnn_layers, type(layer).layer_type.__name__)
        self.gnns = nn.ModuleList()
        for i, weights in enumerate(ours.values()):
            read_again = self.processor and i < len(ours) - 1
            gnn = kind(index, WIDTH, update_edges=read_again, aggr=aggr).double()
            gnn.load_state_dict(weights.state_dict())
            self.gnns.append(gnn)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Nodes and edge attributes to what our layer gives."""
        *nodes, attributes = inputs
        layer, edges = self.layer, self.layer.emb_edges(attributes)
        if self.processor:
            (x,) = nodes
            for gnn in self.gnns:
                x, edges = gnn(x, x, edges) if gnn.update_edges else (gnn(x, x, edges), edges)
            return (x,)
        senders, receivers = layer.pre_process(nodes)
        receivers = self.gnns[0](senders, receivers, edges)
        if hasattr(layer, "node_data_extractor"):
            return (layer.node_data_extractor(receivers),)
        return senders + layer.src_mlp(senders), receivers


def test_senders_as_they_came() -> None:
    """What Anemoi's transformers expect of an encoder."""
    layer, inputs = build("InteractionNetForwardMapper", update_src_nodes=False), make_inputs("ForwardMapper")
    senders, receivers = call(layer, inputs)
    assert senders is inputs.nodes[0]
    assert torch.equal(receivers, call(build("InteractionNetForwardMapper"), inputs)[1])
    assert all(p.grad is not None for p in backward(layer, receivers).parameters())


def backward(layer: nn.Module, output: Tensor) -> nn.Module:
    """The layer, with gradients."""
    output.square().sum().backward()
    return layer


def test_receivers_that_are_not_encoded_yet() -> None:
    """With ``in_channels_dst`` channels; those of another width are refused in a line."""
    inputs = make_inputs("BackwardMapper")
    raw = dataclasses.replace(inputs, nodes=(inputs.nodes[0], torch.randn(NUM_GRID, 7, dtype=torch.float64)))
    layer = build("InteractionNetBackwardMapper", embed_dst_nodes=True)
    output = call(layer, raw)
    assert output.shape == (NUM_GRID, OUT)
    assert all(p.grad is not None for p in backward(layer, output).parameters())
    with pytest.raises(InvalidInputError, match="have 7 channels, 8 are due with embed_dst_nodes: False"):
        call(build("InteractionNetBackwardMapper"), raw)
    with pytest.raises(InvalidInputError, match="have 8 channels, 7 are due with embed_dst_nodes: True"):
        call(layer, inputs)


def test_senders_of_another_width() -> None:
    """As Anemoi's ``ConcatAggregator`` makes them."""
    inputs = make_inputs("BackwardMapper")
    wide = dataclasses.replace(inputs, nodes=(inputs.nodes[0].repeat(1, 2), inputs.nodes[1]))
    layer = build("PropagationNetBackwardMapper", in_channels_src=2 * WIDTH)
    assert call(layer, wide).shape == (NUM_GRID, OUT)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_kernels(name: str) -> None:
    """Those that a configuration names take the place of neural-lam's; the others stay."""
    kernels = {
        "Activation": {"_target_": "torch.nn.GELU"},
        "LayerNorm": {"_target_": "anemoi.models.layers.normalization.AutocastLayerNorm"},
    }
    plain, changed = build(name, layer_kernels={}), build(name, layer_kernels=kernels)
    assert count(plain, nn.SiLU) == count(changed, nn.GELU) > 0
    assert count(plain, nn.GELU) == count(changed, nn.SiLU) == 0
    assert count(changed, AutocastLayerNorm) == count(plain, nn.LayerNorm) > 0
    with pytest.raises(AssertionError):
        assert_equal(run(changed, make_inputs(name)), run(plain, make_inputs(name)))
    for wrong, said in (
        ({"Linear": {"_target_": "torch.nn.Embedding"}}, "Linear makes a Embedding"),
        ({"LayerNorm": {"_target_": "anemoi.models.layers.normalization.ConditionalLayerNorm"}}, "conditional"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            build(name, layer_kernels=wrong)


def count(module: nn.Module, kind: type[nn.Module]) -> int:
    """Modules of a class in a module."""
    return sum(isinstance(child, kind) for child in module.modules())


def test_more_hidden_layers() -> None:
    """Every MLP gets as many more."""
    for name in LAYERS:
        layer = build(name, mlp_extra_layers=2)
        assert count(layer, nn.Linear) == count(build(name), nn.Linear) + 2 * count(layer, nn.Sequential)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("option", "value", "said"),
    (
        ("mlp_hidden_ratio", 4, "mlp_hidden_ratio is 4; neural-lam's MLPs need 1.0"),
        ("mlp_implementation", "swiglu", "mlp_implementation is swiglu"),
        ("mlp_extra_layers", -1, "mlp_extra_layers is -1"),
        ("aggr", "max", "aggr is max; it must be sum or mean"),
    ),
)
def test_options_that_neural_lam_lacks(name: str, option: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        build(name, **{option: value})


@pytest.mark.parametrize("name", LAYERS)
def test_what_would_be_ignored_is_refused(name: str) -> None:
    """No edges, and conditioning on noise."""
    from neural_lam_anemoi.adapters.anemoi import layers

    arguments = {"in_channels_src": 1, "in_channels_dst": 1, "out_channels_dst": 1, "num_layers": 1}
    with pytest.raises(InvalidInputError, match="edge_dim is 0: the graph has no edges here"):
        getattr(layers, name)(num_channels=WIDTH, edge_dim=0, **arguments)
    with pytest.raises(InvalidInputError, match="conditions its layers"):
        call(build(name), make_inputs(name), cond=torch.ones(1, EDGE))


@pytest.mark.parametrize("name", LAYERS)
def test_half_precision(name: str) -> None:
    """Autocast to bfloat16, with a graph as it comes from the provider in float32."""
    layer, inputs = build(name).float(), make_inputs(name)
    single = dataclasses.replace(
        inputs, nodes=tuple(x.float() for x in inputs.nodes), attributes=inputs.attributes.float()
    )
    with torch.autocast("cpu", torch.bfloat16):
        found = outputs_of(call(layer, single))
    for x, exact in zip(found, outputs_of(call(layer, single)), strict=True):
        assert relative(x.float(), exact) < 0.05
