"""Nested Python values as JSON plus named tensors, and back, without losing types.

What a host keeps beside its weights (argument namespaces, optimizer and loop state) is such a nest. JSON has no tuples,
tensors or objects; each becomes an object with one reserved key, ``$tuple``, ``$tensor``, …. Objects of foreign classes
come as `weights.Stub` and leave as whatever the caller's constructor makes of their recorded name and state.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import InvalidInputError
from .weights import Stub, stub_type

Construct = Callable[[Stub], Any]


def encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Turn ``value`` into JSON values; its tensors and arrays are added to ``tensors`` under new names.

    Raises
    ------
    InvalidInputError
        On a value of a type that has no form here.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return {"$scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, Tensor):
        return {"$tensor": _store(value, tensors)}
    if isinstance(value, np.ndarray):
        return {"$array": _store(torch.from_numpy(np.ascontiguousarray(value)), tensors)}
    if isinstance(value, Stub):
        return {"$object": [value.stub_name, *(encode(part, tensors) for part in _parts(value))]}
    return _encode_container(value, tensors)


def _encode_container(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, torch.Size):
        return {"$size": list(value)}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    for kind, tag in ((tuple, "$tuple"), (set, "$set"), (frozenset, "$frozenset")):
        if isinstance(value, kind):
            items = value if kind is tuple else sorted(value, key=repr)
            return {tag: [encode(item, tensors) for item in items]}
    if isinstance(value, list):
        return [encode(item, tensors) for item in value]
    if isinstance(value, dict):
        pairs = [[encode(key, tensors), encode(item, tensors)] for key, item in value.items()]
        if isinstance(value, OrderedDict):
            return {"$ordered": pairs}
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(pairs)
        return {"$dict": pairs}
    if isinstance(value, type) and issubclass(value, Stub):
        return {"$class": value.stub_name}
    raise InvalidInputError(f"a value of type {type(value).__module__}.{type(value).__name__} can't be kept")


def decode(value: Any, tensors: dict[str, Tensor], construct: Construct | None = None) -> Any:
    """Inverse of `encode`; ``construct`` turns each recorded `Stub` into an object (default: leaves it)."""
    if isinstance(value, list):
        return [decode(item, tensors, construct) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items()), (None, None))
    if not (isinstance(tag, str) and tag.startswith("$")):
        return {key: decode(item, tensors, construct) for key, item in value.items()}

    def inner(part: Any) -> Any:
        return decode(part, tensors, construct)

    decoders: dict[str, Callable[[Any], Any]] = {
        "$float": float,
        "$scalar": lambda c: np.frombuffer(base64.b64decode(c[1]), dtype=np.dtype(c[0]))[0],
        "$tensor": lambda c: tensors[c],
        "$array": lambda c: tensors[c].numpy(),
        "$size": torch.Size,
        "$dtype": lambda c: getattr(torch, c),
        "$bytes": base64.b64decode,
        "$tuple": lambda c: tuple(inner(item) for item in c),
        "$set": lambda c: {inner(item) for item in c},
        "$frozenset": lambda c: frozenset(inner(item) for item in c),
        "$dict": lambda c: {inner(key): inner(item) for key, item in c},
        "$ordered": lambda c: OrderedDict((inner(key), inner(item)) for key, item in c),
        "$class": lambda c: _class(c),
        "$object": lambda c: _object(c[0], [inner(part) for part in c[1:]], construct),
    }
    if tag not in decoders:
        raise InvalidInputError(f"unknown kind of value {tag!r}; it was written by a newer version")
    return decoders[tag](content)


def _parts(stub: Stub) -> tuple[Any, Any, Any]:
    return stub.stub_args, stub.stub_state, stub.stub_items


def _class(name: str) -> type[Stub]:
    return stub_type(*name.rsplit(".", 1))


def _object(name: str, parts: list[Any], construct: Construct | None) -> Any:
    stub = _class(name)(*parts[0])
    stub.stub_state, stub.stub_items = parts[1], parts[2]
    return stub if construct is None else construct(stub)


def _store(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    name = str(len(tensors))
    tensors[name] = tensor.detach().contiguous().clone()
    return name
