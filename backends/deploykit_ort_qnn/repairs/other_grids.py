"""Ways that give the same operator other integers, and convert where it begins and ends: other ranges, other types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto
from onnx.defs import OpSchema

from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.repairs.place import Grid, Place

__all__ = ["all_on_result_grid", "even_result", "in_16_bits", "in_float16", "on_input_grid", "wider_result"]

_WIDER = 2.0


def all_on_result_grid(place: Place) -> None:
    """Whatever it computes from is converted to the grid of its result first."""
    grid = place.result_grid
    found = {name: place.grid_of(name) for name in place.node.input if name}
    other = {name for name, one in found.items() if one is not None and not one.is_same(grid)}
    if not other:
        raise NoMatchError("all are on its result's grid")
    again: dict[str, str] = {}
    for name in sorted(other):
        value = place.value(name)
        again[name] = place.converted(name, grid) if value is None else place.floats("on_grid", value, grid)
    place.finish(place.again([again.get(name, name) for name in place.node.input]))


def on_input_grid(place: Place) -> None:
    """Its result has the grid of its input, and is converted behind it."""
    grid = place.one_grid(place.node.input[0])
    if grid.is_same(place.result_grid):
        raise NoMatchError("both are on one grid")
    place.finish(place.converted(place.again(place.node.input), grid))


def wider_result(place: Place) -> None:
    """Its result has a grid twice as wide, and is converted behind it."""
    grid = place.result_grid
    wide = Grid.over(_WIDER * grid.low, _WIDER * grid.high, grid.zero.dtype)
    place.finish(place.converted(place.again(place.node.input), wide))


def even_result(place: Place) -> None:
    """Its result has a grid with zero in the middle, and is converted behind it."""
    grid = place.result_grid
    info = np.iinfo(grid.zero.dtype)
    middle = (info.max + info.min + 1) // 2
    if int(grid.zero) == middle:
        raise NoMatchError("zero is in the middle")
    scale = max(-grid.low, grid.high) / (info.max - middle)
    even = Grid(scale=np.asarray(scale, np.float32), zero=np.asarray(middle, info.dtype))
    place.finish(place.converted(place.again(place.node.input), even))


def in_16_bits(place: Place) -> None:
    """It reads and gives 16 bits."""
    if place.result_grid.bits != 8:
        raise NoMatchError("its result has no 8 bits")
    again: dict[str, str] = {}
    for name in dict.fromkeys(place.node.input):
        grid = place.grid_of(name) if name and place.value(name) is None else None
        if grid is not None:
            again[name] = place.converted(name, Grid.over(grid.low, grid.high, np.uint16))
    name = place.again([again.get(name, name) for name in place.node.input])
    place.finish(place.converted(name, Grid.over(place.result_grid.low, place.result_grid.high, np.uint16)))


def in_float16(place: Place) -> None:
    """It computes in float16."""
    if place.grid is None:
        raise NoMatchError("its result has no grid")
    again: dict[str, str] = {}
    for name in _of_the_first_type(place):
        value = place.value(name)
        if value is None:
            again[name] = place.step("Cast", [name], None, to=TensorProto.FLOAT16)
        else:
            again[name] = place.number("half", value.astype(np.float16))
    name = place.again([again.get(name, name) for name in place.node.input])
    place.finish(place.step("Cast", [name], None, to=TensorProto.FLOAT))


def _of_the_first_type(place: Place) -> list[str]:
    """What the operator reads that has the type of its first input, by its definition, which must allow float16."""
    schema = place.definition()
    given = [*schema.inputs, *([schema.inputs[-1]] * (len(place.node.input) - len(schema.inputs)))]
    kind = schema.inputs[0].type_str
    if schema.outputs[0].type_str != kind or "tensor(float16)" not in _types(schema, kind):
        raise NoMatchError("it has no form in float16")
    pairs = zip(place.node.input, given, strict=False)
    return list(dict.fromkeys(name for name, one in pairs if name and one.type_str == kind))


def _types(schema: OpSchema, kind: str) -> Sequence[str]:
    return next((one.allowed_type_strs for one in schema.type_constraints if one.type_param_str == kind), ())
