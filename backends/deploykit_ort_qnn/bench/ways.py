"""Every way to compute a wrong operator differently: other grids, convolutions, pools, moves, sums.

Each builds at a place what stands there instead, or says why it is none for it; which is right is measured. What an
operator moves or adds up is read off the operator itself, run on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.bench.place import Numbers, OperatorPlace, PairGrid

__all__ = ["WAYS", "RepairWay"]

_WIDER = 2.0


def all_on_result_grid(place: OperatorPlace) -> None:
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


def on_input_grid(place: OperatorPlace) -> None:
    """Its result has the grid of its input, and is converted behind it."""
    grid = place.one_grid(place.node.input[0])
    if grid.is_same(place.result_grid):
        raise NoMatchError("both are on one grid")
    place.finish(place.converted(place.again(place.node.input), grid))


def wider_result(place: OperatorPlace) -> None:
    """Its result has a grid twice as wide, and is converted behind it."""
    grid = place.result_grid
    wide = PairGrid.over(_WIDER * grid.low, _WIDER * grid.high, grid.zero.dtype)
    place.finish(place.converted(place.again(place.node.input), wide))


def even_result(place: OperatorPlace) -> None:
    """Its result has a grid with zero in the middle, and is converted behind it."""
    grid = place.result_grid
    info = np.iinfo(grid.zero.dtype)
    middle = (info.max + info.min + 1) // 2
    if int(grid.zero) == middle:
        raise NoMatchError("zero is in the middle")
    scale = max(-grid.low, grid.high) / (info.max - middle)
    even = PairGrid(scale=np.asarray(scale, np.float32), zero=np.asarray(middle, info.dtype))
    place.finish(place.converted(place.again(place.node.input), even))


def in_16_bits(place: OperatorPlace) -> None:
    """It reads and gives 16 bits."""
    if place.result_grid.bits != 8:
        raise NoMatchError("its result has no 8 bits")
    again: dict[str, str] = {}
    for name in dict.fromkeys(place.node.input):
        grid = place.grid_of(name) if name and place.value(name) is None else None
        if grid is not None:
            again[name] = place.converted(name, PairGrid.over(grid.low, grid.high, np.uint16))
    name = place.again([again.get(name, name) for name in place.node.input])
    place.finish(place.converted(name, PairGrid.over(place.result_grid.low, place.result_grid.high, np.uint16)))


def in_float16(place: OperatorPlace) -> None:
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


def _of_the_first_type(place: OperatorPlace) -> list[str]:
    """What the operator reads that has the type of its first input, by its definition, which must allow float16."""
    schema = place.definition()
    given = [*schema.inputs, *([schema.inputs[-1]] * (len(place.node.input) - len(schema.inputs)))]
    kind = schema.inputs[0].type_str
    types = next((one.allowed_type_strs for one in schema.type_constraints if one.type_param_str == kind), ())
    if schema.outputs[0].type_str != kind or "tensor(float16)" not in types:
        raise NoMatchError("it has no form in float16")
    pairs = zip(place.node.input, given, strict=False)
    return list(dict.fromkeys(name for name, one in pairs if name and one.type_str == kind))


# Values of a weight beyond which the zeros of other groups are not written out.
_MOST_WEIGHTS = 1 << 22


def without_groups(place: OperatorPlace) -> None:
    """One group: the weights that lead from one group to another are zeros."""
    place.assert_is("Conv", "ConvTranspose")
    if place.setting("group", 1) == 1:
        raise NoMatchError("it has one group")
    weight = place.weight(*_one_group(place))
    place.finish(place.again([place.node.input[0], weight, *place.node.input[2:]], group=None))


def as_ordinary(place: OperatorPlace) -> None:
    """A Conv over the input with zeros between and around its values, with the weights turned round."""
    place.assert_is("ConvTranspose")
    source = place.node.input[0]
    given, made = place.shape(source), place.shape(place.result)
    values, grid = _one_group(place)
    kernel = values.shape[2:]
    gaps = tuple(place.setting("dilations", ())) or (1,) * len(kernel)
    steps = tuple(place.setting("strides", ())) or (1,) * len(kernel)
    places = {}
    for at, size in enumerate(kernel):
        reach = (size - 1) * gaps[at]
        along = np.arange(made[at + 2] + reach) - reach + _cut_off(place, at)
        held = (along >= 0) & (along % steps[at] == 0) & (along // steps[at] < given[at + 2])
        places[at + 2] = np.where(held, along // steps[at], -1)
    name = place.taken(source, places, None if place.grid is None else place.one_grid(source))
    turned = np.ascontiguousarray(np.flip(values.swapaxes(0, 1), tuple(range(2, values.ndim))))
    weight = place.weight(turned, None if grid is None else replace(grid, axis=0))
    inputs = [name, weight, *place.node.input[2:]]
    place.finish(place.step("Conv", inputs, None, dilations=gaps, kernel_shape=kernel))


def _cut_off(place: OperatorPlace, at: int) -> int:
    """How much of the beginning is cut off along one axis."""
    if place.setting("auto_pad", "NOTSET") != "NOTSET" or place.setting("output_shape", ()):
        raise NoMatchError("its pads follow from its size")
    pads = tuple(place.setting("pads", ()))
    return int(pads[at]) if pads else 0


def _one_group(place: OperatorPlace) -> tuple[Any, PairGrid | None]:
    """The weights as of one group: integers with their grid, or floats."""
    group, weight = place.setting("group", 1), place.node.input[1]
    grid, values = place.grid_of(weight), place.integers(weight)
    if grid is None:
        values = place.value(weight)
    elif grid.zero.any():
        raise NoMatchError("zero is not the middle of its weights' grid")
    if values is None or values.size * group > _MOST_WEIGHTS:
        raise NoMatchError("its weights are not stored, or too large")
    # Along the first axis groups stand behind each other; along the second each gets a part of its own.
    rows, columns = values.shape[0] // group, values.shape[1]
    whole = np.zeros((values.shape[0], columns * group, *values.shape[2:]), values.dtype)
    for number in range(group):
        part = slice(number * rows, (number + 1) * rows)
        whole[part, number * columns : (number + 1) * columns] = values[part]
    if grid is not None and grid.scale.size > 1 and place.node.op_type == "ConvTranspose":
        grid = replace(grid, scale=np.tile(grid.scale, group), zero=np.tile(grid.zero, group))
    return whole, grid


def max_without_pads(place: OperatorPlace) -> None:
    """The greatest of windows that lie inside: values at a border come again, where they are in the window anyway."""
    place.assert_is("MaxPool")
    source = place.only_computed
    name = source if place.grid is None else place.converted(source, place.grid)
    inside = {axis: np.clip(places, 0, given - 1) for axis, places, given in _windows(place)}
    taken = place.taken(name, inside, place.grid)
    if taken == name:
        raise NoMatchError("its windows lie inside")
    place.finish(place.again([taken], pads=None, auto_pad=None, ceil_mode=None))


def mean_without_pads(place: OperatorPlace) -> None:
    """The mean over windows in a map with zeros around it, times what of each window counts."""
    place.assert_is("AveragePool")
    source = place.only_computed
    grid = None if place.grid is None else place.one_grid(source)
    inside = {axis: np.where(places < given, places, -1) for axis, places, given in _windows(place)}
    name = place.taken(source, inside, grid)
    if name == source:
        raise NoMatchError("its windows lie inside")
    settings = {"pads": None, "auto_pad": None, "ceil_mode": None, "count_include_pad": None}
    counts = place.function(np.ones(place.shape(source)))[:1, :1]
    factors = counts / _mean_inside(place, counts.shape[2:])
    if np.allclose(factors, 1):
        place.finish(place.again([name], **settings))
        return
    name = place.again([name], **settings)
    name = name if grid is None else place.converted(name, grid)
    spread = None if grid is None else PairGrid.over(0.0, float(factors.max()), grid.zero.dtype)
    place.finish(place.step("Mul", [name, place.floats("counts", factors, spread)], None))


def _mean_inside(place: OperatorPlace, made: tuple[int, ...]) -> Any:
    """Of ones with zeros around them, the mean over each window, all of it counted."""
    whole = np.ones((1, 1, *([1] * len(made))))
    for at, (axis, places, given) in enumerate(_windows(place)):
        size, step = _kernel_steps(place)[at]
        starts = places[0] + np.arange(made[at]) * step
        held = [
            np.count_nonzero((start + np.arange(size) >= 0) & (start + np.arange(size) < given)) for start in starts
        ]
        whole = whole * np.reshape(np.asarray(held) / size, [-1 if other == axis else 1 for other in range(whole.ndim)])
    return whole


def _kernel_steps(place: OperatorPlace) -> tuple[tuple[int, int], ...]:
    """The size and the step of a pool's window along each axis."""
    kernel = tuple(place.setting("kernel_shape", ()))
    return tuple(zip(kernel, tuple(place.setting("strides", ())) or (1,) * len(kernel), strict=True))


