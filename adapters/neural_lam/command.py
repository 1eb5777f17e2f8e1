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
        Arguments that contradict each other, in neural-lam's words.
    """
    main = train_model.main.__wrapped__
    try:
        main([str(argument) for argument in arguments])
    except ValueError as error:
        if _raised_in(error) is not main.__code__:
            raise
        raise InvalidInputError(str(error)) from None


def _raised_in(error: Exception) -> object:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code if trace is not None else None
