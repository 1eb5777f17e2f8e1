"""What an Anemoi configuration can ask of our layers, and what it can't."""

from __future__ import annotations

from typing import Any

from anemoi.models.layers.normalization import ConditionalLayerNorm
from torch import nn

from neural_lam_anemoi.errors import InvalidInputError

KERNELS = {nn.Linear: "Linear", nn.SiLU: "Activation", nn.LayerNorm: "LayerNorm"}
"""What the core's MLPs are made of, and what Anemoi's ``layer_kernels`` call it."""


def mlp_widths(
    num_channels: int,
    mlp_extra_layers: int = 0,
    mlp_hidden_ratio: float = 1.0,
    mlp_implementation: str = "mlp",
) -> list[int]:
    """Widths of every layer of an MLP but its input; neural-lam's one hidden layer is Anemoi's ``mlp_extra_layers: 0``.

    Raises
    ------
    InvalidInputError
        An option that neural-lam's MLPs don't have.
    """
    if mlp_extra_layers < 0:
        raise InvalidInputError(f"mlp_extra_layers is {mlp_extra_layers}; it must be 0 or more")
    if mlp_hidden_ratio != 1:
        raise InvalidInputError(f"mlp_hidden_ratio is {mlp_hidden_ratio}; neural-lam's MLPs need 1.0")
    if mlp_implementation != "mlp":
        raise InvalidInputError(f"mlp_implementation is {mlp_implementation}; neural-lam's MLPs need mlp")
    return [num_channels] * (mlp_extra_layers + 2)


def takes_mean(aggr: str) -> bool:
    """Whether messages are averaged, from neural-lam's name for it: ``sum`` or ``mean``."""
    if aggr not in ("sum", "mean"):
        raise InvalidInputError(f"aggr is {aggr}; it must be sum or mean")
    return aggr == "mean"


def require_edges(edge_dim: int) -> None:
    """Raise `InvalidInputError` if Anemoi's graph provider has no edges or no attributes of them."""
    if edge_dim < 1:
        raise InvalidInputError(
            "edge_dim is 0: the graph has no edges here; add them to the graph, and their attributes to "
            "sub_graph_edge_attributes"
        )


def refuse_conditioning(arguments: dict[str, Any]) -> None:
    """Raise `InvalidInputError` if a model conditions its layers on noise: it would be ignored."""
    if arguments.get("cond") is not None:
        raise InvalidInputError(
            "this model conditions its layers (cond), which neural-lam's don't know; use stock ones"
        )


def use_kernels(module: nn.Module, given: Any, factory: Any) -> None:
    """Put the kernels that a configuration names in the place of neural-lam's, everywhere in ``module``.

    Parameters
    ----------
    module : nn.Module
        Made of the core's MLPs.
    given : mapping or None
        ``layer_kernels`` of the configuration. What it doesn't name stays neural-lam's: SiLU, not Anemoi's GELU.
    factory : mapping
        What Anemoi's ``load_layer_kernels`` made of ``given``.

    Raises
    ------
    InvalidInputError
        A kernel that can't stand there.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            kernel = KERNELS.get(type(child))
            if kernel is not None and kernel in (given or {}):
                setattr(parent, name, _replacement(child, kernel, factory[kernel]))


def _replacement(layer: nn.Module, kernel: str, make: Any) -> nn.Module:
    if isinstance(layer, nn.Linear):
        new = make(layer.in_features, layer.out_features)
        if not isinstance(new, nn.Linear):
            raise InvalidInputError(f"layer_kernels.Linear makes a {type(new).__name__}; a torch.nn.Linear is needed")
        return new
    if isinstance(layer, nn.LayerNorm):
        new = make(layer.normalized_shape[0])
        if isinstance(new, ConditionalLayerNorm):
            raise InvalidInputError("layer_kernels.LayerNorm is conditional, which neural-lam's layers don't know")
        return new
    return make()
