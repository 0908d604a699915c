"""Values as JSON: every field of a dataclass under its own name; a class says itself where its shape differs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["Published", "finite", "plain", "published"]


class Published:
    """A dataclass whose published shape is its fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The published shape (docs/json.md)."""
        return published(self)


def published(value: Any, *, without: tuple[str, ...] = (), also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass as JSON values, in their order, ``without`` some, and the properties that are asked."""
    names = [f.name for f in fields(value) if f.name not in without]
    return {name: plain(getattr(value, name)) for name in (*names, *also)}


def plain(value: Any) -> Any:
    """A value, or values inside of mappings and sequences, as JSON: what has a published shape in that."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Enum | Path) else value


def finite(value: float | None) -> float | None:
    """A number as JSON has it: None for what is not finite."""
    return value if value is not None and math.isfinite(value) else None
