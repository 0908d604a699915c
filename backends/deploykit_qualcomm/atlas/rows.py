"""The rows of the atlas: under which condition a kernel is wrong, narrowed or refused, and where that was measured.

It reads data files and matches; it imports neither onnx nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TypeAlias

from deploykit.findings.records import Record
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
# Rows by their verdict, then those that were stated by a mechanism. The first row that holds for a node counts: what is
# refused is not run, so that a row about what runs was drawn without it.
FILES = ("refused", "wrong", "narrowed", "stated")
# What became of each row's case on other chips and releases, run there.
PLACES = FOLDER / "places.toml"


Wanted: TypeAlias = str | float | tuple[str | float, ...]


class Row(Record):
    """One condition with its verdict.

    ``when`` states it: a word or a number that a trait equals, ``"<= 4"``, ``">= 2"``, or a list of which one holds.
    ``types`` are those of u8, u16 and float in which it was seen. ``hit`` and ``spared`` are how many measured cases it
    is about and how many of other verdicts it holds (none, or the row would say so). ``example`` is the case that shows
    it best, ``most`` and ``share`` what was measured of that. ``mechanism`` is what the kernel does instead, where that
    is known: such a row was stated by its mechanism, not drawn from cases. ``since`` is the first release that is known
    to compute so, "" where nothing is known of a limit.
    """

    op: str
    types: tuple[str, ...]
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
        """The case that shows it; the laboratory measures it again by this name."""
        return self.example

    @property
    def condition(self) -> str:
        """In words."""
        return ", ".join(f"{name} {_words(value)}" for name, value in self.when.items()) or "as far as tried, always"

    @property
    def cases(self) -> str:
        """How many it is about, and of how many that it holds for where that is more."""
        return f"{self.hit} of {self.hit + self.spared}" if self.spared else f"{self.hit}"

    def holds(self, traits: Mapping[str, str | float], *, perhaps: bool = False) -> bool:
        """True where every part of the condition is known to hold, or ``perhaps`` does: what no trait tells."""
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
    """Every row of the files that there are, in their order; InputError where one is damaged."""
    paths = [folder / f"{name}.toml" for name in FILES]
    tables = {path.name: read_toml(path, shipped=True) for path in paths if path.exists()}
    rows = [parse_rows(Row, table.get("row", []), where=name) for name, table in tables.items()]
    return tuple(row for found in rows for row in found)


@cache
def rows_for(op: str, kind: str) -> tuple[Row, ...]:
    """Rows about an operator in a type."""
    return tuple(row for row in atlas_rows() if row.op == op and kind in row.types)


@cache
def operators() -> frozenset[str]:
    """Every operator that some row is about."""
    return frozenset(row.op for row in atlas_rows())


def numbers_of(release: str) -> tuple[int, ...]:
    """A release as typed, comparable."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())


class MeasuredPlace(Record):
    """One release for one chip, how many rows' cases ran for it, and the verdicts that differ from the rows'.

    A row's case did not run here where its verdict is "". ``drawn`` is how many cases of the sweep ran beside those,
    and ``turned`` names each that is otherwise here.
    """

    sdk: str
    soc: int
    asked: int
    drawn: int = 0
    otherwise: Mapping[str, str] = {}
    turned: Mapping[str, str] = {}

    def verdict(self, row: Row) -> str:
        """What the row's case is here."""
        return self.otherwise.get(row.id, row.verdict)


@cache
def places(path: Path = PLACES) -> tuple[MeasuredPlace, ...]:
    """In the order of the file; InputError where it is damaged."""
    return parse_rows(MeasuredPlace, read_toml(path, shipped=True).get("place", []), where=path.name)


def place_of(sdk: str, soc: int | None) -> MeasuredPlace | None:
    """What ran for a chip by exactly this release; None where nothing did."""
    return next((place for place in places() if (place.sdk, place.soc) == (sdk, soc)), None)


