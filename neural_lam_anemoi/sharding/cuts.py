"""Ways to cut a graph for R ranks: contiguous ranges of grid rows, recursive coordinate bisection, METIS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from torch import Tensor

from ..architecture import Architecture
from ..errors import InvalidInputError
from ..graph import GRID, EdgeSet, LamGraph, edge_ends, mesh_name
from .partition import Partition

KINDS = ("contiguous", "rcb", "metis")
DEFAULT_PROCESSOR_LAYERS = 4
REPLICATED_BELOW = 4
"""Mesh nodes per rank under which a level is replicated unless the caller says otherwise: more would cost traffic."""
TOLERANCE = 0.03
"""Share of a rank's work by which rcb may miss perfect balance to cut where little is exchanged."""
MAY_FOLLOW = 1.04
"""Work of the busiest rank over the mean up to which mesh nodes simply go where their nearest grid node is."""
EDGE_COST, RECEIVER_COST, SENDER_COST, GRID_COST = 2.0, 4.0, 1.0, 6.0
"""Multiplications per pass in units of hidden_dim squared, for MLPs with one hidden layer."""


def passes_per_step(levels: int, architecture: Architecture | None = None) -> dict[str, int]:
    """How often a network passes messages along each edge set in one step; without one, four layers are assumed."""
    layers = architecture.processor_layers if architecture else DEFAULT_PROCESSOR_LAYERS
    sweeps = 2 if architecture and architecture.model == "hi_lam" else 1
    passes = {"g2m": 1, "m2g": 1} | {f"m2m_{level}": sweeps * layers for level in range(levels)}
    return passes | {f"mesh_{way}_{level}": layers + 1 for way in ("up", "down") for level in range(levels - 1)}


def make_partition(
    graph: LamGraph,
    ranks: int,
    kind: str = "contiguous",
    grid_coordinates: Tensor | None = None,
    passes: Mapping[str, int] | None = None,
    replicate: Sequence[str] | None = (),
) -> Partition:
    """Cut a graph.

    Parameters
    ----------
    graph : LamGraph
        Any graph of this package; edges in any order.
    ranks : int
        Number of parts.
    kind : {"contiguous", "rcb", "metis"}
        ``contiguous``: balanced ranges of grid rows, Anemoi's sizes; mesh nodes go where their nearest grid node is or,
        where that isn't balanced, each level is ordered like the grid and cut by itself. ``rcb``: all node sets are cut
        by the same planes, balanced by work. ``metis``: least communication volume; needs the extra ``metis``.
    grid_coordinates : Tensor, optional
        Shape ``(num_grid, 2)``, in the unit of the mesh coordinates; ``rcb`` needs them.
    passes : mapping of str to int, optional
        Uses of each edge set in a step, from `passes_per_step`.
    replicate : sequence of str, optional
        Mesh levels to be held whole by every rank; None lets `tiny_levels` choose.

    Raises
    ------
    InvalidInputError
        An unknown kind, fewer than one rank, or coordinates that are missing or don't fit.
    """
    if kind not in KINDS:
        raise InvalidInputError(f"partition: kind is {kind!r}; use one of {', '.join(KINDS)}")
    if ranks < 1:
        raise InvalidInputError(f"partition: {ranks} ranks; at least 1 is needed")
    if grid_coordinates is not None and tuple(grid_coordinates.shape) != (graph.num_grid, 2):
        shape = tuple(grid_coordinates.shape)
        raise InvalidInputError(f"partition: grid coordinates are {shape}; the graph needs ({graph.num_grid}, 2)")
    passes = passes or passes_per_step(graph.num_levels)
    if kind == "contiguous":
        owners = _contiguous(graph, ranks, node_work(graph, passes))
    elif kind == "rcb":
        owners = _bisected(graph, ranks, passes, grid_coordinates)
    else:
        owners = _metis(graph, ranks, node_work(graph, passes))
    return Partition(kind, ranks, owners, tiny_levels(graph, ranks) if replicate is None else tuple(replicate))


