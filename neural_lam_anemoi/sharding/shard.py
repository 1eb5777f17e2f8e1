"""Turning a whole network into one rank's part of it."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from anemoi.models.distributed.graph import gather_tensor
from torch import Tensor, nn

from ..errors import InvalidInputError
from ..graph import GRID, LamGraph, edge_ends, join_graph, mesh_name
from ..nn.networks import LamNetwork
from .cuts import make_partition, passes_per_step
from .halo import ModelGroup
from .local_edges import LocalEdges
from .partition import Partition
from .parts import edge_part

GRID_BUFFERS = ("grid_static_features",)
"""Buffers with one row per grid node that a network may have."""


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How a network is spread: its ranks, its partition, and where gathered grid rows belong."""

    group: ModelGroup
    partition: Partition
    grid_sizes: list[int]
    from_rank_order: Tensor | None


def shard(
    model: nn.Module,
    group: dist.ProcessGroup | None,
    partition: Partition | str | None = None,
    grid_coordinates: Tensor | None = None,
    replicate: Sequence[str] | None = None,
    overlap: bool = True,
) -> None:
    """Cut ``model``, in place, to this rank's part; every rank of ``group`` calls this with the same arguments.

    Afterwards the model takes and gives the rows `LamNetwork.grid_rows` of every grid field, in that order; rows in
    another order can't be told from right ones. Parameters and state_dict stay what they were. Each rank's loss has to
    be its own contribution, normalised over all nodes: then gradients summed over the ranks are those of the whole
    model, and nothing here scales them. Every rank has to call ``backward`` on something that depends on its output,
    also when it owns no nodes.

    Parameters
    ----------
    model : LamNetwork, or a module with one as its ``network``
        A core network, a drop-in class or an Anemoi model, with the same weights on every rank.
    group : ProcessGroup or None
        The ranks that compute one sample together. With None or a group of one nothing is done.
    partition : {"contiguous", "rcb", "metis"} or Partition, optional
        Who owns which node; ``contiguous`` if not given.
    grid_coordinates : Tensor, optional
        Shape ``(num_grid, 2)``, in the unit of the model's mesh coordinates as stored; ``rcb`` needs them.
    replicate : sequence of str, optional
        Mesh levels to be held whole by every rank, such as ``["mesh_3"]``; if not given, tiny ones are. A `Partition`
        brings its own.
    overlap : bool
        Whether exchanges overlap with computation; otherwise they go one by one through Anemoi's ``halo_exchange``.

    Raises
    ------
    InvalidInputError
        The model isn't one of ours or is sharded already, this rank isn't in the group, the partition doesn't fit, or
        the ranks disagree on graph, partition or weights; on every rank, if it happens on one.
    """
    if group is None:
        return
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise InvalidInputError("shard: this rank is not in the group; call it on the group's ranks only")
    network = _network_in(model)
    if group.size() == 1:
        _require_whole(network)
        return
    members = ModelGroup(group)
    chosen = _on_all_ranks(members, lambda: _choose(network, members, partition, grid_coordinates, replicate))
    require_agreement(members, _fingerprints(network, chosen))
    _replace(network, members, chosen, overlap)


def sharded_twin(network: LamNetwork, group: dist.ProcessGroup) -> LamNetwork:
    """A sharded network with the very parameters of ``network``, which stays whole and can be saved.

    Every rank of ``group`` calls this; arguments and errors are those of `shard`.
    """
    twin = copy.deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})
    shard(twin, group)
    return twin


def gather_grid(x: Tensor, model: nn.Module) -> Tensor:
    """Bring local grid rows together on every rank of the model's group, in the order of the whole grid.

    Parameters
    ----------
    x : Tensor
        Shape ``(..., local rows, features)``.
    model : LamNetwork, or a module with one as its ``network``
        Sharded, or whole: then ``x`` is given back.

    Returns
    -------
    Tensor
        Shape ``(..., num_grid, features)``. A gradient flows back to the rows that a rank put in from what that rank
        does with them, not from what others do.

    Raises
    ------
    InvalidInputError
        If ``x`` doesn't have this rank's rows.
    """
    network = _network_in(model)
    due = len(network.grid_rows)
    if x.ndim < 2 or x.shape[-2] != due:
        raise InvalidInputError(f"gather_grid: the shape is {tuple(x.shape)}; this rank owns {due} rows")
    sharding = network.sharding
    if sharding is None:
        return x
    whole = gather_tensor(x, -2, sharding.grid_sizes, sharding.group.process_group)
    order = sharding.from_rank_order
    return whole if order is None else whole.index_select(-2, order.to(x.device))


def require_equal_weights(model: LamNetwork) -> None:
    """Raise `InvalidInputError` on every rank unless all hold the same weights; for those made after `shard`.

    Every rank of the model's group has to call it.
    """
    if model.sharding is not None:
        require_agreement(model.sharding.group, {"weights": _hash_weights(model)})


