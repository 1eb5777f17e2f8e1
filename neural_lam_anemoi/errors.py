"""The one error a user is meant to read."""


class InvalidInputError(ValueError):
    """A file, argument or combination of them that cannot be used.

    The message is one line: what is wrong, where, and what to do about it. The command line prints it and exits with a
    non-zero status; no traceback is shown.
    """
