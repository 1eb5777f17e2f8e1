"""Scalers of Anemoi's losses that keep float64 where a training runs in it; Anemoi's own round to float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from anemoi.training.losses.scalers.base_scaler import BaseScaler
from anemoi.training.utils.enums import TensorDim
from torch import Tensor

from neural_lam_anemoi.hetero import INTERIOR


class VariableWeights(BaseScaler):
    """A weight for each variable.

    Parameters
    ----------
    data_indices : IndexCollection
        Anemoi's, of the dataset.
    weights : mapping of str to float
        By variable.
    precision : str
        The training's.
    """

    scale_dims = (TensorDim.VARIABLE,)

    def __init__(self, data_indices: Any, weights: Mapping[str, float], precision: str, **_: Any) -> None:
        super().__init__()
        self._weights, self._precision = weights, precision
        self._names = data_indices.model.output.name_to_index

    def get_scaling_values(self, **_: Any) -> Tensor:
        """Shape ``(output variables,)``."""
        ordered = sorted(self._names, key=self._names.get)
        return torch.tensor([float(self._weights[name]) for name in ordered], dtype=_dtype(self._precision))


class InteriorMean(BaseScaler):
    """The mean over the nodes where the state isn't prescribed: neural-lam's interior.

    Parameters
    ----------
    graph_data : HeteroData
    nodes_name : str
        Node type with the attribute ``interior_mask``.
    precision : str
        The training's.
    """

    scale_dims = (TensorDim.GRID,)

    def __init__(self, graph_data: Any, nodes_name: str, precision: str, **_: Any) -> None:
        super().__init__()
        self._interior, self._precision = graph_data[nodes_name][INTERIOR].squeeze(1), precision

    def get_scaling_values(self, **_: Any) -> Tensor:
        """Shape ``(grid,)``, sum 1."""
        return (self._interior.double() / self._interior.sum()).to(_dtype(self._precision))


def _dtype(precision: Any) -> torch.dtype:
    return torch.float64 if str(precision).startswith("64") else torch.float32
