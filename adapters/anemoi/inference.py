"""Any Anemoi model, ours or another, as it stands in an inference checkpoint: to be run, not to be converted."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anemoi.utils.checkpoints import load_metadata
from anemoi.utils.dates import frequency_to_timedelta
from numpy.typing import NDArray
from torch import Tensor

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.weights import read_torch_file

from .checkpoint import is_inference_checkpoint, is_training_checkpoint


@dataclasses.dataclass(frozen=True)
class InferenceModel:
    """A model and what it says about itself.

    Attributes
    ----------
    interface : torch.nn.Module
        Anemoi's ``AnemoiModelInterface``.
    dataset : str
        Name of the one dataset it reads and writes.
    inputs, outputs : dict of int
        Place of each variable among the columns.
    input_steps : int
        Dates it reads; the last is the start of the forecast.
    time_step : timedelta
    latitudes, longitudes : ndarray
        Of its grid nodes, degrees, ``(num_grid,)``.
    """

    interface: Any
    dataset: str
    inputs: dict[str, int]
    outputs: dict[str, int]
    input_steps: int
    time_step: datetime.timedelta
    latitudes: NDArray[np.float64]
    longitudes: NDArray[np.float64]

    def step(self, x: Tensor) -> Tensor:
        """One step through Anemoi's own ``predict_step``.

        Parameters
        ----------
        x : Tensor
            Shape ``(B, input_steps, num_grid, inputs)``, physical units.

        Returns
        -------
        Tensor
            Shape ``(B, num_grid, outputs)``, physical units.
        """
        prediction: Tensor = self.interface.predict_step({self.dataset: x})[self.dataset]
        return prediction.reshape(len(x), x.shape[2], -1)


def load_inference_model(path: Path) -> InferenceModel:
    """Load a model to run it. Like ``anemoi-inference`` this executes what is in the file: it has to be trusted.

    Raises
    ------
    InvalidInputError
        The file is no inference checkpoint (found out before anything in it is executed), its classes aren't installed,
        or the model reads several datasets or predicts several steps at once.
    """
    content = read_torch_file(path)
    if is_training_checkpoint(content):
        raise InvalidInputError(f"{path}: a training checkpoint; give the inference-last.ckpt that stands beside it")
    if not is_inference_checkpoint(content):
        raise InvalidInputError(f"{path}: not an Anemoi inference checkpoint")
    del content
    try:
        metadata, arrays = load_metadata(str(path), supporting_arrays=True)
        described = metadata["metadata_inference"]
        (dataset,) = described["dataset_names"]
        steps, columns = described[dataset]["timesteps"], described[dataset]["data_indices"]
        places = arrays.get(dataset, arrays)
        latitudes, longitudes = (np.asarray(places[name], dtype=np.float64) for name in ("latitudes", "longitudes"))
    except (LookupError, TypeError, ValueError) as error:
        reason = f"its metadata isn't that of one dataset with a grid ({type(error).__name__}: {error})"
        raise InvalidInputError(f"{path}: {reason}") from None
    if len(steps["output_relative_date_indices"]) != 1:
        raise InvalidInputError(f"{path}: the model predicts several steps at once; supported is one")
    return InferenceModel(
        interface=_unpickle(path),
        dataset=dataset,
        inputs=columns["input"],
        outputs=columns["output"],
        input_steps=len(steps["input_relative_date_indices"]),
        time_step=frequency_to_timedelta(steps["timestep"]),
        latitudes=latitudes,
        longitudes=longitudes,
    )


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=False).eval()
    except (ImportError, AttributeError) as error:
        remedy = "install what it was trained with; Anemoi's own layers need torch_geometric 2.5 or later"
        raise InvalidInputError(
            f"{path}: not everything that the model needs is installed ({error}); {remedy}"
        ) from None
