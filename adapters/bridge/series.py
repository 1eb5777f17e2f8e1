"""A datastore's splits as one time series, read one date at a time."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.forcing import ForcingWindow

SPLITS = ("train", "val", "test")


@dataclasses.dataclass(frozen=True)
class Interval:
    """First and last date of a split, both included."""

    start: np.datetime64
    end: np.datetime64


class Series:
    """State and forcing of an analysis-type datastore on a regular sequence of dates.

    Parameters
    ----------
    datastore : object
        neural-lam's.
    member : int, optional
        Which member of an ensemble.

    Attributes
    ----------
    dates : ndarray
        Every date from the first to the last, datetime64[s]; those that no split has are missing.
    missing : ndarray of bool
        Which dates are.

    Raises
    ------
    InvalidInputError
        A forecast-type datastore, an ensemble without ``member``, or times that aren't multiples of the time step apart.
    """

    def __init__(self, datastore: Any, member: int | None = None) -> None:
        _check_kind(datastore, member)
        self.step: datetime.timedelta = datastore.step_length
        self._member = member
        self._state = {split: datastore.get_dataarray("state", split) for split in SPLITS}
        self._forcing = {split: datastore.get_dataarray("forcing", split) for split in SPLITS}
        self.has_forcing = self._forcing["train"] is not None
        self.split_dates = {
            split: values["time"].values.astype("datetime64[s]") for split, values in self._state.items()
        }
        self.dates = self._regular_dates()
        self._place = {
            date: (split, index) for split in SPLITS for index, date in enumerate(self.split_dates[split].tolist())
        }
        self.missing = np.array([date not in self._place for date in self.dates.tolist()])
        self.forcing_row = functools.lru_cache(maxsize=16)(self._read_forcing)

    def _regular_dates(self) -> NDArray[np.datetime64]:
        known = np.unique(np.concatenate(list(self.split_dates.values())))
        step = np.timedelta64(self.step, "s")
        if np.any((known - known[0]) % step != np.timedelta64(0)):
            raise InvalidInputError(f"the datastore's times aren't multiples of its time step ({self.step}) apart")
        return np.arange(known[0], known[-1] + step, step)

    def state_row(self, index: int) -> NDArray[np.float32]:
        """State at a date that isn't missing: shape ``(num_state, num_grid)``."""
        split, place = self._place[self.dates[index].item()]
        return self._row(self._state[split], place, "state")

    def _read_forcing(self, index: int) -> NDArray[np.float32]:
        split, place = self._place[self.dates[index].item()]
        return self._row(self._forcing[split], place, "forcing")

    def window_rows(self, index: int, window: ForcingWindow) -> NDArray[np.float32]:
        """Windowed forcing for a date as last input: ``(num_forcing * window.length, num_grid)``.

        By variable, then by offset. Beyond the end of the data (or a gap) the nearest value is held; such a window is
        part of no sample.
        """
        rows = [self.forcing_row(self._nearest(index, offset)) for offset in window.offsets]
        return np.stack(rows, axis=1).reshape(-1, rows[0].shape[-1])

    def _nearest(self, index: int, offset: int) -> int:
        """The date ``offset`` steps from ``index``, or the last one before a missing one on the way."""
        direction = 1 if offset > 0 else -1
        place = index
        for _ in range(abs(offset)):
            beyond = place + direction
            if not 0 <= beyond < len(self.dates) or self.missing[beyond]:
                break
            place = beyond
        return place

    def _row(self, values: Any, place: int, category: str) -> NDArray[np.float32]:
        values = values.isel(time=place)
        if "ensemble_member" in values.dims:
            values = values.isel(ensemble_member=self._member)
        return values.transpose(f"{category}_feature", "grid_index").values.astype(np.float32)

    def sample_interval(self, split: str, window: ForcingWindow) -> Interval:
        """Dates of a split that make exactly neural-lam's samples of it: the first as input, the last as target."""
        dates = self.split_dates[split]
        first, last = max(0, window.past - 2), len(dates) - 1 - window.future
        if last - first < 2:
            raise InvalidInputError(
                f"the {split} split has {len(dates)} dates, too few for one sample with this window"
            )
        return Interval(dates[first], dates[last])


def _check_kind(datastore: Any, member: int | None) -> None:
    if datastore.is_forecast:
        raise InvalidInputError(
            "the datastore holds forecasts; supported are datastores of analyses (one value per time), "
            "such as those of mllam-data-prep with a time dimension"
        )
    if datastore.is_ensemble and member is None:
        raise InvalidInputError("the datastore holds an ensemble; choose one member with --member")
    if not datastore.is_ensemble and member is not None:
        raise InvalidInputError("the datastore holds no ensemble; leave --member out")
