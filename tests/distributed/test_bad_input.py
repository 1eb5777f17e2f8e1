"""What is refused, with which words, and that all ranks hear of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.graph import LamGraph
from neural_lam_anemoi.nn.networks import LamNetwork
from neural_lam_anemoi.sharding.cuts import make_partition
from neural_lam_anemoi.sharding.shard import gather_grid, require_equal_weights, shard

from .graphs import FORCINGS, STATES, STATICS, build_network, pickled
from .ranks import Place, Ranks


def refusal(action: Callable[[], Any]) -> str:
    """The message, one line, of what ``action`` raises; empty if it doesn't."""
    try:
        action()
    except InvalidInputError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


def fields(rows: int) -> list[torch.Tensor]:
    """Zeros to call a network with."""
    return [torch.zeros(1, rows, width).double() for width in (len(STATES), len(STATES), FORCINGS)]


def misuse(place: Place, network: bytes) -> dict[str, str]:
    """Everything a caller can do wrong with a group of two, from the first three ranks."""
    messages = {}
    model: LamNetwork = pickle.loads(network)
    if place.rank == 2:
        return {"stranger": refusal(lambda: shard(model, place.groups[2]))}
    static = torch.zeros(model.num_grid, STATICS).double()
    messages["partial input to a whole model"] = refusal(lambda: model.step(*fields(5), static))
    partition = make_partition(random_graph_of(model), 3)
    messages["partition for three"] = refusal(lambda: shard(model, place.groups[2], partition))
    messages["unknown kind"] = refusal(lambda: shard(model, place.groups[2], "voronoi"))
    messages["rcb without coordinates"] = refusal(lambda: shard(model, place.groups[2], "rcb"))
    messages["only one rank wrong"] = refusal(lambda: shard(model, place.groups[2], ["rcb", "contiguous"][place.rank]))
    shard(model, place.groups[2])
    messages["twice"] = refusal(lambda: shard(model, place.groups[2]))
    whole = model.num_grid
    messages["full-size input"] = refusal(lambda: model.step(*fields(whole), static))
    messages["full-size static"] = refusal(lambda: model.step(*fields(len(model.grid_rows)), static))
    messages["take_rows of rows"] = refusal(lambda: model.take_rows(fields(5)[0]))
    messages["gather_grid of a grid"] = refusal(lambda: gather_grid(fields(whole)[0], model))
    messages["pickle"] = refusal(lambda: pickle.dumps(model))
    twin = copy.deepcopy(model)
    assert twin.edge_set("g2m").group is model.edge_set("g2m").group  # type: ignore[attr-defined]
    return messages


def random_graph_of(model: LamNetwork) -> LamGraph:
    """The model's own graph."""
    from neural_lam_anemoi.sharding.shard import graph_of

    return graph_of(model)


EXPECTED = {
    "partial input to a whole model": "prev_state has 5 rows, the grid 437; call shard before passing local rows",
    "partition for three": "the partition is for 3 ranks, the group has 2",
    "unknown kind": "kind is 'voronoi'",
    "rcb without coordinates": "rcb needs grid_coordinates",
    "twice": "sharded already",
    "full-size input": "cut full fields with take_rows",
    "full-size static": "static_fields has 437 rows",
    "take_rows of rows": "the grid has 437 nodes",
    "gather_grid of a grid": "this rank owns 21",
    "pickle": "save its state_dict",
}


def test_misuse_is_refused(graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    first, second, third = ranks.run(misuse, pickled(build_network("graph_lam", graphs["flat"])), ranks=3)
    assert "not in the group" in third["stranger"]
    for messages in (first, second):
        for situation, words in EXPECTED.items():
            assert words in messages[situation], situation
    assert "rcb needs grid_coordinates" in first["only one rank wrong"]
    assert "refused on rank 0" in second["only one rank wrong"]


def disagree(place: Place, network: bytes, about: str) -> str:
    """Rank 1 has something else than the others."""
    model: LamNetwork = pickle.loads(network)
    if place.rank == 1:
        with torch.no_grad():
            if about == "graph":
                model.edge_set("g2m").senders[0] += 1
            elif about == "weights":
                next(model.parameters())[0, 0] += 1e-9
            elif about == "statistics":
                model.diff_std[0] *= 2
    if about == "later weights":
        shard(model, place.groups[3])
        with torch.no_grad():
            next(model.parameters())[0, 0] += place.rank
        return refusal(lambda: require_equal_weights(model))
    return refusal(lambda: shard(model, place.groups[3]))


@pytest.mark.parametrize("about", ["graph", "weights", "statistics", "later weights"])
def test_disagreement_is_named_on_all_ranks(about: str, graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    network = pickled(build_network("graph_lam", graphs["flat"]))
    for message in ranks.run(disagree, network, about, ranks=3):
        assert f"don't agree on the {about.split()[-1]}: rank 1 differs" in message


def rows_there_and_back(place: Place, network: bytes, kind: str, coordinates: torch.Tensor) -> bool:
    """take_rows and gather_grid are inverse, whatever the partition; and for one rank nothing happens."""
    alone: LamNetwork = pickle.loads(network)
    before = dict(alone.edges)
    if place.rank == 0:
        shard(alone, place.groups[1])
    shard(alone, None)
    assert alone.sharding is None
    assert dict(alone.edges) == before
    model: LamNetwork = pickle.loads(network)
    shard(model, place.groups[4], kind, coordinates)
    field = torch.arange(2.0 * model.num_grid).reshape(2, model.num_grid, 1)
    local = model.take_rows(field)
    assert torch.equal(local[0, :, 0], model.grid_rows.float())
    return torch.equal(gather_grid(local, model), field) and torch.equal(gather_grid(local[0], model), field[0])


@pytest.mark.parametrize("kind", ["contiguous", "rcb"])
def test_rows_go_and_come_back(kind: str, graphs: dict[str, LamGraph], ranks: Ranks) -> None:
    from .graphs import grid_coordinates

    network = pickled(build_network("graph_lam", graphs["flat"]))
    assert all(ranks.run(rows_there_and_back, network, kind, torch.tensor(grid_coordinates()), ranks=4))
