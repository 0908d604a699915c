"""The rows of the atlas: the condition under which a kernel is wrong, narrowed or refused, and where it was measured.

It reads data files and matches traits, without onnx or numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TypeAlias

from deploykit.findings.records import Names, Record
from deploykit.tables.reading import parse_rows, read_toml

__all__ = [
    "KernelVerdict",
    "Row",
    "atlas_rows",
    "costs",
    "limits_of",
    "numbers_of",
    "operators",
    "rows_for",
    "verdict_at",
    "verdict_in",
    "verdict_of",
    "where_it_holds",
]


FOLDER = Path(__file__).parents[1] / "data" / "atlas"
# The files of rows by verdict, then that of rows stated by a mechanism. The first row that holds for a node counts:
# refused kernels did not run, so the other rows were derived without them.
FILES = ("refused", "wrong", "narrowed", "stated")
# The verdicts of the rows' cases on other chips and releases, as run there.
PLACES = FOLDER / "places.toml"


Wanted: TypeAlias = str | float | tuple[str | float, ...]


class Row(Record):
    """One condition with its verdict.

    ``when`` states it: a word or a number that a trait equals, ``"<= 4"``, ``">= 2"``, or a list of which one holds.
    ``types`` are those of u8, u16 and float in which it was seen. ``hit`` is the number of measured cases with
    this verdict that meet the condition, ``spared`` the number with another verdict. ``example`` is the case
    that shows it best, ``most`` and ``share`` are its measurements. ``mechanism`` says what the kernel does
    instead, if known: such a row was stated by its mechanism, not derived from cases. ``since`` is the first
    release known to compute so, "" if no limit is known.
    """

    op: str
    types: Names
    verdict: str
    sdk: str
    soc: int
    hit: int
    example: str
    spared: int = 0
    most: float = 0.0
    span: float = 0.0
    share: float = 0.0
    why: str = ""
    mechanism: str = ""
    since: str = ""
    when: Mapping[str, Wanted] = {}

    @property
    def id(self) -> str:
        """The name of the case that shows the row; the laboratory measures it again by this name."""
        return self.example

    @property
    def condition(self) -> str:
        """The condition in words."""
        return ", ".join(f"{name} {_words(value)}" for name, value in self.when.items()) or "as far as tried, always"

    @property
    def cases(self) -> str:
        """The number of cases with this verdict, and of how many that meet the condition, if those are more."""
        return f"{self.hit} of {self.hit + self.spared}" if self.spared else f"{self.hit}"

    def holds(self, traits: Mapping[str, str | float], *, perhaps: bool = False) -> bool:
        """True if every part of the condition is known to hold; with ``perhaps``,
        parts without a known trait count as holding.
        """
        return all(_holds(value, traits[name]) if name in traits else perhaps for name, value in self.when.items())


def _words(wanted: Wanted) -> str:
    if isinstance(wanted, tuple):
        return " or ".join(map(_words, wanted))
    if isinstance(wanted, float | int):
        return f"is {wanted:g}"
    return wanted if wanted[:2] in ("<=", ">=") else f"is {wanted}"


def _holds(wanted: Wanted, value: str | float) -> bool:
    if isinstance(wanted, tuple):
        return any(_holds(one, value) for one in wanted)
    if isinstance(wanted, str) and wanted[:2] in ("<=", ">="):
        if not isinstance(value, int | float):
            return False
        bound = float(wanted[2:])
        return value <= bound if wanted[0] == "<" else value >= bound
    return wanted == value


@cache
def atlas_rows(folder: Path = FOLDER) -> tuple[Row, ...]:
    """Every row of the existing files, in their order. Raises InputError for a damaged file."""
    paths = [folder / f"{name}.toml" for name in FILES]
    tables = {path.name: read_toml(path, shipped=True) for path in paths if path.exists()}
    rows = [parse_rows(Row, table.get("row", []), where=name) for name, table in tables.items()]
    return tuple(row for found in rows for row in found)


@cache
def rows_for(op: str, kind: str) -> tuple[Row, ...]:
    """The rows about an operator in a type."""
    return tuple(row for row in atlas_rows() if row.op == op and kind in row.types)


@cache
def operators() -> frozenset[str]:
    """Every operator that has a row."""
    return frozenset(row.op for row in atlas_rows())


def numbers_of(release: str) -> tuple[int, ...]:
    """The numbers of a release as typed, for comparison."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())


class MeasuredPlace(Record):
    """One release run for one chip: the number of rows whose cases ran, and the verdicts that differ from the rows'.

    A verdict "" means that the row's case did not run here. ``drawn`` is the number of further cases from the sweep,
    ``turned`` names those with another verdict here.
    """

    sdk: str
    soc: int
    asked: int
    drawn: int = 0
    otherwise: Mapping[str, str] = {}
    turned: Mapping[str, str] = {}

    def verdict(self, row: Row) -> str:
        """The verdict of a row's case at this place."""
        return self.otherwise.get(row.id, row.verdict)


@cache
def places(path: Path = PLACES) -> tuple[MeasuredPlace, ...]:
    """The measured places, in the order of the file. Raises InputError for a damaged file."""
    return parse_rows(MeasuredPlace, read_toml(path, shipped=True).get("place", []), where=path.name)


def place_of(sdk: str, soc: int | None) -> MeasuredPlace | None:
    """The measurements for a chip with exactly this release, None if there are none."""
    return next((place for place in places() if (place.sdk, place.soc) == (sdk, soc)), None)


