"""Partitions as plain data: what each kind promises, on real and on random graphs; no process group anywhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.graph import GRID, LamGraph, edge_ends, mesh_name
from neural_lam_anemoi.sharding.cuts import (
    bisect,
    make_partition,
    node_work,
    passes_per_step,
    spatial_order,
    tiny_levels,
)
from neural_lam_anemoi.sharding.partition import Partition, plot_partition
from neural_lam_anemoi.sharding.parts import edge_part, edge_work, edges_per_rank, halo_rows, imbalance

from .distributed.graphs import grid_coordinates, random_graph, read_graph, write_graph

NUM_X, NUM_Y = 67, 58
RANKS = (2, 3, 4, 8, 16)


def irregular_coordinates(count: int) -> np.ndarray:
    """Denser towards one corner, in the order of x."""
    points = np.random.default_rng(0).random((count, 2)) ** [1.7, 1.3] * [NUM_X - 1, NUM_Y - 1]
    return points[np.argsort(points[:, 0])]


@pytest.fixture(scope="module", params=["regular", "irregular", "hierarchical"])
def graph_and_places(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LamGraph, torch.Tensor]:
    """A graph a sixteenth of the reference's size, and where its grid nodes lie."""
    regular = request.param != "irregular"
    places = grid_coordinates(NUM_X, NUM_Y) if regular else irregular_coordinates(NUM_X * NUM_Y)
    directory = tmp_path_factory.mktemp("partition") / "graph"
    kind = "hierarchical" if request.param == "hierarchical" else "multiscale"
    write_graph(directory, kind, places, distance=2.1)
    return read_graph(directory, places), torch.tensor(places)


def traffic(graph: LamGraph, partition: Partition) -> float:
    """Rows received in a step, all ranks together."""
    passes = passes_per_step(graph.num_levels)
    return float(sum(passes[name] * rows.sum() for name, rows in halo_rows(graph, partition).items()))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kind", ["contiguous", "rcb"])
def test_work_is_balanced(kind: str, ranks: int, graph_and_places: tuple[LamGraph, torch.Tensor]) -> None:
    graph, places = graph_and_places
    partition = make_partition(graph, ranks, kind, places)
    partition.check(graph.node_sets())
    work = edge_work(graph, partition, passes_per_step(graph.num_levels))
    regular = float(places[1, 0]) == int(places[1, 0])
    assert imbalance(work) <= (1.05 if regular else 1.10)


@pytest.mark.parametrize("ranks", RANKS)
def test_contiguous_is_what_anemoi_reads(ranks: int, graph_and_places: tuple[LamGraph, torch.Tensor]) -> None:
    partition = make_partition(graph_and_places[0], ranks)
    assert partition.sizes(GRID) == get_balanced_partition_sizes(NUM_X * NUM_Y, ranks)
    assert torch.equal(partition.owners[GRID], partition.owners[GRID].sort().values)


def test_mesh_levels_follow_the_grid(graph_and_places: tuple[LamGraph, torch.Tensor]) -> None:
    graph, places = graph_and_places
    if float(places[1, 0]) != int(places[1, 0]):
        pytest.skip("balanced levels of unequal density lie apart")
    partition = make_partition(graph, 4)
    shuffled = dataclasses.replace(partition, owners={**partition.owners})
    generator = torch.Generator().manual_seed(0)
    for level in range(graph.num_levels):
        owner = partition.owners[mesh_name(level)]
        shuffled.owners[mesh_name(level)] = owner[torch.randperm(len(owner), generator=generator)]
        for rank in range(4):
            mine = graph.mesh_coordinates[level][owner == rank, 0].double()
            of_grid = places[partition.owners[GRID] == rank, 0]
            spacing = 4.0 * 2**level * 2.1
            assert of_grid.min() - spacing <= mine.min() <= mine.max() <= of_grid.max() + spacing
    assert 3 * traffic(graph, partition) < traffic(graph, shuffled)


def hilbert(places: torch.Tensor, bits: int = 10) -> torch.Tensor:
    """Positions along a Hilbert curve."""
    spread = (places - places.amin(0)) / (places.amax(0) - places.amin(0)).max()
    x, y = (spread * (2**bits - 1)).round().long().unbind(1)
    along = torch.zeros_like(x)
    for bit in reversed(range(bits)):
        side = 1 << bit
        right, upper = (x & side).bool().long(), (y & side).bool().long()
        along += side * side * ((3 * right) ^ upper)
        flip = (upper == 0) & (right == 1)
        x, y = torch.where(flip, side - 1 - (x % side), x % side), torch.where(flip, side - 1 - (y % side), y % side)
        x, y = torch.where(upper == 0, y, x), torch.where(upper == 0, x, y)
    return along


