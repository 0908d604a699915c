"""Grids for ranges: both ends and zero are held, and a new entry looks like those around it."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.encodings.new_grids import GridKind, affine_for_range, entry_for_range, kind_of_entry, usual_grid
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from tables import each_row


def affine(
    bits: int, signed: bool, zero: float = 0.0, symmetric: bool | None = None, axis: int | None = None
) -> Affine:
    shape = () if axis is None else (2,)
    scale = np.full(shape, 0.5)
    return Affine(
        bits=bits, signed=signed, scale=scale, zero_point=np.full(shape, zero), symmetric=symmetric, axis=axis
    )


def entries(*params: str, floats: tuple[str, ...] = (), **values: Affine) -> EncodingSet:
    made = {name: Encoding(name=name, value=value, is_param=name in params) for name, value in values.items()}
    made |= {name: Encoding(name=name, value=Float(dtype="float16")) for name in floats}
    return EncodingSet(version="1.0.0", entries=made)


@each_row(
    ("ends", "kind", "scale", "zero"),
    [
        ((0, 255), GridKind(bits=8, signed=False), 1.0, 0),
        ((-255, 0), GridKind(bits=8, signed=False), 1.0, 255),
        ((-55, 200), GridKind(bits=8, signed=False), 1.0, 55),
        ((-55, 200), GridKind(bits=8, signed=True), 1.0, -73),
        ((100, 255), GridKind(bits=8, signed=False), 1.0, 0),
        ((-255, -100), GridKind(bits=8, signed=False), 1.0, 255),
        ((0, 0), GridKind(bits=8, signed=False), 1 / 255, 0),
        ((0, 65535), GridKind(bits=16, signed=False), 1.0, 0),
        ((-127, 5), GridKind(bits=8, signed=True, symmetric=True), 1.0, 0),
        ((-5, 127), GridKind(bits=8, signed=True, symmetric=True), 1.0, 0),
        ((-5, 127), GridKind(bits=8, signed=False, symmetric=True), 1.0, 128),
    ],
)
def test_a_range_as_a_grid(ends: tuple[float, float], kind: GridKind, scale: float, zero: float) -> None:
    made = affine_for_range(*ends, kind)
    assert (float(made.scale), float(made.zero_point)) == pytest.approx((scale, zero))
    assert (made.bits, made.signed, made.symmetric) == (kind.bits, kind.signed, kind.symmetric)
    assert float(made.minimum) <= ends[0] and ends[1] <= float(made.maximum)


@each_row(
    ("encodings", "least", "kind"),
    [
        (entries(), 0, GridKind(bits=16, signed=False)),
        (entries(a=affine(8, False), b=affine(8, False), c=affine(16, True)), 0, GridKind(bits=8, signed=False)),
        (entries(a=affine(8, False), b=affine(8, False), c=affine(16, True)), 16, GridKind(bits=16, signed=False)),
        (entries(a=affine(8, True)), 0, GridKind(bits=8, signed=True)),
        (
            entries("a", "b", a=affine(8, True), b=affine(8, True), c=affine(16, False)),
            0,
            GridKind(bits=16, signed=False),
        ),
        (entries(a=affine(32, True), b=affine(32, True), c=affine(16, True)), 0, GridKind(bits=16, signed=True)),
        (entries(a=affine(8, True, axis=0), c=affine(16, True)), 0, GridKind(bits=16, signed=True)),
    ],
)
def test_the_usual_grid_is_that_of_most_activations(encodings: EncodingSet, least: int, kind: GridKind) -> None:
    assert usual_grid(encodings, least_bits=least) == kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (affine(8, True), GridKind(bits=8, signed=True, symmetric=True)),
        (affine(8, True, zero=3), GridKind(bits=8, signed=True)),
        (affine(8, True, symmetric=False), GridKind(bits=8, signed=True)),
        (affine(8, False), GridKind(bits=8, signed=False)),
        (affine(8, False, zero=128, symmetric=True), GridKind(bits=8, signed=False, symmetric=True)),
    ],
)
def test_an_entry_keeps_its_kind(value: Affine, kind: GridKind) -> None:
    assert kind_of_entry("a", entries(a=value)) == kind


def test_what_was_float_gets_sixteen_bits() -> None:
    encodings = entries(floats=("f",), a=affine(8, True), b=affine(8, True))
    assert kind_of_entry("f", encodings) == GridKind(bits=16, signed=True)
    assert kind_of_entry("unknown", encodings) == GridKind(bits=8, signed=True)


@pytest.mark.parametrize(("params", "is_param"), [(("a",), True), ((), False)])
def test_a_replaced_parameter_stays_one(params: tuple[str, ...], is_param: bool) -> None:
    encodings = entries(*params, a=affine(8, True))
    assert entry_for_range("a", encodings, -1, 1).is_param is is_param
    assert entry_for_range("new", encodings, -1, 1).is_param is False
