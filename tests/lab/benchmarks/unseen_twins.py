"""Draws models just inside and just outside of each border of the atlas's rows, from a seed; it runs nothing on a chip.

A border is one part of a row's condition while all others hold. What the row itself was drawn from is not drawn again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from atlas.cases import Case, every_form
from atlas.folding import traits_of_case
from atlas.form_chance import BY_CHANCE, drawn_by_chance
from atlas.form_known import clip_behind, gate_behind, narrow_softmax
from atlas.forms import Form
from atlas.sketch import Variation
from atlas.units import Kind
from deploykit_qualcomm.atlas.rows import Row, Wanted
from deploykit_qualcomm.atlas.traits import Trait

__all__ = ["Twin", "drawn_twins"]

_KINDS: Mapping[str, tuple[Kind, ...]] = {"u8": ("w8a8", "w4a8"), "u16": ("w8a16", "w4a16"), "float": ("fp16",)}
_WITH_NARROW_WEIGHTS = ("Conv", "ConvTranspose", "Gemm")
_MAKERS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
_UNSEEN = 1000
"""Numbers from here on are not asked by the sweep."""
_HALVINGS = 7
_STRETCHES: Mapping[str, tuple[float, float]] = {"wide": (1.0, 8.0), "scale": (0.02, 20.0)}
"""What is stretched until a border is crossed, and how far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A model and what it is about: a part of a row's condition, and on which side of it the model lies."""

    row: Row
    part: str
    inside: bool
    case: Case


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    case: Case
    traits: Mapping[str, Trait]

    def holds(self, when: Mapping[str, Wanted], row: Row) -> bool:
        return replace(row, when=when).holds(self.traits)


def drawn_twins(rows: Sequence[Row], seed: int, *, each: int, tries: int) -> Iterator[Twin]:
    """So many models on each side of each part; fewer where so many ``tries`` for each operator and type gave fewer."""
    random, asked = Random(seed), set[str]()
    for op in dict.fromkeys(row.op for row in rows):
        some = [row for row in rows if row.op == op]
        kinds = sorted({kind for row in some for kind in row.types})
        enough = tries if any(row.when for row in some) else each
        pool = {kind: _pool(op, kind, seed, enough, random) for kind in kinds}
        for row in some:
            for twin in _twins(row, pool, each):
                # One model may lie at the borders of several rows; it is asked about once.
                name = f"{twin.case.form.name} {twin.case.kind} {twin.case.variation}"
                if name not in asked:
                    asked.add(name)
                    yield twin


def _pool(op: str, kind: str, seed: int, tries: int, random: Random) -> list[_Drawn]:
    cases = (_case(op, kind, seed, number, random) for number in range(tries))
    return [drawn for case in cases if (drawn := _looked_at(case)) is not None]


def _looked_at(case: Case) -> _Drawn | None:
    try:
        traits = traits_of_case(case, 0)
    except Exception:  # what shape inference makes of sizes that do not fit
        return None
    return _Drawn(case=case, traits=traits) if traits else None


def _case(op: str, kind: str, seed: int, number: int, random: Random) -> Case:
    kinds = _KINDS[kind] if op in _WITH_NARROW_WEIGHTS else _KINDS[kind][:1]
    variation = Variation(
        scale=random.choice((1.0, 1.0, round(10 ** random.uniform(-1.5, 1.0), 3))),
        batch=random.choice((1, 1, 1, 2, 3)),
        behind=random.random() < 0.3,
        before=random.random() < 0.2,
        wide=random.choice((1.0, 1.0, round(random.uniform(1.0, 4.0), 2))),
    )
    form = _form(op, _UNSEEN * seed + number, random)
    return Case(form=form, kind=random.choice(kinds), variation=variation)


def _form(op: str, number: int, random: Random) -> Form:
    known = _known(op, number, random) if random.random() < 0.5 else None
    if known is not None:
        return known
    if op in BY_CHANCE:
        _, name, opset, draw = drawn_by_chance(op, number)
        return Form(op=op, name=name, draw=draw, opset=opset)
    return random.choice([form for form in every_form().values() if form.op == op])


def _known(op: str, number: int, random: Random) -> Form | None:
    """Of kernels that forms by chance do not hold."""
    sides, channels = (random.randint(5, 40), random.randint(5, 40)), random.choice((3, 4, 8, 12, 16, 24))
    if op == "Mul":
        maker = random.choice(_MAKERS)
        return Form(op=op, name=f"gate {number} behind {maker}", draw=gate_behind(maker, (1, channels, *sides)))
    if op == "Softmax":
        span, length = round(10 ** random.uniform(-2.3, 0.0), 4), random.randint(6, 90)
        return Form(op=op, name=f"narrow {number}", draw=narrow_softmax(span, length))
    if op == "Clip":
        draw = clip_behind(random.choice(_MAKERS[:2]), (1, channels, *sides), round(random.uniform(0.3, 2.0), 2))
        return Form(op=op, name=f"behind a layer {number}", draw=draw)
    return None


def _twins(row: Row, pool: Mapping[str, Sequence[_Drawn]], each: int) -> Iterator[Twin]:
    """Turn about from the types in which the row was seen."""
    drawn = [one for kind in row.types for one in pool[kind]]
    if not row.when:
        yield from (Twin(row=row, part="", inside=True, case=one.case) for one in drawn[:each])
    for part in row.when:
        others = {name: value for name, value in row.when.items() if name != part}
        near = [one for one in drawn if part in one.traits and one.holds(others, row)]
        near.sort(key=lambda one: _distance(row, part, one))
        sides = {True: list[_Drawn](), False: list[_Drawn]()}
        for one in near:
            for moved in _moved(one, row, part, others) if _bound(row, part) is not None else (one,):
                sides[moved.holds(row.when, row)].append(moved)
            if all(len(side) >= each for side in sides.values()):
                break
        for inside, found in sides.items():
            yield from (Twin(row=row, part=part, inside=inside, case=one.case) for one in found[:each])


def _bound(row: Row, part: str) -> float | None:
    value = row.when[part]
    return float(value[2:]) if isinstance(value, str) and value[:2] in ("<=", ">=") else None


def _distance(row: Row, part: str, one: _Drawn) -> float:
    bound, value = _bound(row, part), one.traits[part]
    return 0.0 if bound is None or isinstance(value, str) else abs(value - bound)


def _moved(one: _Drawn, row: Row, part: str, others: Mapping[str, Wanted]) -> Sequence[_Drawn]:
    """The model stretched to both sides of a border, as near as halving comes; itself where nothing crosses it."""
    for name, ends in _STRETCHES.items():
        low, high = (_stretched(one, name, end) for end in ends)
        if low is None or high is None or low.holds(row.when, row) == high.holds(row.when, row):
            continue
        for _ in range(_HALVINGS):
            middle = _stretched(one, name, (_value(low, name) * _value(high, name)) ** 0.5)
            if middle is None:
                break
            low, high = (middle, high) if middle.holds(row.when, row) == low.holds(row.when, row) else (low, middle)
        return [side for side in (low, high) if side.holds(others, row)]
    return (one,)


def _value(one: _Drawn, name: str) -> float:
    return float(getattr(one.case.variation, name))


def _stretched(one: _Drawn, name: str, value: float) -> _Drawn | None:
    change = {name: float(f"{value:.4g}")}
    return _looked_at(replace(one.case, variation=replace(one.case.variation, **change)))  # type: ignore[arg-type]