def _windows(place: OperatorPlace) -> Iterator[tuple[int, Any, int]]:
    """Of each axis of a map all places that a pool's windows reach, from below zero on, and how many there are.

    NoMatchError where a window has gaps, or holds nothing.
    """
    if any(step != 1 for step in place.setting("dilations", ())):
        raise NoMatchError("its window has gaps")
    given = place.shape(place.only_computed)
    made = place.function(np.zeros(given)).shape  # where windows begin beyond the map, less than is declared
    for at, (size, step) in enumerate(_kernel_steps(place)):
        there = given[at + 2]
        needed = (made[at + 2] - 1) * step + size
        places = np.arange(needed, dtype=np.int64) - _pad_before(place, at, needed - there)
        starts = places[0] + np.arange(made[at + 2]) * step
        if (starts >= there).any() or (starts + size <= 0).any():
            raise NoMatchError("a window holds no value")
        yield at + 2, places, there


def _pad_before(place: OperatorPlace, at: int, missing: int) -> int:
    """Of the window's first place, before the first value along one axis."""
    word = place.setting("auto_pad", "NOTSET")
    if word.startswith("SAME"):
        total = max(missing, 0)
        return total // 2 if word == "SAME_UPPER" else total - total // 2
    pads = tuple(place.setting("pads", ()))
    return int(pads[at]) if pads else 0