def verdict_at(row: Row, soc: int | None) -> str:
    """The verdict of a row's case for a chip with the row's own release; "" if it did not run for that chip."""
    if soc == row.soc:
        return row.verdict
    place = place_of(row.sdk, soc)
    return "" if place is None else place.verdict(row)


def verdict_in(row: Row, release: str) -> str:
    """The verdict of a row's case for the row's chip with a release of the same series; "" if no such release
    ran it.
    """
    if _is_of_series(release, row.sdk):
        return row.verdict
    of_chip = (place for place in places() if place.soc == row.soc and _is_of_series(release, place.sdk))
    return next((place.verdict(row) for place in of_chip), "")


def _is_of_series(release: str, sdk: str) -> bool:
    """True if a release belongs to the series of an SDK: 2.51 and 2.51.3 to that of 2.51.0, but not 2.5."""
    return release.split(".")[:2] == sdk.split(".")[:2]


def where_it_holds(row: Row) -> str:
    """Describes on which chips and in which releases a row's case has the same verdict, and where it has another."""
    chips = [(str(place.soc), place.verdict(row)) for place in places() if place.sdk == row.sdk]
    releases = [(place.sdk, place.verdict(row)) for place in places() if place.soc == row.soc]
    told = []
    for name, found in (("soc_model", chips), ("QAIRT", releases)):
        by_words: dict[str, list[str]] = {"the same": []}
        for where, said in found:
            if said:
                by_words.setdefault("the same" if said == row.verdict else said, []).append(where)
        told.append(", ".join(f"{said} for {name} {', '.join(where)}" for said, where in by_words.items() if where))
    return "; ".join(filter(None, told))


COSTS = FOLDER / "costs.toml"


class KernelVerdict(StrEnum):
    """The verdict on one kernel. A ``narrowed`` one computes with fewer bits than requested, and deviates no more."""

    RIGHT = "right"
    NARROWED = "narrowed"
    WRONG = "wrong"
    REFUSED = "refused"
    UNJUDGED = "not judged"


# Operators with edges: a value near an edge may fall to its other side, which alone is not a fault.
EDGED = frozenset(
    """
    ArgMax ArgMin Cast Ceil Equal Floor Greater GreaterOrEqual GridSample Hardmax Less LessOrEqual Mod
    NonMaxSuppression NonZero Resize RoiAlign Round Shrink Sign ThresholdedRelu TopK Where
    """.split()  # noqa: SIM905 - names are easier to read without quotes
)

# The share of values that may fall to the other side of an edge.
_FEW = 0.02
# How many times the deviation of its operator's median form a kernel may have: forms differ in sizes and ranges.
_SPREAD = 4.0
# The steps that any kernel may be off: 1 by rounding and 1 by its factor, which in 16 bits costs some 12 steps.
_FLOORS = {"u8": 2.05, "u16": 24.0, "float": 8.0}
_EIGHT_BITS = 257.0  # 65535 / 255: a step of 8 bits in steps of 16
# The part of the range that no single value may deviate by.
_FAR = 0.05
# The share of values that may deviate by a hundredth of the range.
_SHARE = 0.005
# The part of the range that a wrong kernel deviates by somewhere: in 8 bits a hundredth is three roundings.
_PLAIN = 0.02
_LEAST_SPAN = 8.0  # a result that uses fewer steps says nothing about its kernel


class KernelCost(Record):
    """The median deviation of an operator's kernels in one type, in steps, over ``forms`` forms."""

    op: str
    type: str
    usual: float
    most: float
    forms: int


@cache
def costs(path: Path = COSTS) -> Mapping[tuple[str, str], KernelCost]:
    """The costs by operator and type. Raises InputError for a damaged file."""
    rows = parse_rows(KernelCost, read_toml(path, shipped=True).get("cost", []), where=path.name)
    return {(row.op, row.type): row for row in rows}


def limits_of(ops: Iterable[str], kind: str) -> tuple[float, float]:
    """The limits in steps for operators in a row, whose deviations add up: for 99 of 100 values, and for all."""
    known = [costs().get((op, kind)) for op in ops]
    floor = _FLOORS[kind]
    # An operator that costs more than an 8-bit step in 16 bits is not right only because all of its forms cost as much.
    ceiling = _EIGHT_BITS if kind == "u16" else math.inf
    usual = sum(min(max(floor, _SPREAD * cost.usual), ceiling) if cost else floor for cost in known)
    most = sum(min(max(floor, _SPREAD * cost.most), ceiling) if cost else floor for cost in known)
    return usual, max(usual, most)


def verdict_of(
    ops: Iterable[str], kind: str, *, most: float, usual: float, span: float, share: float, odd: int = 0
) -> KernelVerdict:
    """The verdict on a deviation in steps, for operators in a row; ``kind`` is u8, u16 or float."""
    asked = tuple(ops)
    edged = not EDGED.isdisjoint(asked)
    if odd:
        return KernelVerdict.WRONG
    usually, at_most = limits_of(asked, kind)
    if most <= at_most and usual <= usually:
        return KernelVerdict.RIGHT
    if span < _LEAST_SPAN and kind != "float":
        return KernelVerdict.UNJUDGED if most <= _LEAST_SPAN else KernelVerdict.WRONG
    far = usual > span / 100 and usual > usually
    if edged:
        return KernelVerdict.WRONG if share > _FEW else KernelVerdict.RIGHT if not far else KernelVerdict.NARROWED
    if most > at_most and ((share > _SHARE and most > _PLAIN * span) or most > _FAR * span):
        return KernelVerdict.WRONG
    if kind == "u16" and usual > max(usually, _EIGHT_BITS / 4):
        return KernelVerdict.NARROWED
    return KernelVerdict.RIGHT
