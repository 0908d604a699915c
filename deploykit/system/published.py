"""Values as JSON: every field of a dataclass under its own name; a class says itself where its shape differs.

Only here are values made plain: a shape may hold others that are published, numbers that are not finite, tuples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from deploykit.findings.records import Record
from deploykit.system.aliases import Json

__all__ = ["Published", "finite", "plain", "published"]


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