# Values that are gathered one by one.
_MOST_MOVED = 1 << 22
"""Values beyond which places are not looked for: float32 counts no further than four times that."""
_MOST_FLAT = 1 << 16


def by_places(place: OperatorPlace) -> None:
    """Gathers with stored places along each axis, where what goes where is settled axis by axis."""
    found, given = _sources(place), place.shape(place.only_computed)
    if found.ndim != len(given):
        raise NoMatchError("it changes the number of axes")
    axes = [_places_along(coordinates, axis) for axis, coordinates in enumerate(np.unravel_index(found, given))]
    name = _on_result_grid(place)
    for axis, places in enumerate(axes):
        if not np.array_equal(places, np.arange(given[axis])):
            stored = place.number(f"places_{axis}", places)
            name = place.step("Gather", [name, stored], place.grid, axis=axis)
    _finish_moved(place, name)


def by_places_in_a_row(place: OperatorPlace) -> None:
    """One Gather from all values in a row."""
    found = _sources(place)
    if found.size > _MOST_FLAT or found.ndim == 0:
        raise NoMatchError(f"it makes more than {_MOST_FLAT} values, or one")
    row = place.number("in_a_row", np.asarray([-1], np.int64))
    name = place.step("Reshape", [_on_result_grid(place), row], place.grid)
    name = place.step("Gather", [name, place.number("places", found.reshape(-1))], place.grid, axis=0)
    _finish_moved(place, place.step("Reshape", [name, place.number("shape", np.asarray(found.shape, np.int64))], None))


def _sources(place: OperatorPlace) -> npt.NDArray[np.int64]:
    """For each value of the result its place among those of the input."""
    shape = place.shape(place.only_computed)
    size = math.prod(shape)
    if size > _MOST_MOVED:
        raise NoMatchError(f"it reads more than {_MOST_MOVED} values")
    made = place.function(np.arange(size).reshape(shape))
    # In this order: what is not finite or beyond all places becomes no integer.
    if not (np.isfinite(made).all() and made.min(initial=0) >= 0 and made.max(initial=0) < size):
        raise NoMatchError("it does not only move values")
    found = np.rint(made).astype(np.int64)
    if not np.array_equal(made, found):
        raise NoMatchError("it does not only move values")
    random = np.random.default_rng(0)
    for _ in range(2):
        values = random.permutation(size).astype(np.float32) - size // 2
        if not np.array_equal(place.function(values.reshape(shape)), values[found]):
            raise NoMatchError("it does not only move values")
    if np.array_equal(found.reshape(-1), np.arange(size)):
        raise NoMatchError("it moves nothing")
    return found


