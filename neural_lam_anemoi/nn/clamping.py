"""Output clamping: states that stay inside physical limits, with gradients.

neural-lam 0.7.0 adds the predicted increment in a space where the limits are at infinity: with both limits
``x' = f(f^-1(x) + delta)`` where f is a sigmoid between them, with one limit a softplus from it. The seven buffers that
hold the limits (in standardised units) and the columns they apply to are part of every neural-lam checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InvalidInputError

BUFFER_NAMES = (
    "sigmoid_lower_lims",
    "sigmoid_upper_lims",
    "softplus_lower_lims",
    "softplus_upper_lims",
    "clamp_lower_upper_idx",
    "clamp_lower_idx",
    "clamp_upper_idx",
)
SOFTPLUS_LINEAR_ABOVE = 20.0
CLOSEST_TO_LIMIT = 1e-6


@dataclasses.dataclass(frozen=True)
class Clamping:
    """Limits of state variables in physical units; a variable may have a lower, an upper, both or none."""

    lower: dict[str, float] = dataclasses.field(default_factory=dict)
    upper: dict[str, float] = dataclasses.field(default_factory=dict)

    def buffers(self, names: Sequence[str], mean: Tensor, std: Tensor) -> dict[str, Tensor]:
        """The seven buffers for state variables ``names`` with standardisation ``mean`` and ``std``, each ``(n,)``.

        Empty ones are float32 of shape ``(0,)``, index buffers too: that is what neural-lam stores.

        Raises
        ------
        InvalidInputError
            If a limit names an unknown variable, or a lower limit isn't below the upper one.
        """
        self._check(names)
        lower, upper = set(self.lower), set(self.upper)
        columns: dict[str, list[int]] = {
            "both": [i for i, name in enumerate(names) if name in lower & upper],
            "lower": [i for i, name in enumerate(names) if name in lower - upper],
            "upper": [i for i, name in enumerate(names) if name in upper - lower],
        }

        def limits(which: str, values: dict[str, float]) -> Tensor:
            return torch.tensor([(values[names[i]] - mean[i]) / std[i] for i in columns[which]])

        return dict(
            zip(
                BUFFER_NAMES,
                (
                    limits("both", self.lower),
                    limits("both", self.upper),
                    limits("lower", self.lower),
                    limits("upper", self.upper),
                    *(torch.tensor(columns[which]) for which in ("both", "lower", "upper")),
                ),
                strict=True,
            )
        )

    def _check(self, names: Sequence[str]) -> None:
        unknown = sorted((set(self.lower) | set(self.upper)) - set(names))
        if unknown:
            raise InvalidInputError(f"output clamping: limits for unknown state features {', '.join(unknown)}")
        for name in set(self.lower) & set(self.upper):
            if not self.lower[name] < self.upper[name]:
                raise InvalidInputError(
                    f'Invalid clamping limits for feature "{name}": lower ({self.lower[name]}) must be smaller than '
                    f"upper ({self.upper[name]})."
                )


def clamped_update(module: nn.Module, delta: Tensor, state: Tensor) -> Tensor:
    """Add an increment to a state, inside the limits held by ``module``'s seven buffers.

    Parameters
    ----------
    module : nn.Module
        Has the buffers `BUFFER_NAMES`.
    delta, state : Tensor
        Shape ``(..., num_state)``, standardised.

    Returns
    -------
    Tensor
        The new state, same shape.
    """
    limits = {name: getattr(module, name) for name in BUFFER_NAMES}
    new_state = state + delta
    both, lower, upper = (limits[name] for name in BUFFER_NAMES[4:])
    if both.numel():
        low = limits["sigmoid_lower_lims"]
        width = limits["sigmoid_upper_lims"] - low
        free = _logit((state[..., both] - low) / width) + delta[..., both]
        new_state[..., both] = low + width * torch.sigmoid(free)
    if lower.numel():
        low = limits["softplus_lower_lims"]
        new_state[..., lower] = low + F.softplus(_inverse_softplus(state[..., lower] - low) + delta[..., lower])
    if upper.numel():
        high = limits["softplus_upper_lims"]
        free = -_inverse_softplus(high - state[..., upper]) + delta[..., upper]
        new_state[..., upper] = high - F.softplus(-free)
    return new_state


def _logit(x: Tensor) -> Tensor:
    x = torch.clamp(x, min=CLOSEST_TO_LIMIT, max=1 - CLOSEST_TO_LIMIT)
    return torch.log(x / (1 - x))


def _inverse_softplus(x: Tensor) -> Tensor:
    smallest = float(torch.log(torch.tensor(CLOSEST_TO_LIMIT + 1)))  # in float32, as neural-lam has it
    inside = torch.clamp(x, min=smallest, max=SOFTPLUS_LINEAR_ABOVE)
    return torch.where(x <= SOFTPLUS_LINEAR_ABOVE, torch.log(torch.expm1(inside)), x)
