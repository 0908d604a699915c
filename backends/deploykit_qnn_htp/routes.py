"""The routes through QAIRT and their order of preference, read from ``data/routes.toml``; it chooses nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from packaging.version import Version

from deploykit.errors import DefectError
from deploykit.findings import Confidence
from deploykit.tables.reading import read_toml, structure

__all__ = ["LENT_TOOL", "Intent", "Preference", "RouteRow", "load_routes", "preference", "route_row"]


LENT_TOOL = "onnxruntime-qnn"
"""The tool of routes and steps that no part of the SDK takes part in."""


class Intent(StrEnum):
    """What the request wants of the model as a whole."""

    INTEGER = "integer"
    MIXED = "mixed"
    CALIBRATED = "calibrated"
    QDQ = "qdq"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """One route: its converter, the intents it serves, the encodings versions it can be given, best first."""

    id: str
    tool: str
    intents: tuple[Intent, ...]
    encodings: tuple[str, ...]
    input_list: bool
    float_fallback: bool
    why: str
    source: tuple[str, ...]
    confidence: Confidence
    quantizer_v2: bool = False
    explicit_float: bool = False
    dlc: bool = False
    """True where what is lent is a DLC, which the SDK's own generator compiles. Such a route is only offered."""

    @property
    def legacy(self) -> bool:
        """True for routes that go through a model library instead of a DLC."""
        return self.tool == "qnn-onnx-converter"

    @property
    def lent(self) -> bool:
        """True for a route that no tool of the SDK takes part in: the compiler is one inside a public wheel."""
        return self.tool == LENT_TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Which routes are tried in which order for one intent, from one version on."""

    intent: Intent
    since: str
    order: tuple[str, ...]
    why: str
    source: tuple[str, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    schema: int
    route: tuple[RouteRow, ...]
    preference: tuple[Preference, ...]


@cache
def load_routes() -> _Table:
    """The whole table."""
    path = Path(__file__).parent / "data" / "routes.toml"
    return structure(_Table, read_toml(path), where=path.name)


def route_row(route_id: str) -> RouteRow:
    """The row of one route; an unknown id in a data file is a defect."""
    for row in load_routes().route:
        if row.id == route_id:
            return row
    raise DefectError(f"routes.toml: no route {route_id!r}")


def preference(intent: Intent, version: Version) -> Preference:
    """The preference that holds for an intent under one SDK version."""
    rows = [row for row in load_routes().preference if row.intent is intent and Version(row.since) <= version]
    if not rows:
        raise DefectError(f"routes.toml: no preference for {intent} at {version}")
    return max(rows, key=lambda row: Version(row.since))
