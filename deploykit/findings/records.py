"""What values are here: records, which cannot be changed, the JSON that they are published as, names of common types.

Only here are values made plain: a shape may hold others that are published, numbers that are not finite, tuples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

from msgspec import Struct, StructMeta, field
from msgspec.structs import replace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Arrays",
    "Doubles",
    "Feeds",
    "Interval",
    "Json",
    "Names",
    "Numbers",
    "OpenShape",
    "Published",
    "Record",
    "Shape",
    "Tell",
    "field",
    "finite",
    "grouped",
    "plain",
    "published",
    "replace",
    "silent",
]

K = TypeVar("K")
V = TypeVar("V")

Json: TypeAlias = Mapping[str, Any]
"""What a JSON object holds, or an object that is to become one: a record, a manifest, options."""
Numbers: TypeAlias = "npt.NDArray[Any]"
"""An array of any type."""
Doubles: TypeAlias = "npt.NDArray[np.float64]"
"""An array to compute with."""
Arrays: TypeAlias = Mapping[str, Numbers]
"""Arrays by name: what a model is fed, and what it gives."""
Feeds: TypeAlias = Sequence[Arrays]
"""What a model is fed, sample by sample."""
Names: TypeAlias = tuple[str, ...]
"""Names of tensors, nodes, operators or whatever has one, in their order."""
OpenShape: TypeAlias = tuple[int | str | None, ...] | None
"""Sizes of a tensor, a name or None for one that is not known; None where not even their number is."""
Shape: TypeAlias = tuple[int, ...]
"""The sizes of a tensor, every one known."""
Interval: TypeAlias = tuple[float, float]
"""The least and the greatest of some values."""
Tell: TypeAlias = Callable[[str], None]
"""Is told one line at a time."""


def silent(*_told: object) -> None:
    """A `Tell` where nobody listens."""


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, keys and values in the order in which they come."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class _RecordMeta(StructMeta):
    """Says of every subclass what msgspec would have said by each of them."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _RecordMeta:
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Record(Struct, frozen=True, metaclass=_RecordMeta):
    """A value of fields; ``kw_only=False`` where they are also given by place."""


class Published(Record):
    """A dataclass whose published shape is its fields ``WITHOUT`` some, properties ``ALSO``, unless it says another."""

    WITHOUT: ClassVar[tuple[str, ...]] = ()
    ALSO: ClassVar[tuple[str, ...]] = ()

    def as_published(self) -> Json:
        """What is published, by name; its values need not be plain."""
        return published(self, without=self.WITHOUT, also=self.ALSO)

    def to_json(self) -> dict[str, Any]:
        """The published shape as JSON has it (docs/json.md)."""
        value: dict[str, Any] = plain(self.as_published())
        return value


def published(value: Any, *, without: tuple[str, ...] = (), also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass as they are, in their order, ``without`` some, and the properties that are asked."""
    names = [name for name in value.__struct_fields__ if name not in without]
    return {name: getattr(value, name) for name in (*names, *also)}


def plain(value: Any) -> Any:
    """A value, at any depth, as JSON has it: in its published shape, None for a number that is not finite."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Enum | Path) else value


def finite(value: float | None) -> float | None:
    """A number as JSON has it: None for what is not finite."""
    return value if value is not None and math.isfinite(value) else None