def tiny_levels(graph: LamGraph, ranks: int, nodes_per_rank: int = REPLICATED_BELOW) -> tuple[str, ...]:
    """Coarse levels with so few nodes that exchanging them takes longer than computing them everywhere.

    Only levels above the finest are meant, and only with everything above them.
    """
    if ranks == 1:
        return ()
    return tuple(
        mesh_name(level)
        for level in range(1, graph.num_levels)
        if all(nodes < nodes_per_rank * ranks for nodes in graph.num_mesh[level:])
    )


def node_work(graph: LamGraph, passes: Mapping[str, int]) -> dict[str, Tensor]:
    """Work per step that comes with owning each node, per node set ``(nodes,)`` float64."""
    sets = graph.node_sets()
    work = {name: torch.zeros(nodes, dtype=torch.float64) for name, nodes in sets.items()}
    work[GRID] += GRID_COST
    edge_sets = graph.edge_sets()
    for name, (sender, receiver) in edge_ends(graph.num_levels).items():
        into = torch.bincount(edge_sets[name].index[1], minlength=sets[receiver])
        work[receiver] += passes[name] * (EDGE_COST * into + RECEIVER_COST)
        work[sender] += passes[name] * SENDER_COST
    return work


def cut_in_order(order: Tensor, work: Tensor, ranks: int) -> Tensor:
    """Owner of every node when ``order`` is cut into ``ranks`` pieces of equal work; both ``(nodes,)``."""
    owner = torch.empty(len(order), dtype=torch.int64)
    ordered = work[order]
    total = ordered.cumsum(0)
    middle = (total - ordered / 2) / total[-1] if len(order) else total
    owner[order] = (middle * ranks).long().clamp(max=ranks - 1)
    return owner


def spatial_order(coordinates: Tensor, most_ranks: int = 1024) -> Tensor:
    """An order of grid nodes in which contiguous ranges are boxes of recursive bisection.

    Parameters
    ----------
    coordinates : Tensor
        Shape ``(num_grid, 2)``; no two nodes in one place.
    most_ranks : int
        Up to so many ranks; for a power of two the balanced ranges are boxes, but for a node where sizes are uneven.

    Returns
    -------
    Tensor
        The nodes in their new order, ``(num_grid,)`` int64: the same for any order in which they come.
    """
    by_y = torch.argsort(coordinates[:, 1], stable=True)
    order = by_y[torch.argsort(coordinates[by_y, 0], stable=True)]
    parts = 1
    while parts < min(most_ranks, len(order)):
        pieces = order.split(get_balanced_partition_sizes(len(order), parts))
        order = torch.cat([_along_longer_extent(coordinates, piece) for piece in pieces])
        parts *= 2
    return order


def _along_longer_extent(coordinates: Tensor, nodes: Tensor) -> Tensor:
    places = coordinates[nodes]
    axis = int((places.amax(0) - places.amin(0)).argmax())
    return nodes[torch.argsort(places[:, axis], stable=True)]


def _contiguous(graph: LamGraph, ranks: int, work: dict[str, Tensor]) -> dict[str, Tensor]:
    sizes = torch.tensor(get_balanced_partition_sizes(graph.num_grid, ranks))
    followed = {GRID: torch.repeat_interleave(torch.arange(ranks), sizes)}
    cut = dict(followed)
    below = followed[GRID]
    for name, nodes, into, out_of in _mesh_levels(graph):
        nearest = _value_of_nearest(torch.arange(len(below), dtype=torch.float64), into, out_of, nodes)
        followed[name] = below = below[nearest.long().clamp(max=len(below) - 1)]
    if _is_balanced(followed, work, ranks):
        return followed
    position = torch.arange(graph.num_grid, dtype=torch.float64)
    for name, nodes, into, out_of in _mesh_levels(graph):
        position = _value_of_nearest(position, into, out_of, nodes)
        cut[name] = cut_in_order(torch.argsort(position, stable=True), work[name], ranks)
    return cut


