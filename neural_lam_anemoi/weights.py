"""Reading torch files without running anything that is in them.

A torch file is a pickle beside raw tensor data, and a pickle is a program. Here it may build containers, numbers and
tensors; every other class or function it names becomes an inert `Stub` that only remembers what it was given.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import InvalidInputError

DIRECTORY = 0x10
"""Bit of a zip entry's external attributes."""
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What pickle, zipfile and torch raise at damaged files."""


class Stub:
    """Stands in for an object of a class that is not on the list of harmless ones.

    Attributes
    ----------
    stub_name : str
        ``module.name`` of the class (set on a subclass made for it).
    stub_args : tuple
        Arguments it would have been called with.
    stub_state : object
        What its ``__setstate__`` would have got, or None.
    stub_items : list
        Elements a list-like, or (key, value) pairs a dict-like object was filled with.
    """

    stub_name = ""

    def __init__(self, *args: Any) -> None:
        self.stub_args = args
        self.stub_state: Any = None
        self.stub_items: list[Any] = []

    def __new__(cls, *args: Any) -> Stub:
        instance = super().__new__(cls)
        Stub.__init__(instance, *args)
        return instance

    def __setstate__(self, state: Any) -> None:
        self.stub_state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.stub_items.append((key, value))

    def append(self, item: Any) -> None:
        """Remember one element."""
        self.stub_items.append(item)

    def extend(self, items: Any) -> None:
        """Remember several elements."""
        self.stub_items.extend(items)

    def __repr__(self) -> str:
        return f"<stand-in for {self.stub_name}>"

    def __hash__(self) -> int:
        return id(self)


def stub_type(module: str, name: str) -> type[Stub]:
    """The stand-in class for ``module.name``."""
    return type(name, (Stub,), {"stub_name": f"{module}.{name}"})


def _harmless_globals() -> dict[tuple[str, str], Any]:
    """What a file may name: tensor and array rebuilding, dtypes, plain containers. None of it can reach outside."""
    import torch._utils as rebuild

    table: dict[tuple[str, str], Any] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch", "Size"): torch.Size,
        ("torch", "device"): torch.device,
        ("torch", "Tensor"): torch.Tensor,
        ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
        ("torch._utils", "_rebuild_tensor_v2"): rebuild._rebuild_tensor_v2,
        ("torch._utils", "_rebuild_tensor"): rebuild._rebuild_tensor,
        ("torch._utils", "_rebuild_parameter"): rebuild._rebuild_parameter,
        ("torch.serialization", "_get_layout"): torch.serialization._get_layout,  # type: ignore[attr-defined]
        ("builtins", "set"): set,
        ("builtins", "frozenset"): frozenset,
        ("builtins", "complex"): complex,
        ("builtins", "bytearray"): bytearray,
        ("builtins", "slice"): slice,
        ("_codecs", "encode"): _encode_latin1,
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
    }
    for package in ("numpy.core.multiarray", "numpy._core.multiarray"):
        table[package, "_reconstruct"] = _reconstruct_array
        table[package, "scalar"] = _rebuild_scalar
    for name in dir(torch):
        if isinstance(getattr(torch, name), torch.dtype) or name.endswith("Storage"):
            table["torch", name] = getattr(torch, name)
    table["torch.storage", "UntypedStorage"] = torch.UntypedStorage
    return table


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in encoding {encoding!r}")
    return text.encode("latin1")


def _reconstruct_array(array_type: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if array_type is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("an array of a foreign kind")
    return np.ndarray(shape, dtype)


def _rebuild_scalar(dtype: np.dtype, data: Any = None) -> Any:
    if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(data, bytes):
        raise pickle.UnpicklingError("a scalar of a foreign kind")
    return np.frombuffer(data, dtype=dtype, count=1)[0]


_HARMLESS = _harmless_globals()


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)  # pickle's names from Python 2
        return _HARMLESS.get((module, name)) or stub_type(module, name)


class _SafePickle:
    """What ``torch.load`` asks of a pickle module, restricted to `_SafeUnpickler`."""

    __name__ = "neural_lam_anemoi.weights"
    Unpickler = _SafeUnpickler
    UnpicklingError = pickle.UnpicklingError

    @staticmethod
    def load(file: Any, **kwargs: Any) -> Any:
        """Unpickle from an open file (torch's legacy format)."""
        kwargs.pop("encoding", None)
        return _SafeUnpickler(file, encoding="utf-8", **kwargs).load()


def read_torch_file(path: Path) -> Any:
    """Read what ``torch.save`` wrote, on the CPU, executing nothing.

    Parameters
    ----------
    path : Path
        Zip-based or legacy torch file.

    Returns
    -------
    object
        Containers, numbers, arrays, tensors, and `Stub` objects for everything else.

    Raises
    ------
    InvalidInputError
        The file is missing, damaged or no torch file.
    """
    if not path.is_file():
        raise InvalidInputError(f"{path}: no such file")
    _check_zip(path)
    try:
        return torch.load(path, map_location="cpu", pickle_module=_SafePickle(), weights_only=False)
    except DAMAGE as error:
        raise InvalidInputError(f"{path}: not a readable torch file ({_first_line(error)})") from None


def _check_zip(path: Path) -> None:
    """Verify the checksums of a zip-based file: torch.load alone lets a flipped bit pass."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip() or _contradicting_entry(archive)
    except DAMAGE as error:
        raise InvalidInputError(f"{path}: damaged archive ({_first_line(error)}); get the file anew") from None
    if damaged is not None:
        raise InvalidInputError(f"{path}: damaged, the checksum of {damaged} is wrong; get the file anew")


def _contradicting_entry(archive: zipfile.ZipFile) -> str | None:
    """An entry that torch would read otherwise than zipfile did: sizes that differ, or marked as a directory."""
    for entry in archive.infolist():
        stored = entry.compress_type == zipfile.ZIP_STORED
        if (stored and entry.file_size != entry.compress_size) or entry.external_attr & DIRECTORY:
            return entry.filename
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def find_stub_state(value: Any) -> dict[str, Any]:
    """Attributes of a stand-in: its state, if that is a plain dict; otherwise empty."""
    if isinstance(value, Stub) and isinstance(value.stub_state, dict):
        return value.stub_state
    return {}
