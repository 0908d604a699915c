"""What the sweep asks: every form in every type, as it is and drawn otherwise; a case's id builds it again.

    Resize: nearest, half_pixel, floor, twice, 4 channels | w8a16 | scale=8 behind

It measures nothing and draws no conclusion.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any, get_args

import numpy as np

from atlas.form_chance import BY_CHANCE, drawn_by_chance
from atlas.form_known import known_kernels
from atlas.form_rare import rare_operators
from atlas.form_settings import settings_of_operators
from atlas.forms import Form, all_forms
from atlas.sketch import AS_IT_IS, Coarse, Sketch, Variation
from atlas.units import Kind, Unit, unit
from deploykit.errors import InputError
from deploykit.findings.records import Numbers
from deploykit.model.weights import stored_values
from deploykit_ort_qnn.bench.together import COVERING, covering

__all__ = ["Case", "all_cases", "case_of", "case_unit", "every_form", "in_turn"]

UNEVEN = (1, 3, 5)
"""Those of the covering inputs in which neighbours differ: not sorted, nor one value everywhere, nor a single spike."""

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

_WITH_SETTINGS = frozenset(
    {"AveragePool", "Concat", "Conv", "ConvTranspose", "CumSum", "DepthToSpace", "GatherElements", "GridSample"}
    | {"InstanceNormalization", "LayerNormalization", "Log", "LpNormalization", "MatMul", "MaxPool", "Pad", "Resize"}
    | {"ScatterElements", "ScatterND", "SpaceToDepth"}
)
_MANY, _FEW = 40, 4
"""Forms by chance of each operator."""

_BY_SPREAD = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization"}
    | {"MeanVarianceNormalization", "RMSNormalization"}
)
"""Operators that divide by how far values spread: of equal values only the rounding is left, which is no question."""

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
    """All forms by id: those of the table of releases, those that differ in settings, known faults, rare operators."""
    listed = (*settings_of_operators(), *known_kernels())
    settings = (Form(op=op, name=name, draw=draw) for op, name, draw in listed)
    rare = (Form(op=op, name=name, draw=draw, opset=opset) for op, name, opset, draw in rare_operators())
    chance = (Form(op=op, name=name, draw=draw, opset=opset) for op, name, opset, draw in _by_chance())
    return {form.id: form for form in (*all_forms(), *settings, *rare, *chance)}


def _by_chance() -> Iterator[tuple[str, str, int, Callable[[Sketch], str]]]:
    """More of the operators with settings that matter than of those without."""
    for op in BY_CHANCE:
        for number in range(_MANY if op in _WITH_SETTINGS else _FEW):
            yield drawn_by_chance(op, number)


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
    all_sets = partial(_all_sets, op=case.form.op)
    made = unit(case.form, case.kind, number, case.variation, sets=all_sets)
    ends = _ends(made)
    held = [
        {name: np.clip(value, *ends[name]) if name in ends else value for name, value in sample.items()}
        for sample in all_sets(made)
    ]
    return replace(made, samples=tuple(held))


def _ends(made: Unit) -> dict[str, tuple[float, float]]:
    """Where the grids of float inputs end: beyond them an operator made of several may cut off later, rightly."""
    stored = {tensor.name: tensor for tensor in made.model.graph.initializer}
    found = {}
    for node in made.model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in made.spans:
            scale, zero = (stored_values(stored[name]) for name in node.input[1:3])
            info = np.iinfo(zero.dtype)
            low, high = (float(scale) * (end - float(zero)) for end in (info.min, info.max))
            found[node.input[0]] = (low, high)
    return found


def _all_sets(made: Unit | Sketch, op: str) -> tuple[Mapping[str, Numbers], ...]:
    sets = _covering(made)
    return (*made.samples, *([sets[number] for number in UNEVEN] if op in _BY_SPREAD else sets))


def _covering(made: Unit | Sketch) -> Sequence[dict[str, Numbers]]:
    """Input sets for float inputs over their ranges; whole numbers are those of the samples, in turn."""
    sets: list[dict[str, Numbers]] = [dict(made.samples[number % len(made.samples)]) for number in range(COVERING)]
    for number, (name, span) in enumerate(made.spans.items()):
        shape = made.samples[0][name].shape
        for feed, values in zip(sets, covering(shape, span, number), strict=True):
            feed[name] = span.moved(values) if isinstance(span, Coarse) else values
    return sets
