"""Rows that were chosen and so stand in an order that means nothing: by what they were chosen, and out of what.

Descriptions without values or graph; ``row_sets`` finds them in a graph, ``alignment`` matches rows by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Axes", "Chosen", "Flat", "Joined", "Listed", "Rows", "index_tensors", "span"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Rows that a TopK took, by the places in ``index`` along ``axis``, out of ``size`` that are rows of ``of``."""

    index: str
    axis: int
    size: int
    of: Rows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Rows that say themselves what they are: the triples of a NonMaxSuppression, along ``axis`` of ``index``."""

    index: str
    axis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """Axes merged into one, the last one running fastest; None for one in its natural order."""

    parts: tuple[tuple[Rows | None, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Axes one behind the other, as Concat joins them."""

    parts: tuple[tuple[Rows | None, int], ...]


Rows: TypeAlias = Chosen | Listed | Flat | Joined
Axes: TypeAlias = tuple[Rows | None, ...]

_LISTED_SPAN = 1 << 60


def span(rows: Rows | None, length: int) -> int:
    """How many different rows there may be: an upper bound of their numbers."""
    match rows:
        case None:
            return max(length, 1)
        case Chosen():
            return span(rows.of, rows.size)
        case Listed():
            return _LISTED_SPAN
        case Flat():
            return math.prod(span(part, size) for part, size in rows.parts)
        case Joined():
            return sum(span(part, size) for part, size in rows.parts)


def index_tensors(rows: Iterable[Rows | None]) -> tuple[str, ...]:
    """The tensors whose values tell which rows they are."""
    found: dict[str, None] = {}
    todo = [row for row in rows if row is not None]
    while todo:
        row = todo.pop()
        if isinstance(row, Chosen | Listed):
            found[row.index] = None
            inner: Iterable[Rows | None] = (row.of,) if isinstance(row, Chosen) else ()
        else:
            inner = (part for part, _ in row.parts)
        todo += [part for part in inner if part is not None]
    return tuple(found)
