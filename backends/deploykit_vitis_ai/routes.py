"""The routes of ``data/routes.toml``: what becomes of a float model for each number format. It chooses none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Literal

from deploykit_vitis_ai.tables import Sourced, read_rows

__all__ = ["AS_IS", "RouteRow", "ladder", "meant_by", "quark_formats", "route_row", "routes"]

AS_IS = "as-is"
"""The format of a model that is quantized already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow(Sourced):
    """One format: who makes it, and what is stored then.

    ``activation`` is the stored type, "" for whatever the model has; ``zero_points`` are the ones that occur, empty
    for any. ``whole_graph``: every operator is put on the grid. ``rung`` orders what ``auto`` tries, 0 for none.
    """

    format: str
    maker: Literal["quark", "compiler"]
    why: str
    asked_as: tuple[str, ...] = ()
    preset: str = ""
    with_exclusions: str = ""
    activation: str = ""
    zero_points: tuple[int, ...] = ()
    power_of_two: bool = False
    whole_graph: bool = False
    rung: int = 0


@cache
def routes() -> tuple[RouteRow, ...]:
    """Every row, best first where several mean the same name."""
    return read_rows(RouteRow, "routes.toml", "route")


def route_row(form: str) -> RouteRow | None:
    """The row of one format, None for a name that is none."""
    return next((row for row in routes() if row.format == form), None)


def quark_formats() -> tuple[str, ...]:
    """The formats that Quark makes."""
    return tuple(row.format for row in routes() if row.maker == "quark")


def meant_by(name: str) -> tuple[str, ...]:
    """The formats that a name can mean, best first; the name itself where it is a format, or nothing known."""
    return tuple(row.format for row in routes() if name in row.asked_as) or (name,)


def ladder(offered: Collection[str]) -> tuple[str, ...]:
    """The formats to try one after the other where nobody says which: those that a device has, cheapest first."""
    rows = sorted((row for row in routes() if row.rung and row.format in offered), key=lambda row: row.rung)
    return tuple(row.format for row in rows)
