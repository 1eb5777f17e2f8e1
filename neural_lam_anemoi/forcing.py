"""Forcing round the time that is predicted: neural-lam's window, and the names its columns have as Anemoi variables."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ForcingWindow:
    """Steps of forcing read before and after the time that is predicted."""

    past: int = 1
    future: int = 1

    @property
    def length(self) -> int:
        """Columns per forcing variable."""
        return self.past + self.future + 1
