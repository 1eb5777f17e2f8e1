"""Output files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import InvalidInputError


@contextlib.contextmanager
def complete_or_absent(target: Path, force: bool = False, directory: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; what was written there takes its place when the block succeeds.

    Parameters
    ----------
    target : Path
        File or directory to make.
    force : bool
        Replace an existing one.
    directory : bool
        Yield an empty directory instead of the name of a file that doesn't exist yet.

    Raises
    ------
    InvalidInputError
        If ``target`` exists and ``force`` isn't given, or its parent can't be written to.
    """
    refuse_existing(target, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InvalidInputError(f"{target}: can't be written ({error.strerror}); choose another output") from None
    try:
        made = workplace / target.name
        if directory:
            made.mkdir()
        yield made
        if target.is_dir():  # a file is replaced in one step
            os.replace(target, workplace / "replaced")
        os.replace(made, target)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def refuse_existing(target: Path, force: bool) -> None:
    """Raise `InvalidInputError` if ``target`` exists and may not be replaced."""
    if target.exists() and not force:
        raise InvalidInputError(f"{target}: exists already; use --force to replace it or choose another output")


def sha256_of_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
