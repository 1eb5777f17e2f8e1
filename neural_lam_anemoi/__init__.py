"""neural-lam's limited-area weather models, sharded over many ranks and at home in Anemoi.

Public names are imported when they are first used, so that ``import neural_lam_anemoi`` needs no host framework.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Architecture": ".architecture",
    "InvalidInputError": ".errors",
    "LamGraph": ".graph",
    "GraphLAM": ".adapters.neural_lam.predictors",
    "HiLAM": ".adapters.neural_lam.predictors",
    "HiLAMParallel": ".adapters.neural_lam.predictors",
    "shard": ".sharding.shard",
    "gather_grid": ".sharding.shard",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
