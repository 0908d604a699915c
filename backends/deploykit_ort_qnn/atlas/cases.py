"""What the sweep asks: every form in every type, as it is and drawn otherwise; a case's id builds it again.

    Resize: nearest, half_pixel, floor, twice, 4 channels | w8a16 | scale=8 behind

It measures nothing and draws no conclusion.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any, get_args

from deploykit.errors import InputError
from deploykit_ort_qnn.atlas.form_rare import rare_operators
from deploykit_ort_qnn.atlas.form_settings import settings_of_operators
from deploykit_ort_qnn.atlas.forms import Form, all_forms
from deploykit_ort_qnn.atlas.inputs import COVERING, covering
from deploykit_ort_qnn.atlas.sketch import AS_IT_IS, Numbers, Variation
from deploykit_ort_qnn.atlas.units import Kind, Unit, unit

__all__ = ["Case", "all_cases", "case_of", "case_unit", "every_form", "in_turn"]

_KINDS: tuple[Kind, ...] = ("w8a16", "w8a8", "fp16")
_NARROW_WEIGHTS: tuple[Kind, ...] = ("w4a16", "w4a8")
_WITH_WEIGHTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_VARIATIONS = (
    Variation(scale=0.05),
    Variation(scale=0.4, wide=3.0),
    Variation(scale=8.0),
    Variation(batch=2),
    Variation(behind=True),
    Variation(before=True),
    Variation(behind=True, before=True),
    Variation(wide=3.0),
    Variation(scale=3.0, behind=True),
)
_READERS: Mapping[str, Callable[[str], Any]] = {
    "scale": float,
    "wide": float,
    "batch": int,
    "behind": lambda _: True,
    "before": lambda _: True,
}

_EACH = 3
"""Variations that are asked of a form in a type: those that its name falls on, so that all forms together have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question: a form, a type, a variation."""

    form: Form
    kind: Kind
    variation: Variation = AS_IT_IS

    @property
    def id(self) -> str:
        """What stands in a row, and what ``case_of`` takes."""
        return " | ".join((self.form.id, self.kind, *filter(None, [_words(self.variation)])))


@cache
def every_form() -> Mapping[str, Form]:
    """All forms by id: those of the table of releases, those that differ in settings, and rare operators."""
    settings = (Form(op=op, name=name, draw=draw) for op, name, draw in settings_of_operators())
    rare = (Form(op=op, name=name, draw=draw, opset=opset) for op, name, opset, draw in rare_operators())
    return {form.id: form for form in (*all_forms(), *settings, *rare)}


def all_cases() -> Iterator[Case]:
    """Every form in every type as it is; then with variations."""
    forms = tuple(every_form().values())
    plain = [Case(form=form, kind=kind) for kind in _KINDS for form in forms]
    plain += [Case(form=form, kind=kind) for kind in _NARROW_WEIGHTS for form in forms if form.op in _WITH_WEIGHTS]
    yield from plain
    for number in range(_EACH):
        for case in plain:
            first = zlib.crc32(case.id.encode()) % len(_VARIATIONS)
            # A step of 4 in 9 reaches others before it comes back.
            yield replace(case, variation=_VARIATIONS[(first + 4 * number) % len(_VARIATIONS)])


def in_turn(cases: Iterable[Case], suspects: Collection[tuple[str, str]]) -> list[Case]:
    """Cases in the order in which they tell most: of each operator and type one after the other, plain ones first.

    Between them come those of operators and types in which something is wrong: there borders are looked for.
    """
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in sorted(cases, key=lambda case: (case.variation != AS_IT_IS, zlib.crc32(case.id.encode()))):
        groups.setdefault((case.form.op, case.kind), []).append(case)
    rounds = [case for row in zip_longest(*groups.values()) for case in row if case is not None]
    near = [case for case in rounds if (case.form.op, case.kind) in suspects]
    far = [case for case in rounds if (case.form.op, case.kind) not in suspects]
    return [case for pair in zip_longest(near, far) for case in pair if case is not None]


def case_of(text: str) -> Case:
    """The case with an id. Raises InputError for what is none."""
    parts = [part.strip() for part in text.split("|")]
    form = every_form().get(parts[0])
    if form is None or len(parts) not in (2, 3) or parts[1] not in get_args(Kind):
        raise InputError(f"{text!r} is no case", next="FORM | TYPE | VARIATION, as the rows of the atlas have it")
    return Case(form=form, kind=parts[1], variation=_variation(parts[2] if len(parts) == 3 else ""))  # type: ignore[arg-type]


def _words(variation: Variation) -> str:
    told = []
    for name in ("scale", "batch", "wide"):
        value = getattr(variation, name)
        if value != getattr(AS_IT_IS, name):
            told.append(f"{name}={value:g}")
    return " ".join([*told, *(name for name in ("behind", "before") if getattr(variation, name))])


def _variation(text: str) -> Variation:
    found = AS_IT_IS
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in _READERS:
            raise InputError(f"{word!r} is no variation", next="scale=8, batch=2, wide=3, behind, before")
        changes: dict[str, Any] = {name: _READERS[name](value)}
        found = replace(found, **changes)
    return found


def case_unit(case: Case, number: int) -> Unit:
    """The graph of a case with its samples and sets that cover the ranges. Raises what ONNX raises of no graph."""
    made = unit(case.form, case.kind, number, case.variation)
    return replace(made, samples=(*made.samples, *_covering(made)))


def _covering(made: Unit) -> Sequence[dict[str, Numbers]]:
    """Input sets for float inputs over their ranges; whole numbers are those of the samples, in turn."""
    sets: list[dict[str, Numbers]] = [dict(made.samples[number % len(made.samples)]) for number in range(COVERING)]
    for number, (name, span) in enumerate(made.spans.items()):
        shape = made.samples[0][name].shape
        for feed, values in zip(sets, covering(shape, span, number), strict=True):
            feed[name] = values
    return sets
