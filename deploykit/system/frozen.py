"""Turns values into bytes and back without running what the bytes say: data, arrays, messages, our own dataclasses.

Equal values give equal bytes, so that a hash of them names a question. What two places share is one object again
afterwards, and ``known`` objects are named and not written. It keeps nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["UnfrozenError", "freeze", "thaw"]

_OURS = ("deploykit", "deploykit_")
"""Packages whose dataclasses and enumerations may be named in bytes; nothing else is ever imported or called."""


class UnfrozenError(Exception):
    """A value that cannot be written down, or bytes that say none."""


def freeze(value: object, known: Mapping[str, object] | None = None) -> bytes:
    """The bytes of a value; UnfrozenError for one with a function, an open model or another class inside."""
    writer = _Writer(known or {})
    try:
        head = json.dumps(writer.say(value), separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:  # a set of things without an order, a text that is none
        raise UnfrozenError(str(error)) from error
    sizes = [len(blob) for blob in writer.blobs]
    lengths = json.dumps(sizes).encode()
    return b"".join((struct.pack("<QQ", len(lengths), len(head)), lengths, head, *writer.blobs))


def thaw(data: bytes, known: Mapping[str, object] | None = None) -> Any:
    """The value of the bytes that ``freeze`` gave for the same ``known``; UnfrozenError for any others."""
    try:
        lengths, head = struct.unpack_from("<QQ", data)
        at = 16 + lengths + head
        blobs = []
        for size in json.loads(data[16 : 16 + lengths]):
            blobs.append(data[at : at + size])
            at += size
        return _Reader(known or {}, blobs).hear(json.loads(data[16 + lengths : 16 + lengths + head]))
    except UnfrozenError:
        raise
    except Exception as error:  # whatever damaged bytes lead to, there is no value
        raise UnfrozenError(f"{type(error).__name__}: {error}") from error


class _Writer:
    def __init__(self, known: Mapping[str, object]) -> None:
        self.blobs: list[bytes] = []
        self._seen: dict[int, Any] = {id(item): ["known", name] for name, item in known.items()}
        self._alive: list[object] = []

    def say(self, value: Any) -> Any:
        """A value in JSON: scalars as they are, all others as a list of their kind and what they hold."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._seen:
            return self._seen[id(value)]
        said = self._compound(value)
        if type(value) is not tuple or value:  # the empty tuple is everywhere the same
            self._seen[id(value)] = ["same", len(self._alive)]
            self._alive.append(value)  # as long as it lives nothing else has its id
        return said

    def _compound(self, value: Any) -> list[Any]:
        kind = type(value)
        if kind in (tuple, list):
            return [kind.__name__, [self.say(item) for item in value]]
        if kind in (set, frozenset):
            return [kind.__name__, [self.say(item) for item in sorted(value)]]
        if isinstance(value, Enum):
            return ["enum", _name(kind), value.value]
        if is_dataclass(value):
            return ["data", _name(kind), [self.say(getattr(value, name)) for name in _made_with(kind)]]
        if isinstance(value, Mapping):
            return ["dict", [[self.say(key), self.say(item)] for key, item in value.items()]]
        if isinstance(value, Path):
            return ["path", str(value)]
        if kind is bytes:
            return ["bytes", self._blob(value)]
        return self._foreign(value)

    def _foreign(self, value: Any) -> list[Any]:
        import numpy as np
        from onnx import ModelProto

        if isinstance(value, ModelProto):
            if any(tensor.data_location == tensor.EXTERNAL for tensor in value.graph.initializer):
                raise UnfrozenError("a model whose weights lie elsewhere: its bytes do not say what it computes")
            return ["model", self._blob(value.SerializeToString(deterministic=True))]
        if isinstance(value, np.generic) and value.dtype.kind in "fiub":
            return ["number", value.dtype.str, self._blob(value.tobytes())]
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiubU":
            content = self._blob(np.ascontiguousarray(value).tobytes())
            return ["array", value.dtype.str, list(value.shape), bool(value.flags.writeable), content]
        raise UnfrozenError(f"a value of {type(value).__module__}.{type(value).__qualname__}")

    def _blob(self, content: bytes) -> int:
        self.blobs.append(content)
        return len(self.blobs) - 1


class _Reader:
    def __init__(self, known: Mapping[str, object], blobs: list[bytes]) -> None:
        self._known, self._blobs = known, blobs
        self._seen: list[object] = []

    def hear(self, said: Any) -> Any:
        """The value that was said, in the order in which ``_Writer`` numbers them."""
        if not isinstance(said, list):
            return said
        if said[0] == "known":
            return self._known[said[1]]
        if said[0] == "same":
            return self._seen[said[1]]
        value = _READERS[said[0]](self, *said[1:])
        if type(value) is not tuple or value:
            self._seen.append(value)
        return value

    def _items(self, items: list[Any]) -> list[Any]:
        return [self.hear(item) for item in items]

    def _dict(self, pairs: list[Any]) -> dict[Any, Any]:
        return {self.hear(key): self.hear(item) for key, item in pairs}

    def _data(self, name: str, values: list[Any]) -> Any:
        kind = _class(name)
        if not is_dataclass(kind):
            raise UnfrozenError(f"{name} is no dataclass")
        return kind(**dict(zip(_made_with(kind), self._items(values), strict=True)))

    def _enum(self, name: str, value: Any) -> Any:
        kind = _class(name)
        if not issubclass(kind, Enum):
            raise UnfrozenError(f"{name} is no enumeration")
        return kind(value)

    def _model(self, at: int) -> Any:
        from onnx import ModelProto

        return ModelProto.FromString(self._blobs[at])

    def _array(self, dtype: str, shape: list[int], writeable: bool, at: int) -> Any:
        import numpy as np

        made = np.frombuffer(self._blobs[at], _plain(dtype)).reshape(shape)
        return made.copy() if writeable else made

    def _number(self, dtype: str, at: int) -> Any:
        import numpy as np

        return np.frombuffer(self._blobs[at], _plain(dtype))[0]


_READERS: Mapping[str, Callable[..., Any]] = {
    "tuple": lambda reader, items: tuple(reader._items(items)),
    "list": lambda reader, items: reader._items(items),
    "set": lambda reader, items: set(reader._items(items)),
    "frozenset": lambda reader, items: frozenset(reader._items(items)),
    "dict": _Reader._dict,
    "data": _Reader._data,
    "enum": _Reader._enum,
    "path": lambda _reader, text: Path(text),
    "bytes": lambda reader, at: reader._blobs[at],
    "model": _Reader._model,
    "array": _Reader._array,
    "number": _Reader._number,
}


def _plain(dtype: str) -> Any:
    import numpy as np

    found = np.dtype(dtype)
    if found.kind not in "fiubU":
        raise UnfrozenError(f"an array of {dtype}")
    return found


def _name(kind: type) -> str:
    if not kind.__module__.partition(".")[0].startswith(_OURS) or "<" in kind.__qualname__:
        raise UnfrozenError(f"a value of {kind.__module__}.{kind.__qualname__}")
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def _class(name: str) -> type:
    module, _, qualname = name.partition(":")
    if not module.partition(".")[0].startswith(_OURS):
        raise UnfrozenError(f"{name} is none of deploykit's")
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or found.__module__ != module:
        raise UnfrozenError(f"{name} is no class")
    return found


def _made_with(kind: type) -> tuple[str, ...]:
    """What a dataclass is made with; the rest follows from that."""
    return tuple(field.name for field in fields(kind) if field.init)
