"""Forcing round the time that is predicted: neural-lam's window, and the names its columns have as Anemoi variables."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

UNITS = ((3600, "h"), (60, "min"), (1, "s"))
"""Seconds of each unit, and how it is written in names."""


@dataclasses.dataclass(frozen=True)
class ForcingWindow:
    """Steps of forcing read before and after the time that is predicted."""

    past: int = 1
    future: int = 1

    @property
    def length(self) -> int:
        """Columns per forcing variable."""
        return self.past + self.future + 1

    @property
    def offsets(self) -> range:
        """Steps of the window relative to the last input time t (the predicted time is t+1)."""
        return range(1 - self.past, 2 + self.future)

    def to_dict(self) -> dict[str, int]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ForcingWindow:
        """Inverse of `to_dict`."""
        return cls(**values)


def shifted_name(name: str, offset: int, step: datetime.timedelta) -> str:
    """Name of the copy of a variable that holds, at each date, its value ``offset`` time steps later.

    ``toa_p06h`` for one step of six hours on, ``toa_m06h`` for one back: no plus sign, which Hydra, MLflow and earthkit
    can't bear. Steps that aren't whole hours are counted in minutes, those that aren't whole minutes in seconds.
    """
    seconds = round(step.total_seconds())
    size, unit = next((size, unit) for size, unit in UNITS if seconds % size == 0)
    shift = offset * seconds // size
    return f"{name}_{'m' if shift < 0 else 'p'}{abs(shift):02d}{unit}"


def shifted_names(names: Sequence[str], window: ForcingWindow, step: datetime.timedelta) -> list[str]:
    """Names of all copies, in the order of neural-lam's windowed columns: by variable, then by offset."""
    return [shifted_name(name, offset, step) for name in names for offset in window.offsets]
