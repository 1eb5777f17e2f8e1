"""Any Anemoi model as a step predictor of neural-lam, so that neural-lam's evaluation, metrics and plots run on it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from neural_lam.models import StepPredictor
from torch import Tensor

from neural_lam_anemoi.adapters.anemoi.inference import InferenceModel
from neural_lam_anemoi.adapters.neural_lam.checkpoint import matching_rows, read_statistics, read_variables
from neural_lam_anemoi.bundle import Variables, standardisation
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.forcing import ForcingWindow, shifted_name

MOST_STEPS = 100
"""How far copies of a forcing are looked for among a model's variables, in steps."""


@dataclasses.dataclass(frozen=True)
class Column:
    """What a column of an Anemoi model holds: a datastore's variable, ``offset`` steps after the date of the row."""

    category: str
    variable: int
    offset: int = 0


def read_columns(model: InferenceModel, variables: Variables, step: datetime.timedelta) -> list[Column]:
    """What the columns of a model's input hold, by the names that ``neural-lam-anemoi dataset`` gives.

    Raises
    ------
    InvalidInputError
        Naming a variable that the datastore doesn't have.
    """
    known = {name: Column("state", place) for place, name in enumerate(variables.state)}
    known |= {name: Column("static", place) for place, name in enumerate(variables.static)}
    for place, name in enumerate(variables.forcing):
        for offset in range(-MOST_STEPS, MOST_STEPS + 1):
            known[shifted_name(name, offset, step)] = Column("forcing", place, offset)
    for name in model.inputs:
        if name not in known:
            have = ", ".join([*variables.state, *variables.forcing, *variables.static])
            raise InvalidInputError(f"the model reads variable {name}, the datastore has {have} (and shifted forcings)")
    return [known[name] for name in sorted(model.inputs, key=model.inputs.__getitem__)]


def forcing_window(columns: Sequence[Column], input_steps: int) -> ForcingWindow:
    """The forcing steps round the predicted time that a model reads at all its dates."""
    offsets = [column.offset for column in columns if column.category == "forcing"] or [1]
    earliest, latest = min(offsets) - (input_steps - 1), max(offsets)
    return ForcingWindow(past=max(0, 1 - earliest), future=max(0, latest - 1))


class AnemoiPredictor(StepPredictor):
    """An Anemoi model, called like a neural-lam model.

    It reads one date or two, and forcings at each of them: more steps than neural-lam's model of the same dataset, see
    `forcing_window`.

    Parameters
    ----------
    datastore : object
        neural-lam's, with the grid nodes that the model was trained on, in any order.
    model : InferenceModel
    num_past_forcing_steps, num_future_forcing_steps : int
        What `forward` is given; at least what `forcing_window` says.

    Raises
    ------
    InvalidInputError
        The model reads or predicts other variables, other grid nodes, another time step, more dates, or more forcing
        steps than these.
    """

    rows: Tensor
    places: Tensor

    def __init__(
        self,
        datastore: Any,
        model: InferenceModel,
        num_past_forcing_steps: int,
        num_future_forcing_steps: int,
        **_options: object,
    ) -> None:
        super().__init__(datastore)
        variables = read_variables(datastore)
        self.window = ForcingWindow(num_past_forcing_steps, num_future_forcing_steps)
        self.columns = read_columns(model, variables, datastore.step_length)
        self._check(datastore, variables, model)
        self.model, self.interface = model, model.interface
        latlons = np.asarray(datastore.get_lat_lon("state"), dtype=np.float64)
        nodes = np.stack([model.longitudes, model.latitudes], axis=1)
        rows = matching_rows(torch.from_numpy(nodes), torch.from_numpy(latlons))
        outputs = torch.tensor([model.outputs[name] for name in variables.state])
        for name, value in (("rows", rows), ("places", torch.argsort(rows)), ("outputs", outputs)):
            self.register_buffer(name, value, persistent=False)
        exact = read_statistics(datastore, variables)
        values = {name: numbers.float() for name, numbers in exact.items()}
        for category in ("state", "forcing"):
            mean, std = standardisation(values, self.window, category)
            self.register_buffer(f"physical_{category}_mean", mean, persistent=False)
            self.register_buffer(f"physical_{category}_std", std, persistent=False)
        self.register_buffer("physical_static", _static_fields(datastore), persistent=False)

    def _check(self, datastore: Any, variables: Variables, model: InferenceModel) -> None:
        missing = [name for name in variables.state if name not in model.outputs]
        if missing:
            raise InvalidInputError(f"the model doesn't predict {', '.join(missing)} of the datastore's state")
        if model.time_step != datastore.step_length:
            raise InvalidInputError(f"the model's step is {model.time_step}, the datastore's {datastore.step_length}")
        if model.input_steps > 2:
            raise InvalidInputError(f"the model reads {model.input_steps} dates; neural-lam's forecasts start from two")
        need = forcing_window(self.columns, model.input_steps)
        if need.past > self.window.past or need.future > self.window.future:
            raise InvalidInputError(
                f"the model reads {need.past} forcing steps before and {need.future} after the predicted time; "
                f"given are {self.window.past} and {self.window.future}"
            )

    def forward(self, prev_state: Tensor, prev_prev_state: Tensor, forcing: Tensor) -> tuple[Tensor, None]:
        """Advance a standardised state by one time step.

        Parameters
        ----------
        prev_state, prev_prev_state : Tensor
            Shape ``(B, num_grid, num_state)``.
        forcing : Tensor
            Shape ``(B, num_grid, num_forcing * window.length)``, by variable, then by step.

        Returns
        -------
        Tensor
            Shape ``(B, num_grid, num_state)``, standardised.
        None
            No spread is predicted.
        """
        mean, std = self.physical_state_mean, self.physical_state_std
        states = [state * std + mean for state in (prev_prev_state, prev_state)]
        fields = {
            "static": self.physical_static.expand(len(forcing), -1, -1),
            "forcing": forcing * self.physical_forcing_std + self.physical_forcing_mean,
        }
        dates = range(1 - self.model.input_steps, 1)
        x = torch.stack([self._row(fields | {"state": states[date + 1]}, date) for date in dates], dim=1)
        prediction = self.model.step(x[:, :, self.rows])[:, self.places]
        return (prediction[..., self.outputs] - mean) / std, None

    def _row(self, fields: dict[str, Tensor], date: int) -> Tensor:
        """All columns at ``date`` steps after the last input, ``(B, num_grid, inputs)``."""
        return torch.stack([fields[column.category][..., self._place(column, date)] for column in self.columns], dim=-1)

    def _place(self, column: Column, date: int) -> int:
        if column.category != "forcing":
            return column.variable
        return column.variable * self.window.length + self.window.offsets.index(date + column.offset)


def _static_fields(datastore: Any) -> Tensor:
    """Static fields in physical units, ``(num_grid, num_static)``."""
    fields = datastore.get_dataarray("static", split=None)
    if fields is None:
        return torch.empty(datastore.num_grid_points, 0)
    return torch.tensor(fields.transpose("grid_index", "static_feature").values, dtype=torch.float32)
