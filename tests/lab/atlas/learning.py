"""Finds conditions under which kernels have a verdict: conjunctions of traits that hold for them and for no other.

Deterministic and small: the same measurements give the same conditions. It knows no operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deploykit_qualcomm.atlas.traits import RANGES, Trait

__all__ = ["Condition", "Example", "Learned", "learn"]

Condition: TypeAlias = Mapping[str, str | float]

MEASURES = frozenset(
    {"batch", "channels", "height", "rows", "last", "elements", "along the axis", "grows by", "last grows by"}
    | {"second elements", "second last", "in steps per out step", "grids apart", "left over"}
    | {"steps beyond its bounds", "in span", "out span", "second span"}
)
"""Traits that have a size: that a kernel is wrong at one of their values alone says nothing of the next."""

_MOST_PARTS = 4
_AROUND = RANGES | {"behind", "before"}
_FOLLOWED = 6
"""Ways to a condition that are followed side by side."""
_LEAST = 2
"""Forms that a condition must hold for; with a border, one more."""
_OF_ONE_FORM = 4
_NEAR = 0.25
"""Where between the last case inside and the first outside a border is put: nearer to what was seen."""
_FEW_VALUES = 6
_GAP = 0.15
"""The part of a value by which the next one outside must differ, for a border to lie between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One measured case: its id, its traits, and whether it has the verdict that is asked for.

    Cases of one ``form`` are alike: they count as one.
    """

    case: str
    traits: Mapping[str, Trait]
    positive: bool
    form: str = ""

    @property
    def kind(self) -> str:
        """What counts as one: the form, or the case where no form is named."""
        return self.form or self.case


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
        if not others and len(hit) < always:
            return
        yield Learned(when=_condition(parts), hit=tuple(hit))
        left = [one for one in left if one not in hit]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """Parts so far, and the examples on each side for which they hold."""

    parts: tuple[_Part, ...]
    inside: Sequence[Example]
    outside: Sequence[Example]

    @property
    def forms(self) -> int:
        return len({one.kind for one in self.inside})

    @property
    def is_done(self) -> bool:
        """No others are left, and enough forms; of words alone so many cases of one form are enough."""
        words = all(part.how == "is" for part in self.parts)
        enough = self.forms >= _LEAST + (not words) or (words and len(self.inside) >= _OF_ONE_FORM)
        return not self.outside and (enough or not self.parts)

    @property
    def worth(self) -> tuple[int, int, int, int, int]:
        """More forms, more cases; settings rather than grids and neighbours; fewer parts, fewer borders."""
        borders = sum(part.how != "is" for part in self.parts)
        around = sum(part.name in _AROUND for part in self.parts)
        return self.forms, len(self.inside), -around, -len(self.parts), -borders

    def with_part(self, part: _Part) -> _Way:
        return _Way(
            parts=(*self.parts, part),
            inside=[one for one in self.inside if part.holds(one)],
            outside=[one for one in self.outside if part.holds(one)],
        )


def _conjunction(left: Sequence[Example], others: Sequence[Example]) -> Sequence[_Part] | None:
    """Parts that exclude all others and hold for most; None where no way of a few parts does it for enough examples.

    Several ways are followed side by side, since the part that gains most by itself may lead nowhere.
    """
    ways = [_Way(parts=(), inside=left, outside=others)]
    done = [way for way in ways if way.is_done]
    for _ in range(_MOST_PARTS):
        longer = _longer([way for way in ways if way.outside])
        done += [way for way in longer if way.is_done]
        ways = [way for way in longer if way.outside][:_FOLLOWED]
    return max(done, key=lambda way: way.worth).parts if done else None


def _longer(ways: Sequence[_Way]) -> list[_Way]:
    """The ways with one part more, those that gained most first; of those with the same cases one."""
    found: dict[tuple[int, ...], tuple[float, _Way]] = {}
    for way in ways:
        for part in _parts(way.inside, way.outside):
            gain = _gain(part, way.inside, way.outside)
            if gain > 0:
                made = way.with_part(part)
                key = tuple(map(id, (*made.inside, *made.outside)))
                if key not in found or made.worth > found[key][1].worth:
                    found[key] = gain, made
    return [way for _, way in sorted(found.values(), key=lambda one: -one[0])]


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
