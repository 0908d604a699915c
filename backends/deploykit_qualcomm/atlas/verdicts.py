"""What a measured deviation means: right, narrowed or wrong, against what the operator's approximation costs anyway.

The costs stand in a data file and were measured; it measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from deploykit.tables.reading import parse_rows, read_toml

__all__ = ["COSTS", "EDGED", "Cost", "Limits", "Verdict", "costs", "limits_of", "verdict_of"]

COSTS = Path(__file__).parents[1] / "data" / "atlas" / "costs.toml"


class Verdict(StrEnum):
    """What is said of one kernel. ``narrowed`` is computed with fewer bits than were asked for, and no further off."""

    RIGHT = "right"
    NARROWED = "narrowed"
    WRONG = "wrong"
    REFUSED = "refused"
    UNJUDGED = "not judged"


EDGED = frozenset(
    {"ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "GridSample", "Hardmax"}
    | {"Less", "LessOrEqual", "Mod", "NonMaxSuppression", "NonZero", "Resize", "RoiAlign", "Round", "Shrink", "Sign"}
    | {"ThresholdedRelu", "TopK", "Where"}
)
"""Operators with edges: a value next to one may fall to its other side, and that alone is no fault."""

_FEW = 0.02
"""The share of values that may fall to the other side of an edge."""
_SPREAD = 4.0
"""How many times as far off as the middle form of its operator a kernel may be: forms differ in sizes and ranges."""
_FLOORS = {"u8": 2.05, "u16": 24.0, "float": 8.0}
"""Steps that every kernel may be off: 1 by rounding and 1 by its factor; in 16 bits a factor has some 12 of them."""
_EIGHT_BITS = 257.0
_FAR = 0.05
"""The part of the range that no single value may be off."""
_SHARE = 0.005
"""The share of values that may be off by a hundredth of the range."""
_PLAIN = 0.02
"""The part of the range that a wrong kernel is off somewhere: in 8 bits a hundredth is a matter of rounding thrice."""
_LEAST_SPAN = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an operator's kernels are off in a type, in steps: the middle one of ``forms`` forms."""

    op: str
    type: str
    usual: float
    most: float
    forms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Steps within which a kernel is right: 99 of 100 values, and all."""

    usual: float
    most: float


@cache
def costs(path: Path = COSTS) -> Mapping[tuple[str, str], Cost]:
    """The file, by operator and type; InputError where it is damaged."""
    rows = parse_rows(Cost, read_toml(path).get("cost", []), where=path.name) if path.exists() else ()
    return {(row.op, row.type): row for row in rows}


def limits_of(ops: Iterable[str], kind: str) -> Limits:
    """The limits of one operator, or of several in a row, whose deviations add up."""
    known = [costs().get((op, kind)) for op in ops]
    floor = _FLOORS[kind]
    usual = sum(max(floor, _SPREAD * cost.usual) if cost else floor for cost in known)
    most = sum(max(floor, _SPREAD * cost.most) if cost else floor for cost in known)
    return Limits(usual=usual, most=max(usual, most))


def verdict_of(
    ops: Iterable[str], kind: str, *, most: float, usual: float, span: float, share: float, odd: int = 0
) -> Verdict:
    """What a deviation in steps means for operators in a row; ``kind`` is u8, u16 or float."""
    asked = tuple(ops)
    edged = not EDGED.isdisjoint(asked)
    if odd:
        return Verdict.WRONG
    limits = limits_of(asked, kind)
    if most <= limits.most and usual <= limits.usual:
        return Verdict.RIGHT
    if span < _LEAST_SPAN and kind != "float":
        return Verdict.UNJUDGED if most <= _LEAST_SPAN else Verdict.WRONG
    far = usual > span / 100 and usual > limits.usual
    if edged:
        return Verdict.WRONG if share > _FEW else Verdict.RIGHT if not far else Verdict.NARROWED
    if most > limits.most and ((share > _SHARE and most > _PLAIN * span) or most > _FAR * span):
        return Verdict.WRONG
    if kind == "u16" and usual > max(limits.usual, _EIGHT_BITS / 4):
        return Verdict.NARROWED
    return Verdict.RIGHT
