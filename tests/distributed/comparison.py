"""Putting ranks' results together and comparing them with a whole model's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .tasks import Result

BOUNDS = {torch.float64: (1e-12, 1e-9), torch.float32: (1e-5, 5e-5)}
"""Of outputs relative to the largest, of gradients relative to each parameter's largest."""


def joined(results: Sequence[Result]) -> Result:
    """Rows in the order of the whole grid, gradients summed; every rank must have the same gradients by name."""
    rows = torch.cat([result.rows for result in results])
    assert torch.equal(rows.sort().values, torch.arange(len(rows))), "every grid node belongs to one rank"
    back = torch.argsort(rows)

    def whole(parts: list[Tensor | None]) -> Tensor | None:
        given = [part for part in parts if part is not None]
        return torch.cat(given, dim=-2)[..., back, :] if given else None

    first = results[0]
    for other in results[1:]:
        assert other.gradients.keys() == first.gradients.keys()
        assert other.buffers == first.buffers
    gradients = {name: torch.stack([r.gradients[name] for r in results]).sum(0) for name in first.gradients}
    states, spreads = whole([r.states for r in results]), whole([r.spreads for r in results])
    assert states is not None
    return Result(rows[back], states, spreads, gradients, first.buffers)


def worst(expected: Result, found: Result) -> tuple[float, float, str]:
    """Largest difference of outputs over the largest output, the same for a gradient, and the parameter's name."""
    outputs = [(expected.states, found.states)]
    if expected.spreads is not None:
        assert found.spreads is not None
        outputs.append((expected.spreads, found.spreads))
    output = max(float((one - two).abs().max() / one.abs().max()) for one, two in outputs)
    assert expected.gradients.keys() == found.gradients.keys()
    by_name = {
        name: float((found.gradients[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-300))
        for name, gradient in expected.gradients.items()
    }
    name = max(by_name, key=by_name.__getitem__)
    return output, by_name[name], name


def assert_equal(expected: Result, results: Sequence[Result], dtype: torch.dtype) -> None:
    """To the project's bounds; state_dict keys too."""
    found = joined(results)
    assert found.buffers == expected.buffers
    output, gradient, name = worst(expected, found)
    assert output <= BOUNDS[dtype][0], f"outputs differ by {output:.1e}"
    assert gradient <= BOUNDS[dtype][1], f"{name}: gradients differ by {gradient:.1e}"


def distance(one: dict[str, Tensor], two: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Euclidean, over all tensors, each in units of the largest entry of the exact one."""
    parts = [(one[name] - two[name]) / value.abs().max() for name, value in exact.items()]
    return float(torch.cat([part.flatten() for part in parts]).norm())
