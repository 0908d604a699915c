"""Every way to compute a wrong operator differently: without groups or borders, by moves, by sums, in wider types.

Each way builds the replacement at a place, or says why it does not apply; which way is right is measured. Which values
an operator moves or adds up is found by running the operator itself on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from onnx import TensorProto
from onnx.defs import SchemaError, get_schema

from deploykit.encodings.values import on_axis
from deploykit.findings.records import Numbers, replace
from deploykit.rewrites.contract import NoMatchError
from deploykit.rewrites.lower_operators import PoolAxis, pool_windows
from deploykit_ort_qnn.bench.place import OperatorPlace, PairGrid

__all__ = ["WAYS"]

Build: TypeAlias = "Callable[[OperatorPlace], None]"


class RepairWay(Struct, frozen=True):
    """A way to compute an operator. ``build`` raises NoMatchError if the
    way does not apply; ``told`` says what was done.
    """

    name: str
    told: str
    build: Build


WAYS: dict[str, RepairWay] = {}
"""The ways by name, the preferred ones first."""


def _way(name: str, told: str) -> Callable[[Build], Build]:
    """Registers the decorated function as the next way."""

    def add(build: Build) -> Build:
        WAYS[name] = RepairWay(name, told, build)
        return build

    return add


@_way("no-groups", "its groups are one, with zeros between them")
def _without_groups(place: OperatorPlace) -> None:
    place.assert_is("Conv", "ConvTranspose")
    if place.setting("group", 1) == 1:
        raise NoMatchError("it has one group")
    # The weights as those of one group: integers with their grid, or floats.
    group, weight = place.setting("group", 1), place.node.input[1]
    grid = place.grid_of(weight)
    values = place.value(weight) if grid is None else place.integers(weight)
    if grid is not None and grid.zero.any():
        raise NoMatchError("zero is not the middle of its weights' grid")
    if values is None or values.size * group > _MOST_WEIGHTS:
        raise NoMatchError("its weights are not stored, or too large")
    # The first axis holds the rows of all groups; along the second each group gets columns of its own.
    rows, columns = values.shape[0] // group, values.shape[1]
    whole = np.zeros((values.shape[0], columns * group, *values.shape[2:]), values.dtype)
    for number in range(group):
        part = slice(number * rows, (number + 1) * rows)
        whole[part, number * columns : (number + 1) * columns] = values[part]
    if grid is not None and grid.scale.size > 1 and place.node.op_type == "ConvTranspose":
        grid = replace(grid, scale=np.tile(grid.scale, group), zero=np.tile(grid.zero, group))
    weight = place.floats("weight", whole, grid)
    place.finish(place.operator_on([place.node.input[0], weight, *place.node.input[2:]], group=None))


# The most values of a weight for which the zeros of other groups are written out.
_MOST_WEIGHTS = 1 << 22


@_way("max-inside", "its windows lie inside: values at a border come again")
def _max_without_pads(place: OperatorPlace) -> None:
    """A repeated value is in the window already, so it does not change the maximum."""
    place.assert_is("MaxPool")
    name = place.moved_on_result_grid()
    inside = {window.axis: np.clip(_reached(window), 0, window.size - 1) for window in _windows(place)}
    taken = place.taken(name, inside, place.grid)
    if taken == name:
        raise NoMatchError("its windows lie inside")
    place.finish(place.operator_on([taken], **_NO_PADS))


@_way("mean-inside", "zeros are put around its map, and what of a window counts is a factor")
def _mean_without_pads(place: OperatorPlace) -> None:
    place.assert_is("AveragePool")
    windows, source = _windows(place), place.only_computed
    name = _with_zeros(place, windows)
    grid = place.grid and place.one_grid(source)
    # The operator's result for ones, divided by the mean over each whole window.
    factors = place.function(np.ones(place.shape(source)))[:1, :1]
    for window in windows:
        factors = factors / on_axis(window.exists.mean(axis=1), window.axis, factors.ndim)
    name = place.operator_on([name], **_NO_PADS, count_include_pad=None)
    if not np.allclose(factors, 1):
        name = name if grid is None else place.converted(name, grid)
        spread = grid and PairGrid.over(0.0, float(factors.max()), grid.zero.dtype)
        name = place.step("Mul", [name, place.floats("counts", factors, spread)], None)
    place.finish(name)


_NO_PADS: dict[str, Any] = {"pads": None, "auto_pad": None, "ceil_mode": None}


def _windows(place: OperatorPlace) -> list[PoolAxis]:
    """The windows along each axis. Raises NoMatchError for a pool with gaps.

    No window is empty: the operator does not run with such borders.
    """
    if place.node.op_type != "Conv" and any(step != 1 for step in place.setting("dilations", ())):
        raise NoMatchError("its window has gaps")
    given = place.shape(place.only_computed)
    # If windows begin beyond the map, the result is smaller than declared.
    return pool_windows(place.node, given, place.function(np.zeros(given)).shape)


def _reached(window: PoolAxis) -> npt.NDArray[np.int64]:
    """All positions that the windows along one axis reach, beginning below zero."""
    return np.arange(window.places[0, 0], window.places[-1, -1] + 1)


@_way("conv-inside", "zeros are put around its map, and it slides over them")
def _conv_without_pads(place: OperatorPlace) -> None:
    place.assert_is("Conv")
    name = _with_zeros(place, _windows(place))
    place.finish(place.operator_on([name, *place.node.input[1:]], pads=None, auto_pad=None))


def _with_zeros(place: OperatorPlace, windows: list[PoolAxis]) -> str:
    """The map with zeros at all positions beyond it that the windows reach. Raises NoMatchError if there are none."""
    inside = {one.axis: np.where((places := _reached(one)) < one.size, places, -1) for one in windows}
    name = place.taken(source := place.only_computed, inside, place.grid and place.one_grid(source))
    if name == source:
        raise NoMatchError("its windows lie inside")
    return name


@_way("by-places", "Gathers with stored places move what it moved")
def _by_places(place: OperatorPlace) -> None:
    """Works if the source position along each axis depends on that axis alone."""
    found, given = _sources(place), place.shape(place.only_computed)
    if found.ndim != len(given):
        raise NoMatchError("it changes the number of axes")
    places = {}
    for axis, along in enumerate(np.unravel_index(found, given)):
        row = along[tuple(slice(None) if other == axis else 0 for other in range(found.ndim))]
        if not (along == on_axis(row, axis, found.ndim)).all():
            raise NoMatchError("what goes where along one axis depends on another")
        places[axis] = np.ascontiguousarray(row, np.int64)
    place.finish(place.taken(place.moved_on_result_grid(), places, place.grid))


# The most values for which positions are looked for: float32 counts exactly up to four times as many.
_MOST_MOVED = 1 << 22


def _sources(place: OperatorPlace) -> npt.NDArray[np.int64]:
    """The flat input position of each value of the result. Raises NoMatchError if it does more than move."""
    shape = place.shape(place.only_computed)
    size = math.prod(shape)
    if size > _MOST_MOVED:
        raise NoMatchError(f"it reads more than {_MOST_MOVED} values")
    made = place.function(np.arange(size).reshape(shape))
    moves = bool(np.isfinite(made).all() and made.min(initial=0) >= 0 and made.max(initial=0) < size)
    # Values that are not finite or no position cannot be cast to integers.
    found = np.rint(made).astype(np.int64) if moves else np.zeros(0, np.int64)
    moves = moves and np.array_equal(made, found)
    random = np.random.default_rng(0)
    for _ in range(2 if moves else 0):
        values = random.permutation(size).astype(np.float32) - size // 2
        moves = moves and np.array_equal(place.function(values.reshape(shape)), values[found])
    if not moves:
        raise NoMatchError("it does not only move values")
    if np.array_equal(found.reshape(-1), np.arange(size)):
        raise NoMatchError("it moves nothing")
    return found


@_way("by-sums", "MatMuls with its factors add up what it added up")
def _by_sums(place: OperatorPlace) -> None:
    """Sums along one axis after the other, each moved to the end and back; on a grid, factors have 8 bits."""
    name = place.only_computed
    shape = list(place.shape(name))
    factors = {axis: one for axis, one in _factors(place).items() if not np.array_equal(one, np.eye(len(one)))}
    if not factors:
        raise NoMatchError("it changes nothing")

    def shaped(name: str, shape: list[int], grid: PairGrid | None) -> str:
        return place.step("Reshape", [name, place.number("shape", np.asarray(shape, np.int64))], grid)

    grid = place.grid and place.one_grid(name)
    last, rank = len(shape) - 1, len(shape)
    for axis, one in factors.items():
        after = grid
        if grid is not None:
            # The range that sums of this grid's values can reach.
            above, below = np.clip(one, 0, None), np.clip(one, None, 0)
            high, low = above * grid.high + below * grid.low, above * grid.low + below * grid.high
            reached = PairGrid.over(float(low.sum(1).min()), float(high.sum(1).max()), grid.zero.dtype)
            after = place.result_grid if axis == [*factors][-1] else reached
        order = [*(other for other in range(rank) if other != axis), axis]
        if axis != last:
            name = place.step("Transpose", [name], grid, perm=order)
        flat = rank not in (2, 3, 4)  # the ranks of a MatMul
        if flat:
            name = shaped(name, [math.prod(shape) // shape[axis], shape[axis]], grid)
        spread = grid and PairGrid.over(float(one.min()), float(one.max()), np.uint8)
        name = place.step("MatMul", [name, place.floats("factors", one.T, spread)], after)
        shape[axis] = len(one)
        if flat:
            name = shaped(name, [shape[other] for other in order], after)
        if axis != last:
            name = place.step("Transpose", [name], after, perm=[int(at) for at in np.argsort(order)])
        grid = after
    place.finish(name)


# The longest axis for which a matrix of factors is worth its cost.
_MOST_PLACES = 1024
_MOST_SUMMED = 1 << 20
_CLOSE = 1e-4


def _factors(place: OperatorPlace) -> dict[int, Numbers]:
    """The factors of the result's positions along each axis, shaped [made,
    given]; the axes together give the whole sum.
    """
    given, made = place.shape(place.only_computed), place.shape(place.result)
    if len(given) != len(made) or max(given) > _MOST_PLACES or math.prod(given) > _MOST_SUMMED:
        raise NoMatchError("it changes the number of axes, or is too large")
    whole = place.function(np.ones(given)).astype(np.float64)
    top = np.unravel_index(int(np.abs(whole).argmax()), whole.shape)
    peak = float(whole[top])
    if not math.isfinite(peak) or peak == 0:
        raise NoMatchError("it is no sum")
    found = dict[int, Numbers]()
    for axis in range(len(given)):
        # The result of a one at each position of the axis, in the row through the greatest sum.
        row = tuple(slice(None) if other == axis else at for other, at in enumerate(top))
        columns = []
        for at in range(given[axis]):
            values = np.zeros(given)
            values[tuple(at if other == axis else slice(None) for other in range(len(given)))] = 1
            columns.append(place.function(values)[row].astype(np.float64))
        found[axis] = np.stack(columns, axis=1) / peak
    if not all(np.isfinite(one).all() for one in found.values()):
        raise NoMatchError("it is no sum")
    last = max((axis for axis, one in found.items() if not np.array_equal(one, np.eye(len(one)))), default=0)
    found[last] = found[last] * peak
    random = np.random.default_rng(0)
    for values in (random.normal(size=given), np.zeros(given), random.uniform(-3, 0, given)):
        sums = values
        for axis, one in found.items():
            sums = np.moveaxis(np.tensordot(one, sums, (1, axis)), 0, axis)
        wanted = place.function(values)
        most = _CLOSE * float(np.abs(wanted).max())
        if not np.isfinite(wanted).all() or not np.allclose(sums, wanted, rtol=_CLOSE, atol=most):
            raise NoMatchError("it is no sum with fixed factors along each axis")
    return found


@_way("in-16-bits", "it computes in 16 bits")
def _in_16_bits(place: OperatorPlace) -> None:
    """Converts the computed inputs and the result to 16 bits."""
    result = place.result_grid
    if result.bits != 8:
        raise NoMatchError("its result has no 8 bits")
    changed = dict[str, str]()
    for name in dict.fromkeys(filter(None, place.node.input)):
        grid = place.grid_of(name) if place.value(name) is None else None
        if grid is not None:
            changed[name] = place.converted(name, PairGrid.over(grid.low, grid.high, np.uint16))
    name = place.operator_on([changed.get(name, name) for name in place.node.input])
    place.finish(place.converted(name, PairGrid.over(result.low, result.high, np.uint16)))


# The most values that are gathered one by one.
_MOST_FLAT = 1 << 16


@_way("by-places-in-a-row", "one Gather moves all values in a row")
def _by_places_in_a_row(place: OperatorPlace) -> None:
    found = _sources(place)
    if found.size > _MOST_FLAT or found.ndim == 0:
        raise NoMatchError(f"it makes more than {_MOST_FLAT} values, or one")
    row = place.number("in_a_row", np.asarray([-1], np.int64))
    name = place.step("Reshape", [place.moved_on_result_grid(), row], place.grid)
    name = place.step("Gather", [name, place.number("places", found.reshape(-1))], place.grid, axis=0)
    place.finish(place.step("Reshape", [name, place.number("shape", np.asarray(found.shape, np.int64))], None))


@_way("in-float16", "it computes in float16")
def _in_float16(place: OperatorPlace) -> None:
    """Casts all inputs that have the type of the first one, if the operator's definition allows float16."""
    if place.grid is None:
        raise NoMatchError("its result has no grid")
    try:
        schema = get_schema(place.node.op_type, place.graph.opset, place.node.domain)
    except SchemaError:
        raise NoMatchError("it is no operator of ONNX") from None
    formal = [*schema.inputs, *([schema.inputs[-1]] * (len(place.node.input) - len(schema.inputs)))]
    kind = schema.inputs[0].type_str
    types = next((one.allowed_type_strs for one in schema.type_constraints if one.type_param_str == kind), ())
    if schema.outputs[0].type_str != kind or "tensor(float16)" not in types:
        raise NoMatchError("it has no form in float16")
    pairs = zip(place.node.input, formal, strict=False)
    changed = dict[str, str]()
    for name in dict.fromkeys(name for name, one in pairs if name and one.type_str == kind):
        value = place.value(name)
        if value is None:
            changed[name] = place.step("Cast", [name], None, to=TensorProto.FLOAT16)
        else:
            changed[name] = place.number("half", value.astype(np.float16))
    name = place.operator_on([changed.get(name, name) for name in place.node.input])
    place.finish(place.step("Cast", [name], None, to=TensorProto.FLOAT))
