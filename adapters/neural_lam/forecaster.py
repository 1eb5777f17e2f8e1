"""neural-lam's rollout, with what doesn't change from step to step computed once, and less kept for the gradients."""

from __future__ import annotations

import contextlib

import torch
from neural_lam.models import ARForecaster
from torch import Tensor

from .predictors import Predictor


class Forecaster(ARForecaster):
    """``neural_lam.models.ARForecaster`` that shares embeddings of mesh and edges among the steps of a rollout."""

    predictor: Predictor
    boundary_mask: Tensor
    interior_mask: Tensor
    checkpoint_steps: bool = False
    """Whether a step's insides are computed again in the backward pass; may be set any time."""
    offload_activations: bool = False
    """Whether what the backward pass needs waits in the host's memory; may be set any time."""

    def forward(
        self, init_states: Tensor, forcing_features: Tensor, boundary_states: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Unroll; shapes are those of ``ARForecaster.forward``, rows those of ``predictor.grid_rows``."""
        training = torch.is_grad_enabled()
        with contextlib.ExitStack() as scope:
            if self.offload_activations and training:
                scope.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=init_states.is_cuda))
            scope.enter_context(self.predictor.rollout(recompute=self.checkpoint_steps))
            result: tuple[Tensor, Tensor | None] = super().forward(init_states, forcing_features, boundary_states)
            return result

    def cut_to_rows(self) -> None:
        """Keep of the masks the rows that the predictor owns."""
        rows = self.predictor.grid_rows
        self.boundary_mask, self.interior_mask = self.boundary_mask[:, rows], self.interior_mask[:, rows]
