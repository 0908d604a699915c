"""Draws small models that the atlas was not made from: settings, sizes and ranges by chance, from a seed.

They come from where the sweep's own forms by chance come from, with other numbers. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

from atlas.cases import Case
from atlas.form_chance import BY_CHANCE, drawn_by_chance
from atlas.forms import Form
from atlas.sketch import Variation
from atlas.units import Kind

__all__ = ["drawn_cases"]

_KINDS: tuple[Kind, ...] = ("w8a8", "w8a16", "w8a16", "fp16")
_NARROW: tuple[Kind, ...] = ("w4a16", "w4a8")
_UNSEEN = 1000
"""Numbers from here on are not asked by the sweep."""


def drawn_cases(count: int, seed: int, *, only: Collection[str] = tuple(BY_CHANCE)) -> Iterator[Case]:
    """So many cases, of all operators (or ``only`` those) equally often."""
    random, operators = Random(seed), sorted(BY_CHANCE.keys() & {*only})
    random.shuffle(operators)
    for number in range(count):
        op, name, opset, draw = drawn_by_chance(operators[number % len(operators)], _UNSEEN * seed + number)
        variation = Variation(
            scale=random.choice((0.03, 0.2, 0.7, 1.0, 1.0, 2.5, 12.0)),
            batch=random.choice((1, 1, 1, 3)),
            behind=random.random() < 0.3,
            before=random.random() < 0.25,
            wide=random.choice((1.0, 1.0, 1.0, 2.0, 5.0)),
        )
        narrow = op in ("Conv", "ConvTranspose", "Gemm") and random.random() < 0.25
        kind = random.choice(_NARROW if narrow else _KINDS)
        yield Case(form=Form(op=op, name=name, draw=draw, opset=opset), kind=kind, variation=variation)