def verdict_at(row: Row, soc: int | None) -> str:
    """The verdict of a row's case for a chip, by the row's own release; "" where it did not run for that chip."""
    if soc == row.soc:
        return row.verdict
    place = place_of(row.sdk, soc)
    return "" if place is None else place.verdict(row)


def verdict_in(row: Row, release: str) -> str:
    """The verdict of a row's case by a release of the same series, for the row's chip; "" where none of it ran that."""
    if _is_of_series(release, row.sdk):
        return row.verdict
    of_chip = (place for place in places() if place.soc == row.soc and _is_of_series(release, place.sdk))
    return next((place.verdict(row) for place in of_chip), "")


def _is_of_series(release: str, sdk: str) -> bool:
    """2.51 and 2.51.3 are of the series of 2.51.0; 2.5 is not."""
    return release.split(".")[:2] == sdk.split(".")[:2]


def where_it_holds(row: Row) -> str:
    """In words: on which chips and in which releases its case is the same, and where not."""
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
    """What is said of one kernel. ``narrowed`` is computed with fewer bits than were asked for, and no further off."""

    RIGHT = "right"
    NARROWED = "narrowed"
    WRONG = "wrong"
    REFUSED = "refused"
    UNJUDGED = "not judged"


# Operators with edges: a value next to one may fall to its other side, and that alone is no fault.
EDGED = frozenset(
    {"ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "GridSample", "Hardmax"}
    | {"Less", "LessOrEqual", "Mod", "NonMaxSuppression", "NonZero", "Resize", "RoiAlign", "Round", "Shrink", "Sign"}
    | {"ThresholdedRelu", "TopK", "Where"}
)

# The share of values that may fall to the other side of an edge.
_FEW = 0.02
# How many times as far off as the middle form of its operator a kernel may be: forms differ in sizes and ranges.
_SPREAD = 4.0
# Steps that every kernel may be off: 1 by rounding and 1 by its factor; in 16 bits a factor has some 12 of them.
_FLOORS = {"u8": 2.05, "u16": 24.0, "float": 8.0}
_EIGHT_BITS = 257.0  # 65535 / 255: a step of 8 bits in steps of 16
# The part of the range that no single value may be off.
_FAR = 0.05
# The share of values that may be off by a hundredth of the range.
_SHARE = 0.005
# The part of the range that a wrong kernel is off somewhere: in 8 bits a hundredth is a matter of rounding thrice.
_PLAIN = 0.02
_LEAST_SPAN = 8.0  # a result that uses fewer steps than this says nothing about its kernel


class KernelCost(Record):
    """What an operator's kernels are off in a type, in steps: the middle one of ``forms`` forms."""

    op: str
    type: str
    usual: float
    most: float
    forms: int


@cache
def costs(path: Path = COSTS) -> Mapping[tuple[str, str], KernelCost]:
    """The file, by operator and type; InputError where it is damaged."""
    rows = parse_rows(KernelCost, read_toml(path, shipped=True).get("cost", []), where=path.name)
    return {(row.op, row.type): row for row in rows}


def limits_of(ops: Iterable[str], kind: str) -> tuple[float, float]:
    """Steps within which one operator is right, or several in a row, which add up: 99 of 100 values, and all."""
    known = [costs().get((op, kind)) for op in ops]
    floor = _FLOORS[kind]
    # An operator that costs more than a step of 8 bits in 16 is not right because all of its forms cost as much.
    ceiling = _EIGHT_BITS if kind == "u16" else math.inf
    usual = sum(min(max(floor, _SPREAD * cost.usual), ceiling) if cost else floor for cost in known)
    most = sum(min(max(floor, _SPREAD * cost.most), ceiling) if cost else floor for cost in known)
    return usual, max(usual, most)


def verdict_of(
    ops: Iterable[str], kind: str, *, most: float, usual: float, span: float, share: float, odd: int = 0
) -> KernelVerdict:
    """What a deviation in steps means for operators in a row; ``kind`` is u8, u16 or float."""
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
