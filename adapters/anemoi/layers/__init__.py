"""neural-lam's message passing as processors and mappers of Anemoi's own models; read edges.py, mappers.py in this order.

They are chosen by ``_target_`` in an Anemoi configuration, beside stock ones or without.
"""

from .mappers import (
    InteractionNetBackwardMapper,
    InteractionNetForwardMapper,
    PropagationNetBackwardMapper,
    PropagationNetForwardMapper,
)
from .processors import InteractionNetProcessor, PropagationNetProcessor

__all__ = [
    "InteractionNetBackwardMapper",
    "InteractionNetForwardMapper",
    "InteractionNetProcessor",
    "PropagationNetBackwardMapper",
    "PropagationNetForwardMapper",
    "PropagationNetProcessor",
]
