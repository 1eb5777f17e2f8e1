"""neural-lam's own command, ``neural_lam.train_model``, run in this process so that its failures aren't swallowed."""

from __future__ import annotations

from collections.abc import Sequence

from neural_lam import train_model

from neural_lam_anemoi.errors import InvalidInputError


def run_train_model(arguments: Sequence[object]) -> None:
    """Run ``neural_lam.train_model`` with these arguments; unlike the stock command it raises what goes wrong.

    Raises
    ------
    InvalidInputError
        Arguments that contradict each other or the data, in neural-lam's words.
    """
    try:
        train_model.main.__wrapped__([str(argument) for argument in arguments])
    except ValueError as error:
        if not _raised_in(error).startswith("neural_lam."):
            raise
        raise InvalidInputError(" ".join(str(error).split())) from None


def _raised_in(error: Exception) -> str:
    """Name of the module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals["__name__"]) if trace is not None else ""