def _mesh_levels(graph: LamGraph) -> Iterator[tuple[str, int, EdgeSet, EdgeSet]]:
    """Of every level its name, its number of nodes, and the edges from below and to below."""
    edges = zip((graph.g2m, *graph.mesh_up), (graph.m2g, *graph.mesh_down), strict=True)
    for level, (into, out_of) in enumerate(edges):
        yield mesh_name(level), graph.num_mesh[level], into, out_of


def _is_balanced(owners: dict[str, Tensor], work: dict[str, Tensor], ranks: int) -> bool:
    each = sum(torch.zeros(ranks, dtype=torch.float64).index_add_(0, owners[name], work[name]) for name in owners)
    assert isinstance(each, Tensor)
    return bool(each.max() <= MAY_FOLLOW * each.mean())


def _value_of_nearest(values: Tensor, into: EdgeSet, out_of: EdgeSet, nodes: int) -> Tensor:
    """Give every node its nearest neighbour's value one level below; those without one are spread in their own order."""
    span = max(len(values), 1)
    found = torch.arange(nodes, dtype=torch.float64) * (span / max(nodes, 1))
    for own, below, length in (
        (out_of.index[0], out_of.index[1], out_of.features[:, 0]),
        (into.index[1], into.index[0], into.features[:, 0]),
    ):
        by_length = torch.argsort(length, descending=True, stable=True)  # the shortest is written last
        order = by_length[torch.argsort(own[by_length], stable=True)]
        last = torch.cat([own[order][1:] != own[order][:-1], torch.ones(min(len(own), 1), dtype=torch.bool)])
        found[own[order][last]] = values[below[order][last]]
    return found


def _bisected(graph: LamGraph, ranks: int, passes: Mapping[str, int], grid: Tensor | None) -> dict[str, Tensor]:
    if grid is None:
        raise InvalidInputError("partition: rcb needs grid_coordinates, (num_grid, 2) in the unit of the mesh's")
    sizes = graph.node_sets()
    places = torch.cat([grid.double(), *(level[:, :2].double() for level in graph.mesh_coordinates)])
    work = torch.cat(list(node_work(graph, passes).values()))
    owner = bisect(places, work, ranks, joined_edges(graph, passes))
    return dict(zip(sizes, owner.split(list(sizes.values())), strict=True))


def joined_edges(graph: LamGraph, passes: Mapping[str, int]) -> list[tuple[Tensor, int]]:
    """Every edge set with its passes, nodes numbered through all node sets in the order of `LamGraph.node_sets`."""
    sizes = graph.node_sets()
    start = dict(zip(sizes, torch.tensor([0, *sizes.values()]).cumsum(0).tolist(), strict=False))
    edge_sets = graph.edge_sets()
    return [
        (edge_sets[name].index + torch.tensor([[start[sender]], [start[receiver]]]), passes[name])
        for name, (sender, receiver) in edge_ends(graph.num_levels).items()
    ]


def bisect(places: Tensor, work: Tensor, ranks: int, edges: Sequence[tuple[Tensor, int]] = ()) -> Tensor:
    """Recursive coordinate bisection: halve by work along one coordinate until every rank has its part.

    Parameters
    ----------
    places, work : Tensor
        Shapes ``(nodes, 2)`` and ``(nodes,)``.
    ranks : int
        Number of parts; odd numbers are split in proportion.
    edges : sequence of (Tensor, int), optional
        Edges ``(2, E)`` with the number of their uses. With them a cut may leave the exact half, by `TOLERANCE` over
        all cuts, for the place and the coordinate where the fewest rows cross it; without, it is exact and across the
        longer extent.

    Returns
    -------
    Tensor
        Owner of each node, ``(nodes,)`` int64.
    """
    owner = torch.zeros(len(places), dtype=torch.int64)
    slack = TOLERANCE / max(ranks - 1, 1).bit_length() if edges else 0.0
    todo = [(torch.arange(len(places)), list(edges), 0, ranks)]
    while todo:
        nodes, inside, first, parts = todo.pop()
        if parts == 1 or len(nodes) == 0:
            owner[nodes] = first
            continue
        lower = parts // 2
        nodes, cut = _best_cut(places[nodes], work[nodes], nodes, inside, lower / parts, slack / parts)
        side = torch.zeros(len(places), dtype=torch.int8)
        side[nodes[:cut]], side[nodes[cut:]] = 1, 2
        for which, half, start, count in (
            (1, nodes[:cut], first, lower),
            (2, nodes[cut:], first + lower, parts - lower),
        ):
            kept = [(index[:, (side[index] == which).all(0)], uses) for index, uses in inside]
            todo.append((half, kept, start, count))
    return owner


