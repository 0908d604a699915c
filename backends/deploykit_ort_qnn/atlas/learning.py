"""Finds conditions under which kernels have a verdict: conjunctions of traits that hold for them and for no other.

Deterministic and small: the same measurements give the same conditions. It knows no operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deploykit_qualcomm.atlas.traits import MEASURES, Trait

__all__ = ["Condition", "Example", "Learned", "learn"]

Condition: TypeAlias = Mapping[str, str | float]

_MOST_PARTS = 3
_LEAST = 2
"""Cases that a condition must hold for; with a border, one more."""
_NEAR = 0.25
"""Where between the last case inside and the first outside a border is put: nearer to what was seen."""
_FEW_VALUES = 6
_GAP = 0.15
"""The part of a value by which the next one outside must differ, for a border to lie between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One measured case: its id, its traits, and whether it has the verdict that is asked for."""

    case: str
    traits: Mapping[str, Trait]
    positive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A condition, and the cases with the verdict that it holds for; of others it holds for none."""

    when: Condition
    hit: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    name: str
    how: str = "is"
    value: Trait = field(default=0.0)

    def holds(self, example: Example) -> bool:
        value = example.traits.get(self.name)
        if value is None:
            return False
        if self.how == "is":
            return value == self.value
        if isinstance(value, str) or isinstance(self.value, str):
            return False
        return value <= self.value if self.how == "<=" else value >= self.value


def learn(examples: Sequence[Example], *, always: int = _LEAST + 1) -> Iterator[Learned]:
    """Conditions, the one that holds for most first, until none holds for enough of what is left.

    ``always`` is how many cases it takes to say that all have the verdict, where there are no others.
    """
    left = [one for one in examples if one.positive]
    others = [one for one in examples if not one.positive]
    while len(left) >= _LEAST:
        parts = _conjunction(left, others)
        if parts is None:
            return
        hit = [one for one in left if all(part.holds(one) for part in parts)]
        if len(hit) < (_LEAST + any(part.how != "is" for part in parts) if others else always):
            return
        yield Learned(when=_condition(parts), hit=tuple(hit))
        left = [one for one in left if one not in hit]


def _conjunction(left: Sequence[Example], others: Sequence[Example]) -> list[_Part] | None:
    """Parts that exclude all others, added one by one, each the one that gains most; None where three do not."""
    inside, outside, parts = list(left), list(others), list[_Part]()
    while outside:
        if len(parts) == _MOST_PARTS:
            return None
        best = max(_parts(inside, outside), key=lambda part: _gain(part, inside, outside), default=None)
        if best is None or _gain(best, inside, outside) <= 0:
            return None
        parts.append(best)
        inside = [one for one in inside if best.holds(one)]
        outside = [one for one in outside if best.holds(one)]
    return parts


def _gain(part: _Part, inside: Sequence[Example], outside: Sequence[Example]) -> float:
    """How much surer one is of the verdict with the part than without it, for how many cases (after Quinlan's FOIL)."""
    hit = sum(map(part.holds, inside))
    missed = sum(map(part.holds, outside))
    if hit == 0:
        return 0.0
    before = math.log2(len(inside) / (len(inside) + len(outside)))
    return hit * (math.log2(hit / (hit + missed)) - before)


def _parts(inside: Sequence[Example], outside: Sequence[Example]) -> Iterator[_Part]:
    """Every part that could tell the two apart, in the order of the traits of the first case."""
    for name in dict.fromkeys(name for one in inside for name in one.traits):
        yield from _parts_about(name, inside, outside)


def _parts_about(name: str, inside: Sequence[Example], outside: Sequence[Example]) -> Iterator[_Part]:
    mine, theirs = (_values(name, side) for side in (inside, outside))
    words = [value for value in mine if isinstance(value, str)]
    yield from (_Part(name=name, value=word) for word in words)
    numbers = sorted(value for value in mine if not isinstance(value, str))
    beyond = sorted(value for value in theirs if not isinstance(value, str))
    if not numbers:
        return
    if name not in MEASURES and len({*numbers, *beyond}) <= _FEW_VALUES:
        yield from (_Part(name=name, value=value) for value in numbers)
    for value in numbers:
        if (above := next((other for other in beyond if other > value), None)) is not None and _apart(value, above):
            yield _Part(name=name, how="<=", value=_between(value, above))
        if (below := next((other for other in reversed(beyond) if other < value), None)) is not None and _apart(
            value, below
        ):
            yield _Part(name=name, how=">=", value=_between(value, below))


def _apart(one: float, two: float) -> bool:
    """True where a border between two values may mean something: ranges of drawn inputs differ a little by chance."""
    return abs(one - two) > _GAP * max(abs(one), abs(two))


def _values(name: str, examples: Iterable[Example]) -> list[Trait]:
    return list(dict.fromkeys(one.traits[name] for one in examples if name in one.traits))


def _between(near: float, far: float) -> float:
    """A border a quarter of the way from what was seen inside to what was seen outside."""
    return float(f"{near + _NEAR * (far - near):.4g}")


def _condition(parts: Iterable[_Part]) -> dict[str, str | float]:
    """As a row states it; two parts about one trait are an interval, of which a row can hold one side only."""
    found: dict[str, str | float] = {}
    for part in parts:
        value = part.value if part.how == "is" else f"{part.how} {part.value:g}"
        found[part.name] = value
    return found
