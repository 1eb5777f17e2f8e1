"""An architecture holds what neural-lam knows, and says what is wrong with anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neural_lam_anemoi import Architecture, InvalidInputError

SIZES = {"num_state": 5, "num_forcing": 3, "num_static": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"model": "graph_lam", "hidden_dim": 8, "mesh_aggr": "mean"},
        {"model": "hi_lam", "processor_layers": 0, "mesh_up_gnn_type": "PropagationNet"},
        {"model": "hi_lam_parallel", "output_std": True, "hidden_layers": 0},
    ],
)
def test_there_and_back(options: dict[str, Any]) -> None:
    architecture = Architecture(**SIZES, **options)
    assert Architecture.from_dict(json.loads(json.dumps(architecture.to_dict()))) == architecture


def test_widths() -> None:
    architecture = Architecture("graph_lam", **SIZES, output_std=True)
    assert architecture.grid_input_dim == 2 * 5 + 3 + 1
    assert architecture.grid_output_dim == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "graph_efm"}, "model is 'graph_efm'; use one of graph_lam, hi_lam, hi_lam_parallel"),
        ({"mesh_aggr": "max"}, "mesh_aggr is 'max'; use one of sum, mean"),
        ({"m2g_gnn_type": "GAT"}, "m2g_gnn_type is 'GAT'; use one of InteractionNet, PropagationNet"),
        ({"hidden_dim": 0}, "hidden_dim is 0; graph_lam needs an integer >= 1"),
        ({"hidden_dim": 64.0}, "hidden_dim is 64.0"),
        ({"processor_layers": 0}, "processor_layers is 0; graph_lam needs an integer >= 1"),
        ({"num_state": 0}, "num_state is 0"),
        ({"output_std": 1}, "output_std is 1; use true or false"),
        ({"width": 3}, "unknown key 'width'"),
    ],
)
def test_what_neural_lam_does_not_know(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Architecture.from_dict({"model": "graph_lam", **SIZES, **options})
    assert message in str(caught.value)


def test_a_missing_key() -> None:
    with pytest.raises(InvalidInputError, match="'num_state' is missing"):
        Architecture.from_dict({"model": "graph_lam"})
