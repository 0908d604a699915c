"""The base of all records (immutable values), their published JSON form, and names of common types.

Only this module turns values into plain JSON: a published shape may hold other published values, numbers that are not
finite, and tuples.
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
    "Pairs",
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
"""A JSON object, or a mapping that is to become one: a record, a manifest, options."""
Numbers: TypeAlias = "npt.NDArray[Any]"
"""A NumPy array of any element type."""
Doubles: TypeAlias = "npt.NDArray[np.float64]"
"""A NumPy array of float64, the type to compute with."""
Arrays: TypeAlias = Mapping[str, Numbers]
"""Arrays by tensor name: the inputs or the outputs of a model."""
Feeds: TypeAlias = Sequence[Arrays]
"""The inputs of a model, sample by sample."""
Names: TypeAlias = tuple[str, ...]
"""Names of tensors, nodes, operators or other things, in their order."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Names with what belongs to each, as the values of options, in their order."""
OpenShape: TypeAlias = tuple[int | str | None, ...] | None
"""The sizes of a tensor, where an open size is a name or None. None when not even the rank is known."""
Shape: TypeAlias = tuple[int, ...]
"""The sizes of a tensor, every one known."""
Interval: TypeAlias = tuple[float, float]
"""The least and the greatest value."""
Tell: TypeAlias = Callable[[str], None]
"""A function that receives messages, one line per call."""


def silent(*_told: object) -> None:
    """A `Tell` that ignores every line."""


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, keys and values in the order in which they come."""
    found = dict[K, list[V]]()
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class _RecordMeta(StructMeta):
    """Makes every subclass frozen and keyword-only, so that none of them has to say so to msgspec."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _RecordMeta:
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Record(Struct, frozen=True, metaclass=_RecordMeta):
    """An immutable value with named fields; a subclass with ``kw_only=False`` also takes them by position."""


class Published(Record):
    """A record whose published shape is its fields except ``WITHOUT``, then its properties ``ALSO``.

    A subclass may override ``as_published``.
    """

    WITHOUT: ClassVar[Names] = ()
    ALSO: ClassVar[Names] = ()

    def as_published(self) -> Json:
        """The published values by name, not yet turned into plain JSON."""
        return published(self, without=self.WITHOUT, also=self.ALSO)

    def to_json(self) -> dict[str, Any]:
        """The published shape as JSON has it (docs/json.md)."""
        value: dict[str, Any] = plain(self.as_published())
        return value


def published(value: Any, *, without: Names = (), also: Names = ()) -> dict[str, Any]:
    """The fields of a record in their order, except ``without``, then its properties ``also``."""
    names = [name for name in value.__struct_fields__ if name not in without]
    return {name: getattr(value, name) for name in (*names, *also)}


def plain(value: Any) -> Any:
    """A value in its JSON form, at any depth: a record in its published shape, None for a number that is not finite."""
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
    """The number, or None where it is not finite, which JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None
