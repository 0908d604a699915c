"""Ways for operators that add up what they read with fixed factors: a MatMul with the stored factors, axis by axis.

The factors are read off the operator itself, run on the CPU: pools that average, cumulative sums, linear resizing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.repairs.place import Grid, Place

__all__ = ["by_sums", "by_wide_sums"]

Numbers = npt.NDArray[Any]
_MOST = 1024
"""Places of an axis beyond which a matrix of factors is more work than a repair is worth."""
_MOST_VALUES = 1 << 20
_CLOSE = 1e-4
_RANKS = (2, 3, 4)
"""Of what a MatMul with stored factors takes."""


def by_sums(place: Place) -> None:
    """With factors in 8 bits, where the result has a grid."""
    _by_sums(place, np.uint8)


def by_wide_sums(place: Place) -> None:
    """With factors in 16 bits."""
    if place.result_grid.bits != 16:
        raise NoMatchError("its result has no 16 bits")
    _by_sums(place, np.int16)


def _by_sums(place: Place, kind: npt.DTypeLike) -> None:
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


def _factors(place: Place) -> dict[int, Numbers]:
    """For each axis what each place of the result is made of, [made, given]; their product over the axes is it all."""
    given, made = place.shape(place.only_computed), place.shape(place.result)
    if len(given) != len(made) or max(given) > _MOST or math.prod(given) > _MOST_VALUES:
        raise NoMatchError("it changes the number of axes, or is too large")
    whole = place.function(np.ones(given)).astype(np.float64)
    top = np.unravel_index(int(np.abs(whole).argmax()), whole.shape)
    peak = float(whole[top])
    if not math.isfinite(peak) or peak == 0:
        raise NoMatchError("it is no sum")
    found = {axis: _along(place, given, axis, top) / peak for axis in range(len(given))}
    if not all(np.isfinite(one).all() for one in found.values()):
        raise NoMatchError("it is no sum")
    last = max((axis for axis, one in found.items() if not np.array_equal(one, np.eye(len(one)))), default=0)
    found[last] = found[last] * peak
    _assert_is_all(place, given, found)
    return found


def _along(place: Place, given: tuple[int, ...], axis: int, top: Sequence[Any]) -> Numbers:
    """What a one in each place of an axis comes to, in the row through the greatest sum."""
    row = tuple(slice(None) if other == axis else at for other, at in enumerate(top))
    columns = []
    for at in range(given[axis]):
        values = np.zeros(given)
        values[tuple(at if other == axis else slice(None) for other in range(len(given)))] = 1
        columns.append(place.function(values)[row].astype(np.float64))
    return np.stack(columns, axis=1)


def _assert_is_all(place: Place, given: tuple[int, ...], factors: dict[int, Numbers]) -> None:
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


def _reached(grid: Grid, factors: Numbers) -> Grid:
    """What sums of values of a grid come to."""
    above, below = np.clip(factors, 0, None), np.clip(factors, None, 0)
    high, low = above * grid.high + below * grid.low, above * grid.low + below * grid.high
    return Grid.over(float(low.sum(1).min()), float(high.sum(1).max()), grid.zero.dtype)


def _summed(
    place: Place,
    name: str,
    shape: Sequence[int],
    what: tuple[int, Numbers, npt.DTypeLike],
    grids: tuple[Grid | None, Grid | None],
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
    spread = None if before is None else Grid.over(float(factors.min()), float(factors.max()), kind)
    name = place.step("MatMul", [name, place.floats("factors", factors.T, spread)], after)
    if flat:
        name = _shaped(place, name, [*(shape[other] for other in order[:-1]), len(factors)], after)
    if axis != len(shape) - 1:
        name = place.step("Transpose", [name], after, perm=[int(at) for at in np.argsort(order)])
    return name


def _shaped(place: Place, name: str, shape: Sequence[int], grid: Grid | None) -> str:
    return place.step("Reshape", [name, place.number("shape", np.asarray(shape, np.int64))], grid)