def _best_cut(
    places: Tensor, work: Tensor, nodes: Tensor, edges: Sequence[tuple[Tensor, int]], share: float, slack: float
) -> tuple[Tensor, int]:
    """``nodes`` in the order along the better coordinate, and how many of them are below the cut."""
    extent = places.amax(0) - places.amin(0)
    axes = [int(extent.argmax())] if not edges or extent.min() < extent.max() / 2 else [0, 1]
    best: tuple[float, Tensor, int] | None = None
    for axis in axes:
        order = torch.argsort(places[:, axis], stable=True)
        total = work[order].cumsum(0)
        middle = total - work[order] / 2
        low, high = (int((middle < total[-1] * (share + s)).sum()) for s in (-slack, slack))
        crossing = _rows_crossing(nodes[order], edges)[low : high + 1]
        cut = low + int(crossing.argmin()) if edges else low
        cost = float(crossing.min()) if edges else 0.0
        if best is None or cost < best[0]:
            best = cost, nodes[order], cut
    assert best is not None
    return best[1], best[2]


def _rows_crossing(order: Tensor, edges: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Rows that are exchanged when ``order`` is cut before each of its positions: ``(nodes + 1,)`` float64."""
    crossing = torch.zeros(len(order) + 2, dtype=torch.float64)
    if not edges:
        return crossing[:-1]
    position = torch.zeros(int(order.max()) + 1, dtype=torch.int64)
    position[order] = torch.arange(len(order))
    for index, uses in edges:
        sender, receiver = position[index]
        reach = torch.arange(len(order))
        lowest = reach.scatter_reduce(0, sender, receiver, "amin")
        highest = reach.scatter_reduce(0, sender, receiver, "amax")
        crossing.index_add_(0, lowest + 1, torch.full(lowest.shape, float(uses), dtype=torch.float64))
        crossing.index_add_(0, highest + 1, torch.full(highest.shape, -float(uses), dtype=torch.float64))
    return crossing.cumsum(0)[:-1]


def _metis(graph: LamGraph, ranks: int, work: dict[str, Tensor]) -> dict[str, Tensor]:
    try:
        import pymetis
    except ImportError:
        raise InvalidInputError("partition: metis needs pymetis; install neural-lam-anemoi[metis]") from None
    sizes = graph.node_sets()
    one_way = torch.cat([index for index, _ in joined_edges(graph, passes_per_step(graph.num_levels))], dim=1)
    nodes = sum(sizes.values())
    both = torch.cat([one_way, one_way.flip(0)], dim=1)
    pairs = torch.unique(both[0][both[0] != both[1]] * nodes + both[1][both[0] != both[1]])
    starts = torch.searchsorted(pairs, torch.arange(nodes + 1) * nodes)
    weights = torch.cat([work[name] for name in sizes]).round().long().tolist()
    options = pymetis.Options(objtype=pymetis.ObjType.VOL, seed=0, contig=0)
    _, owner = pymetis.part_graph(
        ranks, xadj=starts.tolist(), adjncy=(pairs % nodes).tolist(), vweights=weights, recursive=False, options=options
    )
    return dict(zip(sizes, torch.tensor(owner, dtype=torch.int64).split(list(sizes.values())), strict=True))