def require_agreement(group: ModelGroup, fingerprints: dict[str, str]) -> None:
    """Raise `InvalidInputError` on every rank if a fingerprint isn't the same on all, naming it and the rank."""
    everywhere: list[dict[str, str]] = [{}] * group.size
    dist.all_gather_object(everywhere, fingerprints, group=group.process_group)
    for name in fingerprints:
        for rank, other in enumerate(everywhere):
            if other.get(name) != everywhere[0].get(name):
                raise InvalidInputError(f"shard: the ranks don't agree on the {name}: rank {rank} differs from rank 0")


def _on_all_ranks(group: ModelGroup, choose: Callable[[], Partition]) -> Partition:
    """Run ``choose``; if it is refused on one rank, raise on all: nobody is left waiting."""
    refusal: Exception | None = None
    try:
        chosen = choose()
    except Exception as error:  # whatever it is, the others have to hear of it
        refusal = error
    everywhere = [""] * group.size
    dist.all_gather_object(everywhere, str(refusal or ""), group=group.process_group)
    if refusal is not None:
        raise refusal
    for rank, other in enumerate(everywhere):
        if other:
            raise InvalidInputError(f"shard: refused on rank {rank}: {other}")
    return chosen


def _network_in(model: nn.Module) -> LamNetwork:
    inner = getattr(model, "network", model)
    return inner if isinstance(inner, LamNetwork) else model  # type: ignore[return-value]


def _require_whole(model: LamNetwork) -> None:
    if not isinstance(model, LamNetwork):
        raise InvalidInputError(f"shard: {type(model).__name__} is not one of this package's networks")
    if model.sharding is not None:
        raise InvalidInputError("shard: the model is sharded already; build a new one to shard it differently")


def _choose(
    model: LamNetwork,
    group: ModelGroup,
    partition: Partition | str | None,
    grid_coordinates: Tensor | None,
    replicate: Sequence[str] | None,
) -> Partition:
    _require_whole(model)
    graph = graph_of(model)
    if not isinstance(partition, Partition):
        passes = passes_per_step(model.num_levels, model.architecture)
        scaled = None if grid_coordinates is None else grid_coordinates.cpu() / model.mesh_scaling
        return make_partition(graph, group.size, partition or "contiguous", scaled, passes, replicate)
    if partition.ranks != group.size:
        raise InvalidInputError(f"shard: the partition is for {partition.ranks} ranks, the group has {group.size}")
    partition.check(graph.node_sets())
    return partition if replicate is None else dataclasses.replace(partition, replicated=tuple(replicate))


def graph_of(model: LamNetwork) -> LamGraph:
    """The normalised graph of a whole network, edges sorted by receiver, on the CPU."""
    mesh = tuple(getattr(model, f"mesh_features_{level}").detach().cpu() for level in range(model.num_levels))
    edges = {}
    for name in edge_ends(model.num_levels):
        held = model.edge_set(name)
        edges[name] = torch.stack([held.senders, held.receivers]).cpu(), held.features.cpu()
    return join_graph(model.num_grid, mesh, edges)


def _replace(model: LamNetwork, group: ModelGroup, partition: Partition, overlap: bool) -> None:
    device = model.state_mean.device
    for name, ends in edge_ends(model.num_levels).items():
        whole = model.edge_set(name)
        part = edge_part(torch.stack([whole.senders, whole.receivers]).cpu(), partition, ends, group.rank)
        model.edges[name] = LocalEdges(whole, part, group, overlap)
    for level in range(model.num_levels):
        _cut(model, f"mesh_features_{level}", partition.rows(mesh_name(level), group.rank))
    rows = partition.rows(GRID, group.rank)
    for name in GRID_BUFFERS:
        if isinstance(getattr(model, name, None), Tensor):
            _cut(model, name, rows)
    model.register_buffer("owned_grid_rows", rows.to(device), persistent=False)
    rank_order = torch.argsort(partition.owners[GRID], stable=True)
    ordered = bool((rank_order == torch.arange(len(rank_order))).all())
    back = None if ordered else torch.argsort(rank_order)
    model.sharding = Sharding(group, partition, partition.sizes(GRID), back)


def _cut(model: nn.Module, name: str, rows: Tensor) -> None:
    buffer: Tensor = getattr(model, name)
    setattr(model, name, buffer.index_select(0, rows.to(buffer.device)))


def _fingerprints(model: LamNetwork, partition: Partition) -> dict[str, str]:
    mesh = [getattr(model, f"mesh_features_{level}") for level in range(model.num_levels)]
    edges = (model.edge_set(name) for name in edge_ends(model.num_levels))
    constants = [
        getattr(model, name, None) for name in ("state_mean", "state_std", "diff_mean", "diff_std", *GRID_BUFFERS)
    ]
    return {
        "architecture": json.dumps(model.architecture.to_dict()),
        "graph": _hash([*mesh, *(x for e in edges for x in (e.senders, e.receivers, e.features))]),
        "statistics": _hash(tensor for tensor in constants if isinstance(tensor, Tensor)),
        "partition": _hash(partition.owners.values()) + ",".join(partition.replicated),
        "weights": _hash_weights(model),
    }


def _hash_weights(model: nn.Module) -> str:
    """Of all parameters; of none, if some have no values here yet or are spread over ranks themselves."""
    parameters = list(model.parameters())
    if any(parameter.is_meta or hasattr(parameter, "to_local") for parameter in parameters):
        return "not here"
    return _hash(parameters)


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