def along_a_key(graph: LamGraph, places: torch.Tensor, ranks: int, key: str) -> Partition:
    """Every node set by itself, cut into equal work along x, y or the Hilbert curve."""
    from neural_lam_anemoi.sharding.cuts import cut_in_order

    everywhere = {GRID: places} | {mesh_name(i): c[:, :2].double() for i, c in enumerate(graph.mesh_coordinates)}
    work = node_work(graph, passes_per_step(graph.num_levels))
    keys = {name: hilbert(at) if key == "hilbert" else at[:, "xy".index(key)] for name, at in everywhere.items()}
    owners = {name: cut_in_order(torch.argsort(k, stable=True), work[name], ranks) for name, k in keys.items()}
    return Partition(key, ranks, owners)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_rcb_is_near_the_best_known(ranks: int, graph_and_places: tuple[LamGraph, torch.Tensor]) -> None:
    graph, places = graph_and_places
    others = [along_a_key(graph, places, ranks, key) for key in ("x", "y", "hilbert")]
    try:
        import pymetis  # noqa: F401

        others.append(make_partition(graph, ranks, "metis", places))
    except ImportError:
        pass
    best = min(traffic(graph, other) for other in others)
    assert traffic(graph, make_partition(graph, ranks, "rcb", places)) <= 1.15 * best


def test_bisection_of_equal_nodes_gives_equal_boxes() -> None:
    places = torch.tensor(grid_coordinates(8, 4))
    owner = bisect(places, torch.ones(32), 4)
    assert torch.bincount(owner).tolist() == [8, 8, 8, 8]
    for rank in range(4):
        box = places[owner == rank]
        assert (box.amax(0) - box.amin(0) + 1).prod() == 8


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_ranges_of_the_spatial_order_are_boxes(ranks: int) -> None:
    places = torch.tensor(grid_coordinates(32, 64))
    order = spatial_order(places)
    assert torch.equal(order.sort().values, torch.arange(32 * 64))
    for box in places[order].split(get_balanced_partition_sizes(len(order), ranks)):
        assert (box.amax(0) - box.amin(0) + 1).prod() == len(box)


def test_the_spatial_order_is_the_same_from_any_order() -> None:
    places = torch.tensor(grid_coordinates(13, 29))
    shuffled = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0))]
    assert torch.equal(places[spatial_order(places)], shuffled[spatial_order(shuffled)])


@pytest.mark.parametrize(("ranks", "share"), [(8, 1.0), (16, 0.85)])
def test_contiguous_in_spatial_order_exchanges_less(
    ranks: int, share: float, graph_and_places: tuple[LamGraph, torch.Tensor]
) -> None:
    graph, places = graph_and_places
    stored = graph.reordered(spatial_order(places))
    boxes = make_partition(stored, ranks)
    assert traffic(stored, boxes) < share * traffic(graph, make_partition(graph, ranks))
    assert imbalance(edge_work(stored, boxes, passes_per_step(graph.num_levels))) <= 1.05


@pytest.mark.parametrize("replicated", [(), ("mesh_1",), ("mesh_0",), ("mesh_0", "mesh_1")])
@pytest.mark.parametrize("seed", range(5))
def test_parts_hold_every_edge_and_find_every_sender(seed: int, replicated: tuple[str, ...]) -> None:
    graph = random_graph(seed, 14, (6, 3), 1.5)
    generator = torch.Generator().manual_seed(seed)
    ranks = 4
    owners = {name: torch.randint(0, ranks, (n,), generator=generator) for name, n in graph.node_sets().items()}
    partition = Partition("any", ranks, owners, replicated)
    counts, halos = edges_per_rank(graph, partition), halo_rows(graph, partition)
    for name, ends in edge_ends(graph.num_levels).items():
        index = graph.edge_sets()[name].index
        parts = [edge_part(index, partition, ends, rank) for rank in range(ranks)]
        held = torch.cat([part.edges for part in parts]).sort().values
        copies = ranks if set(ends) <= set(replicated) else 1
        assert torch.equal(held, torch.arange(index.shape[1]).repeat_interleave(copies))
        for rank, part in enumerate(parts):
            assert len(part.edges) == counts[name][rank]
            assert part.num_halo == halos[name][rank]
            received = [partition.rows(ends[0], other)[parts[other].send[rank]] for other in range(ranks)]
            assert tuple(len(rows) for rows in received) == part.receive_counts
            senders = torch.cat([partition.rows(ends[0], rank), *received])
            assert torch.equal(senders[part.senders], index[0][part.edges])
            assert torch.equal(partition.rows(ends[1], rank)[part.receivers], index[1][part.edges])


