"""The one multi-layer perceptron that every part of the networks is made of."""

from __future__ import annotations

import itertools

from torch import Tensor, nn


def make_mlp(widths: list[int], layer_norm: bool = True) -> nn.Sequential:
    """Linear layers with SiLU between them and, if asked, a final LayerNorm.

    Parameters
    ----------
    widths : list of int
        Input width, then the output width of every linear layer.
    layer_norm : bool
        Whether a LayerNorm ends it.

    Returns
    -------
    nn.Sequential
        Linear layers at 0, 2, …; the LayerNorm last: the positions, hence the parameter names, are neural-lam's.
    """
    layers: list[nn.Module] = []
    for i, (width_in, width_out) in enumerate(itertools.pairwise(widths)):
        if i > 0:
            layers.append(nn.SiLU())
        layers.append(nn.Linear(width_in, width_out))
    if layer_norm:
        layers.append(nn.LayerNorm(widths[-1]))
    return nn.Sequential(*layers)


def split_first_linear(mlp: nn.Sequential, parts: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Weight blocks and bias of the first layer of an MLP whose input is a concatenation of equal parts.

    ``W [a, b] = W_a a + W_b b``: each part can be projected by itself, where it has the fewest rows, and the
    concatenation is never made.

    Parameters
    ----------
    mlp : nn.Sequential
        Made by `make_mlp`.
    parts : int
        Number of equally wide parts.

    Returns
    -------
    weights : tuple of Tensor
        ``parts`` views of shape ``(out, in / parts)``.
    bias : Tensor
        Shape ``(out,)``.
    """
    first = mlp[0]
    assert isinstance(first, nn.Linear)
    return first.weight.split(first.in_features // parts, dim=1), first.bias


def after_first_linear(mlp: nn.Sequential, x: Tensor) -> Tensor:
    """Apply every layer but the first to ``x`` of shape ``(..., out of the first layer)``."""
    for layer in list(mlp)[1:]:
        x = layer(x)
    return x