def _places_along(coordinates: npt.NDArray[Any], axis: int) -> npt.NDArray[np.int64]:
    """The places along an axis, where they are the same all over the others."""
    row = coordinates[tuple(slice(None) if other == axis else 0 for other in range(coordinates.ndim))]
    if not (coordinates == row.reshape([-1 if other == axis else 1 for other in range(coordinates.ndim)])).all():
        raise NoMatchError("what goes where along one axis depends on another")
    return np.ascontiguousarray(row, np.int64)


def _on_result_grid(place: OperatorPlace) -> str:
    """What is read, in the integers that the result has: what moves them need not convert."""
    return place.only_computed if place.grid is None else place.converted(place.only_computed, place.grid)


def _finish_moved(place: OperatorPlace, name: str) -> None:
    if name == place.only_computed:
        raise NoMatchError("it changes nothing")
    place.finish(name)


# Of what a MatMul with stored factors takes.
_MOST_PLACES = 1024
"""Places of an axis beyond which a matrix of factors is more work than a repair is worth."""
_MOST_SUMMED = 1 << 20
_CLOSE = 1e-4
_RANKS = (2, 3, 4)


def by_sums(place: OperatorPlace) -> None:
    """With factors in 8 bits, where the result has a grid."""
    _by_sums(place, np.uint8)


def by_wide_sums(place: OperatorPlace) -> None:
    """With factors in 16 bits."""
    if place.result_grid.bits != 16:
        raise NoMatchError("its result has no 16 bits")
    _by_sums(place, np.int16)


def _by_sums(place: OperatorPlace, kind: npt.DTypeLike) -> None:
    name = place.only_computed
    shape = list(place.shape(name))
    factors = {axis: one for axis, one in _factors(place).items() if not np.array_equal(one, np.eye(len(one)))}
    if not factors:
        raise NoMatchError("it changes nothing")
    grid = None if place.grid is None else place.one_grid(name)
    for axis, one in factors.items():
        after = None if grid is None else place.result_grid if axis == [*factors][-1] else _reached(grid, one)
        name = _summed(place, name, shape, (axis, one, kind), (grid, after))
        shape[axis], grid = len(one), after
    place.finish(name)


def _factors(place: OperatorPlace) -> dict[int, Numbers]:
    """For each axis what each place of the result is made of, [made, given]; their product over the axes is it all."""
    given, made = place.shape(place.only_computed), place.shape(place.result)
    if len(given) != len(made) or max(given) > _MOST_PLACES or math.prod(given) > _MOST_SUMMED:
        raise NoMatchError("it changes the number of axes, or is too large")
    whole = place.function(np.ones(given)).astype(np.float64)
    top = np.unravel_index(int(np.abs(whole).argmax()), whole.shape)
    peak = float(whole[top])
    if not math.isfinite(peak) or peak == 0:
        raise NoMatchError("it is no sum")
    found = {axis: _row_through(place, given, axis, top) / peak for axis in range(len(given))}
    if not all(np.isfinite(one).all() for one in found.values()):
        raise NoMatchError("it is no sum")
    last = max((axis for axis, one in found.items() if not np.array_equal(one, np.eye(len(one)))), default=0)
    found[last] = found[last] * peak
    _assert_is_all(place, given, found)
    return found


def _row_through(place: OperatorPlace, given: tuple[int, ...], axis: int, top: Sequence[Any]) -> Numbers:
    """What a one in each place of an axis comes to, in the row through the greatest sum."""
    row = tuple(slice(None) if other == axis else at for other, at in enumerate(top))
    columns = []
    for at in range(given[axis]):
        values = np.zeros(given)
        values[tuple(at if other == axis else slice(None) for other in range(len(given)))] = 1
        columns.append(place.function(values)[row].astype(np.float64))
    return np.stack(columns, axis=1)


