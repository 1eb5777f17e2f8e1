"""The same graph on Anemoi's stock GNN mappers and processor, to measure against.

They need a current PyTorch Geometric, neural-lam pins an old one: put one from ``pip install --target`` first on the
path.
"""

from __future__ import annotations

import torch
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from anemoi.models.distributed.shapes import BipartiteGraphShardInfo, GraphShardInfo, get_shard_sizes
from torch import Tensor, nn

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.graph import LamGraph


class StockGNN(nn.Module):
    """Encoder, processor, decoder of Anemoi's GNN models, of the architecture's width and depth, without the rest.

    Parameters
    ----------
    architecture : Architecture
        Of graph_lam.
    graph : LamGraph
        With one mesh level.
    """

    def __init__(self, architecture: Architecture, graph: LamGraph) -> None:
        from anemoi.models.layers.mapper import GNNBackwardMapper, GNNForwardMapper
        from anemoi.models.layers.processor import GNNProcessor

        super().__init__()
        width = architecture.hidden_dim
        shared = {"num_channels": width, "mlp_extra_layers": 0, "edge_dim": 3, "layer_kernels": {}}
        shared |= {"gradient_checkpointing": False, "cpu_offload": False}
        self.encoder = GNNForwardMapper(
            in_channels_src=architecture.grid_input_dim, in_channels_dst=2, num_chunks=1, **shared
        )
        layers = architecture.processor_layers
        self.processor = GNNProcessor(num_layers=layers, num_chunks=1, **shared)
        self.decoder = GNNBackwardMapper(
            in_channels_src=width,
            in_channels_dst=width,
            out_channels_dst=architecture.num_state,
            num_chunks=1,
            **shared,
        )
        self.num_grid = graph.num_grid
        self.mesh = graph.mesh_coordinates[0]
        self.edges = {}
        for name in ("g2m", "m2m_0", "m2g"):
            edges = graph.edge_sets()[name]
            order = torch.argsort(edges.index[1], stable=True)
            self.edges[name] = edges.features[order], edges.index[:, order]

    def forward(self, grid: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
        """Local grid rows ``(local, grid_input_dim)`` to ``(local, num_state)``, as Anemoi's model shards them."""
        grid_sizes = get_balanced_partition_sizes(self.num_grid, group.size())
        mesh_sizes = get_shard_sizes(self.mesh, 0, group)
        start = sum(mesh_sizes[: group.rank()])
        mesh = self.mesh[start : start + mesh_sizes[group.rank()]]
        common = {"model_comm_group": group, "batch_size": 1}
        grid, mesh = self.encoder(
            (grid, mesh), 1, BipartiteGraphShardInfo(grid_sizes, mesh_sizes), *self.edges["g2m"], group, True
        )
        features, index = self.edges["m2m_0"]
        mesh = self.processor(
            mesh, shard_info=GraphShardInfo(mesh_sizes), edge_attr=features, edge_index=index, **common
        )
        return self.decoder(
            (mesh, grid), 1, BipartiteGraphShardInfo(mesh_sizes, grid_sizes), *self.edges["m2g"], group, True
        )
