"""Our layers in stock Anemoi models, beside stock layers; under a current PyG, which test_mixed_models.py puts first."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ..distributed.comparison import BOUNDS
from ..distributed.ranks import Ranks
from ..models import VARIABLES
from .cases import MODULE, relative
from .mixes import MIXES, Step, build, readme_configuration, run, run_rank


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Ranks]:
    """Started here: those of the session run under another PyG."""
    with Ranks(3) as processes:
        yield processes


def sample(model: Any, batch: int) -> tuple[Tensor, Tensor]:
    """Input and weights of the loss, the latter normalised over the grid."""
    generator = torch.Generator().manual_seed(1)
    nodes, columns = len(model._graph_data["data"].x), sum(map(len, (VARIABLES.state, VARIABLES.forcing)))
    inputs = torch.randn(batch, 2, 1, nodes, columns + len(VARIABLES.static), generator=generator, dtype=torch.float64)
    shape = (batch, 1, 1, nodes, len(VARIABLES.state))
    return inputs, torch.randn(*shape, generator=generator, dtype=torch.float64) / nodes


@pytest.mark.parametrize("mix", MIXES)
def test_alone(mix: str, tmp_path: Path) -> None:
    """A batch as its entries by themselves; gradients for every parameter; saved whole, and read again."""
    model = build(MIXES[mix], tmp_path / "graph")
    inputs, weights = sample(model, batch=2)
    batch = run(model, inputs, weights)
    assert batch.prediction.shape == weights.shape
    assert [name for name, gradient in batch.gradients.items() if gradient is None or not gradient.any()] == []
    for i in range(2):
        alone = run(again(model), inputs[i : i + 1], weights[i : i + 1]).prediction
        assert relative(batch.prediction[i : i + 1], alone) <= BOUNDS[torch.float64][0]


def again(model: Any) -> Any:
    """What is read from a saved model, as anemoi-inference does."""
    file = io.BytesIO(saved(model))
    return torch.load(file, weights_only=False)


def saved(model: Any) -> bytes:
    """A whole model as a file."""
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


@pytest.mark.full
@pytest.mark.parametrize("mix", MIXES)
def test_on_several_ranks(mix: str, three_ranks: Ranks, tmp_path: Path) -> None:
    """With Anemoi's own scaling of gradients; where stock layers take part it rounds them to float32."""
    model, ours = build(MIXES[mix], tmp_path / "graph"), MIXES[mix].all_ours
    inputs, weights = sample(model, batch=1)
    alone = run(again(model), inputs, weights)
    for count in (2, 3):
        for cut in (True, False) if ours else (True,):
            arguments = (count, saved(model), inputs, weights, cut)
            for step in three_ranks.run(run_rank, *arguments, ranks=count):
                assert_equal(step, alone, BOUNDS[torch.float64 if ours else torch.float32][1])


def assert_equal(step: Step, alone: Step, bound: float) -> None:
    """Predictions to float64, gradients to ``bound`` of each parameter's largest.

    The bias of an attention's keys has a gradient of rounding errors alone: a softmax doesn't see it.
    """
    assert relative(step.prediction, alone.prediction) <= BOUNDS[torch.float64][0]
    for name, gradient in alone.gradients.items():
        if not name.endswith("lin_key.bias"):
            assert relative(step.gradients[name], gradient) <= bound, name


def test_the_readme_s_configuration(tmp_path: Path) -> None:
    """Runs as it stands, on top of Anemoi's GNN configuration."""
    content = readme_configuration()
    assert content["config_validation"] is False
    model = build(content["model"], tmp_path / "graph")
    parts = {type(part).__module__ for part in (model.encoder["0"], model.processor, model.decoder["0"])}
    assert {name.startswith(MODULE) for name in parts} == {True, False}, "ours beside stock ones"
    assert torch.isfinite(run(model, *sample(model, batch=1)).prediction).all()