def _assert_is_all(place: OperatorPlace, given: tuple[int, ...], factors: dict[int, Numbers]) -> None:
    """NoMatchError where it does something else with other values."""
    random = np.random.default_rng(0)
    for values in (random.normal(size=given), np.zeros(given), random.uniform(-3, 0, given)):
        made = values
        for axis, one in factors.items():
            made = np.moveaxis(np.tensordot(one, made, (1, axis)), 0, axis)
        wanted = place.function(values)
        if not np.isfinite(wanted).all() or not np.allclose(
            made, wanted, rtol=_CLOSE, atol=_CLOSE * float(np.abs(wanted).max())
        ):
            raise NoMatchError("it is no sum with fixed factors along each axis")


def _reached(grid: PairGrid, factors: Numbers) -> PairGrid:
    """What sums of values of a grid come to."""
    above, below = np.clip(factors, 0, None), np.clip(factors, None, 0)
    high, low = above * grid.high + below * grid.low, above * grid.low + below * grid.high
    return PairGrid.over(float(low.sum(1).min()), float(high.sum(1).max()), grid.zero.dtype)


def _summed(
    place: OperatorPlace,
    name: str,
    shape: Sequence[int],
    what: tuple[int, Numbers, npt.DTypeLike],
    grids: tuple[PairGrid | None, PairGrid | None],
) -> str:
    """Sums along one axis of a tensor of that shape: the axis is brought to the end and back; grids before, after."""
    axis, factors, kind = what
    before, after = grids
    order = [*(other for other in range(len(shape)) if other != axis), axis]
    if axis != len(shape) - 1:
        name = place.step("Transpose", [name], before, perm=order)
    flat = len(shape) not in _RANKS
    if flat:
        name = _shaped(place, name, [math.prod(shape) // shape[axis], shape[axis]], before)
    spread = None if before is None else PairGrid.over(float(factors.min()), float(factors.max()), kind)
    name = place.step("MatMul", [name, place.floats("factors", factors.T, spread)], after)
    if flat:
        name = _shaped(place, name, [*(shape[other] for other in order[:-1]), len(factors)], after)
    if axis != len(shape) - 1:
        name = place.step("Transpose", [name], after, perm=[int(at) for at in np.argsort(order)])
    return name


def _shaped(place: OperatorPlace, name: str, shape: Sequence[int], grid: PairGrid | None) -> str:
    return place.step("Reshape", [name, place.number("shape", np.asarray(shape, np.int64))], grid)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairWay:
    """``build`` raises NoMatchError where it is none for an operator; ``told`` says of the operator what was done."""

    name: str
    told: str
    build: Callable[[OperatorPlace], None]


_ALL = (
    RepairWay(name="one-grid", told="what it reads is converted to its result's grid first", build=all_on_result_grid),
    RepairWay(
        name="input-grid", told="its result has its input's grid, and is converted behind it", build=on_input_grid
    ),
    RepairWay(name="no-groups", told="its groups are one, with zeros between them", build=without_groups),
    RepairWay(name="as-conv", told="it is a Conv over its input with zeros between the values", build=as_ordinary),
    RepairWay(name="max-inside", told="its windows lie inside: values at a border come again", build=max_without_pads),
    RepairWay(
        name="mean-inside",
        told="zeros are put around its map, and what of a window counts is a factor",
        build=mean_without_pads,
    ),
    RepairWay(name="by-places", told="Gathers with stored places move what it moved", build=by_places),
    RepairWay(name="wider-result", told="its result has a grid twice as wide, converted behind it", build=wider_result),
    RepairWay(name="even-result", told="its result has a grid around zero, converted behind it", build=even_result),
    RepairWay(
        name="by-wide-sums", told="MatMuls with its factors in 16 bits add up what it added up", build=by_wide_sums
    ),
    RepairWay(name="by-sums", told="MatMuls with its factors add up what it added up", build=by_sums),
    RepairWay(name="in-16-bits", told="it computes in 16 bits", build=in_16_bits),
    RepairWay(name="by-places-in-a-row", told="one Gather moves all values in a row", build=by_places_in_a_row),
    RepairWay(name="in-float16", told="it computes in float16", build=in_float16),
)

WAYS: Mapping[str, RepairWay] = {way.name: way for way in _ALL}
