"""The three networks as Anemoi models, to be named as ``_target_`` in an Anemoi configuration.

Variables come in physical units (the host's normaliser is set to ``none``): they are standardised here exactly as
neural-lam does, and predictions are turned back. The state at t+1 is read from columns of the dataset at t-1 and t, the
forcing window round t+1 from shifted copies that the dataset holds at t. Everything that makes the model but weights and
graph is the bundle's manifest, in the configuration under ``model.neural_lam``.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, ClassVar

import torch
from anemoi.models.models.base import BaseGraphModel
from torch import Tensor, nn
from torch.distributed.distributed_c10d import ProcessGroup

from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.bundle import Variables, standardisation
from neural_lam_anemoi.bundle_io import statistics_from_manifest
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.forcing import ForcingWindow
from neural_lam_anemoi.hetero import GRID, graph_from_hetero, hetero_parts
from neural_lam_anemoi.nn import networks
from neural_lam_anemoi.nn.clamping import Clamping
from neural_lam_anemoi.nn.static import ReusedEmbeddings
from neural_lam_anemoi.sharding.shard import gather_grid, sharded_twin

from .section import CHECKPOINTING, read_section
from .variables import input_names

INPUT_STEPS = 2


class _LamModel(BaseGraphModel):
    """An Anemoi model round a core network; see the module's docstring.

    Parameters
    ----------
    model_config, data_indices, statistics, n_step_input, n_step_output, graph_data
        As Anemoi's ``AnemoiModelInterface`` passes them.

    Raises
    ------
    InvalidInputError
        The configuration lacks our section, the dataset a variable, or steps, order or graph don't fit.
    """

    network_type: ClassVar[type[networks.LamNetwork]]
    output_order: Tensor
    state_mean: Tensor
    state_std: Tensor
    static_columns: Tensor

    def __init__(
        self,
        *,
        model_config: Any,
        data_indices: dict[str, Any],
        statistics: dict[str, Any],
        n_step_input: int,
        n_step_output: int,
        graph_data: Any,
    ) -> None:
        nn.Module.__init__(self)
        if (n_step_input, n_step_output) != (INPUT_STEPS, 1):
            raise InvalidInputError(
                f"{self.network_type.model} reads {INPUT_STEPS} steps and writes 1, the task asks for "
                f"{n_step_input} and {n_step_output}; set multistep_input: {INPUT_STEPS} and multistep_output: 1"
            )
        self.n_step_input, self.n_step_output = n_step_input, n_step_output
        self.data_indices, self.statistics, self._graph_data = data_indices, statistics, graph_data
        self.dataset_names = self.input_datasets = self.target_datasets = [GRID]
        manifest = read_section(model_config)
        variables = Variables.from_dict(manifest["variables"])
        exact = statistics_from_manifest(manifest)
        self.static_standardisation = [exact[f"static_{kind}"].tolist() for kind in ("mean", "std")]
        values = {name: numbers.float() for name, numbers in exact.items()}
        state = networks.StateStatistics(
            variables.state, *(values[f"state_{name}"] for name in ("mean", "std", "diff_mean", "diff_std"))
        )
        self.network = self.network_type(
            Architecture.from_dict(manifest["architecture"]),
            graph_from_hetero(hetero_parts(graph_data)),
            state,
            Clamping(**manifest["clamping"]),
            save_statistics=True,
        )
        self.network.checkpoint_layers = manifest.get(CHECKPOINTING, False)
        self._register_columns(manifest, variables, values)
        self.register_load_state_dict_pre_hook(_keep_constants)

    def _register_columns(self, manifest: dict[str, Any], variables: Variables, values: dict[str, Tensor]) -> None:
        indices = self.data_indices[GRID].model
        groups = input_names(manifest)
        for name, group in groups.items():
            columns = [_position(indices.input.name_to_index, variable, "an input") for variable in group]
            self.register_buffer(f"{name}_columns", torch.tensor(columns, dtype=torch.int64), persistent=False)
        outputs = indices.output.name_to_index
        places = [_position(outputs, variable, "an output") for variable in variables.state]
        if sorted(places) != list(range(len(outputs))):
            raise InvalidInputError(
                f"the dataset's outputs are {', '.join(outputs)}, the model's are {', '.join(variables.state)}; "
                "declare every other variable as forcing in data.datasets.data.forcing"
            )
        self.register_buffer("output_order", torch.argsort(torch.tensor(places)), persistent=False)
        for category in groups:
            mean, std = standardisation(values, ForcingWindow.from_dict(manifest["forcing_window"]), category)
            self.register_buffer(f"{category}_mean", mean, persistent=False)
            self.register_buffer(f"{category}_std", std, persistent=False)

    def _standardised(self, x: Tensor, category: str) -> Tensor:
        columns: Tensor = getattr(self, f"{category}_columns")
        return (x.index_select(-1, columns) - getattr(self, f"{category}_mean")) / getattr(self, f"{category}_std")

    def _static(self, x: Tensor) -> Tensor:
        """Standardised static fields; in float64 still the float32 numbers that neural-lam's datastores make of them."""
        if x.dtype != torch.float64:
            return self._standardised(x, "static")
        mean, std = (x.new_tensor(values) for values in self.static_standardisation)
        return ((x.index_select(-1, self.static_columns) - mean) / std).float().double()

    def forward(
        self,
        x: dict[str, Tensor],
        *,
        model_comm_group: ProcessGroup | None = None,
        grid_shard_sizes: dict[str, Any] | None = None,
        reused: ReusedEmbeddings | None = None,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Predict the state one step ahead.

        Parameters
        ----------
        x : dict of Tensor
            ``{"data": (batch, 2, ensemble, grid, variables)}`` in physical units.
        model_comm_group : ProcessGroup, optional
            The ranks that compute a sample together; any batch size is fine.
        grid_shard_sizes : dict, optional
            Under ``data`` the grid rows of each rank, if ``x`` holds this rank's alone; then so does the result.
            Otherwise every rank has the whole grid, and gets it back.
        reused : ReusedEmbeddings, optional
            Embeddings kept from step to step, without gradients.

        Returns
        -------
        dict of Tensor
            ``{"data": (batch, 1, ensemble, grid, state variables)}`` in physical units.

        Raises
        ------
        InvalidInputError
            The grid is cut differently from the network's partition.
        """
        network = self._part_of(model_comm_group)
        sizes = (grid_shard_sizes or {}).get(GRID)
        if network.sharding is None or network is self.network:
            return {GRID: self._step(network, x[GRID], reused)}
        if sizes is None:
            return {GRID: gather_grid(self._step(network, network.take_rows(x[GRID]), reused), network)}
        if list(sizes) != network.sharding.grid_sizes:
            due = network.sharding.grid_sizes
            raise InvalidInputError(f"the grid is cut into {list(sizes)} rows, this model needs {due}")
        return {GRID: self._step(network, x[GRID], reused)}

    @property
    def grid_rows(self) -> Tensor:
        """Grid nodes that this rank owns after `neural_lam_anemoi.shard`."""
        return self.network.grid_rows

    def take_rows(self, x: Tensor) -> Tensor:
        """Cut ``x``, shape ``(..., num_grid, features)``, to the rows in `grid_rows`."""
        return self.network.take_rows(x)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to a process group or a forecast: checkpoints are the same on any number of ranks."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_parts", "_reused")}

    def _part_of(self, group: ProcessGroup | None) -> networks.LamNetwork:
        """The network, or its sharded twin for ``group``: made when first asked for, on the device it is on then."""
        if group is None or group.size() == 1:
            return self.network
        parts = self.__dict__.setdefault("_parts", weakref.WeakKeyDictionary())
        if group not in parts or parts[group].state_mean.device != self.state_mean.device:
            parts.clear()
            parts[group] = sharded_twin(self.network, group)
        return parts[group]

    def predict_step(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """One step of a forecast, as Anemoi's own, with embeddings of mesh and edges kept for the next.

        ``ANEMOI_INFERENCE_NUM_CHUNKS``, or ``…_MAPPER`` (between grid and mesh) and ``…_PROCESSOR``, say in how many
        parts messages are computed; more need less memory.
        """
        reused = self.__dict__.setdefault("_reused", ReusedEmbeddings())
        return super().predict_step(*args, **kwargs, reused=reused)

    def _step(self, network: networks.LamNetwork, inputs: Tensor, reused: ReusedEmbeddings | None) -> Tensor:
        static = None
        if reused is not None:
            static = reused.get(network)
            network.chunk_edges(grid=_inference_chunks("MAPPER"), mesh=_inference_chunks("PROCESSOR"))
        batch, _, ensemble, grid, _ = inputs.shape
        older, newer = inputs.transpose(1, 2).reshape(batch * ensemble, INPUT_STEPS, grid, -1).unbind(1)
        state, _ = network.step(
            self._standardised(newer, "state"),
            self._standardised(older, "state"),
            self._standardised(newer, "forcing"),
            self._static(newer),
            static,
        )
        physical = state.to(inputs.dtype) * self.state_std + self.state_mean
        return physical[..., self.output_order].reshape(batch, ensemble, 1, grid, -1).transpose(1, 2)

    def fill_metadata(self, md_dict: dict[str, Any]) -> None:
        """Write the input's shape into the checkpoint's metadata, as Anemoi's own models do."""
        md_dict["metadata_inference"][GRID]["shapes"] = {
            "variables": len(self.data_indices[GRID].model.input.name_to_index),
            "input_timesteps": self.n_step_input,
            "ensemble": 1,
            "grid": None,
        }

    def _build_networks(self, model_config: Any) -> None:
        raise NotImplementedError("the network is built from model.neural_lam")

    def _assemble_input(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("inputs are assembled by the core network")

    def _assemble_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("outputs are assembled by the core network")


class GraphLAM(_LamModel):
    """graph_lam for Anemoi."""

    network_type = networks.GraphLAM


class HiLAM(_LamModel):
    """hi_lam for Anemoi."""

    network_type = networks.HiLAM


class HiLAMParallel(_LamModel):
    """hi_lam_parallel for Anemoi."""

    network_type = networks.HiLAMParallel


MODELS: dict[str, type[_LamModel]] = {m.network_type.model: m for m in (GraphLAM, HiLAM, HiLAMParallel)}


def _inference_chunks(part: str) -> int:
    """What Anemoi's variables of the environment ask for."""
    name = "ANEMOI_INFERENCE_NUM_CHUNKS"
    given = os.environ.get(f"{name}_{part}") or os.environ.get(name, "1")
    if not given.isdecimal() or int(given) < 1:
        raise InvalidInputError(f"{name} or {name}_{part} is {given!r}; it must be a whole number from 1 on")
    return int(given)


def _keep_constants(model: _LamModel, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """A checkpoint's statistics and limits give way to the configuration's, as its means and spreads do anyway."""
    for name, value in model.network.named_buffers():
        if f"{prefix}network.{name}" in state_dict:
            state_dict[f"{prefix}network.{name}"] = value


def _position(name_to_index: dict[str, int], variable: str, role: str) -> int:
    if variable not in name_to_index:
        have = ", ".join(name_to_index)
        raise InvalidInputError(f"variable {variable} is {role} of the model, but the dataset gives {have}")
    return name_to_index[variable]