def test_tiny_levels_are_the_coarse_ones() -> None:
    graph = random_graph(0, 50, (40, 20, 4), 1.0)
    assert tiny_levels(graph, 4, nodes_per_rank=2) == ("mesh_2",)
    assert tiny_levels(graph, 4, nodes_per_rank=6) == ("mesh_1", "mesh_2")
    assert tiny_levels(graph, 4, nodes_per_rank=1000) == ("mesh_1", "mesh_2")
    assert tiny_levels(graph, 1) == ()


def test_save_and_load(tmp_path: Path) -> None:
    graph = random_graph(0, 20, (7, 3), 1.0)
    partition = make_partition(graph, 3, replicate=["mesh_1"])
    partition.save(tmp_path / "p.safetensors")
    again = Partition.load(tmp_path / "p.safetensors")
    assert (again.kind, again.ranks, again.replicated) == ("contiguous", 3, ("mesh_1",))
    assert all(torch.equal(owner, again.owners[name]) for name, owner in partition.owners.items())


def test_plot(graph_and_places: tuple[LamGraph, torch.Tensor], tmp_path: Path) -> None:
    graph, places = graph_and_places
    axes = plot_partition(make_partition(graph, 4, "rcb", places), graph, places)
    assert len(axes.collections) == 1 + graph.num_levels
    axes.figure.savefig(tmp_path / "partition.png")


def test_what_is_refused(tmp_path: Path) -> None:
    graph = random_graph(0, 20, (7,), 1.0)
    good = make_partition(graph, 3)
    (tmp_path / "bad").write_bytes(b"nothing")
    torch_owner = torch.zeros(20, dtype=torch.int64)
    cases = {
        "kind is 'voronoi'": lambda: make_partition(graph, 2, "voronoi"),
        "0 ranks": lambda: make_partition(graph, 0),
        "rcb needs grid_coordinates": lambda: make_partition(graph, 2, "rcb"),
        r"coordinates are \(3, 2\)": lambda: make_partition(graph, 2, "rcb", torch.zeros(3, 2)),
        "can't be replicated": lambda: make_partition(graph, 2, replicate=["grid"]),
        "owned by rank 5 of 3": lambda: Partition("x", 3, {GRID: torch_owner + 5}),
        "int64": lambda: Partition("x", 3, {GRID: torch_owner.float()}),
        "'grid' is missing": lambda: Partition("x", 3, {}),
        "20 nodes of grid, the graph 21": lambda: good.check({"grid": 21, "mesh_0": 7}),
        "7 nodes of mesh_0, the graph 0": lambda: good.check({"grid": 20}),
        "not a readable partition": lambda: Partition.load(tmp_path / "bad"),
    }
    for words, action in cases.items():
        with pytest.raises(InvalidInputError, match=words):
            action()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[LamGraph, torch.Tensor]:
    """The reference: 268 x 238 grid nodes, ``neural_lam.create_graph``'s multiscale mesh."""
    from benchmarks.graphs import reference_graph

    return reference_graph("multiscale", cache=tmp_path_factory.mktemp("reference"))


@pytest.mark.full
@pytest.mark.parametrize("ranks", RANKS)
def test_the_reference_graph(ranks: int, reference: tuple[LamGraph, torch.Tensor]) -> None:
    graph, places = reference
    for kind in ("contiguous", "rcb"):
        partition = make_partition(graph, ranks, kind, places)
        assert imbalance(edge_work(graph, partition, passes_per_step(1))) <= 1.05
    others = [along_a_key(graph, places, ranks, key) for key in ("x", "y", "hilbert")]
    assert traffic(graph, partition) <= 1.15 * min(traffic(graph, other) for other in others)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_the_reference_graph_in_spatial_order(ranks: int, reference: tuple[LamGraph, torch.Tensor]) -> None:
    """Contiguous ranges of a file stored so are nearly as good as rcb."""
    graph, places = reference
    stored = graph.reordered(spatial_order(places))
    boxes = make_partition(stored, ranks)
    assert traffic(stored, boxes) < 0.95 * traffic(graph, make_partition(graph, ranks))
    assert traffic(stored, boxes) <= 1.35 * traffic(graph, make_partition(graph, ranks, "rcb", places))
    assert imbalance(edge_work(stored, boxes, passes_per_step(1))) <= 1.05
