"""Low precision, deterministic mode: sharded against whole at the same precision."""

from __future__ import annotations

import pytest
import torch

from neural_lam_anemoi.graph import LamGraph

from .comparison import distance, joined, worst
from .graphs import build_network, grid_coordinates, pickled, random_sample
from .ranks import Ranks
from .tasks import Options, run_sharded, run_whole

NETWORKS = [("graph_lam", "multiscale"), ("hi_lam", "hierarchical"), ("hi_lam_parallel", "hierarchical")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("model", "graph"), NETWORKS)
def test_autocast_is_no_further_from_whole_than_its_own_rounding(
    model: str, graph: str, dtype: torch.dtype, graphs: dict[str, LamGraph], ranks: Ranks
) -> None:
    propagation = {"g2m_gnn_type": "PropagationNet"}
    network = pickled(build_network(model, graphs[graph], **propagation), torch.float32)
    sample = random_sample(graphs[graph].num_grid, batch=2).to(torch.float32)
    scale = 2.0**12 if dtype == torch.float16 else 1.0  # as a GradScaler would, or gradients underflow
    options = Options(autocast=dtype, loss_scale=scale, replicate=("mesh_2",) if graph == "hierarchical" else ())
    exact, rounded = run_whole(network, sample, Options()), run_whole(network, sample, options)
    found = joined(ranks.run(run_sharded, 3, network, sample, options, ranks=3))
    rounding, difference = worst(exact, rounded)[0], worst(rounded, found)[0]
    assert rounding > 1e-4, "autocast is on"
    assert difference <= rounding
    assert distance(rounded.gradients, found.gradients, exact.gradients) <= distance(
        rounded.gradients, exact.gradients, exact.gradients
    )


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("model", "graph"), NETWORKS)
def test_deterministic_mode_gives_the_same_bits_twice(
    model: str, graph: str, overlap: bool, graphs: dict[str, LamGraph], ranks: Ranks
) -> None:
    network = pickled(build_network(model, graphs[graph]), torch.float32)
    sample = random_sample(graphs[graph].num_grid, batch=2, steps=2).to(torch.float32)
    coordinates = torch.tensor(grid_coordinates())
    options = Options("rcb", coordinates, replicate=None, deterministic=True, overlap=overlap)
    once, again = (ranks.run(run_sharded, 4, network, sample, options, ranks=4) for _ in range(2))
    for one, two in zip(once, again, strict=True):
        assert torch.equal(one.states, two.states)
        assert all(torch.equal(gradient, two.gradients[name]) for name, gradient in one.gradients.items())
