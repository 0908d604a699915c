"""Ways for operators that only move values: which value goes where is stored, and Gather, which is right, moves it.

Where each value goes is read off the operator itself, run on the CPU.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.repairs.place import Place

__all__ = ["by_places", "by_places_in_a_row"]

_MOST = 1 << 22
"""Values beyond which places are not looked for: float32 counts no further than four times that."""
_MOST_FLAT = 1 << 16
"""Values that are gathered one by one."""


def by_places(place: Place) -> None:
    """Gathers with stored places along each axis, where what goes where is settled axis by axis."""
    found, given = _found(place), place.shape(place.only_computed)
    if found.ndim != len(given):
        raise NoMatchError("it changes the number of axes")
    axes = [_along(coordinates, axis) for axis, coordinates in enumerate(np.unravel_index(found, given))]
    name = _on_result_grid(place)
    for axis, places in enumerate(axes):
        if not np.array_equal(places, np.arange(given[axis])):
            stored = place.number(f"places_{axis}", places)
            name = place.step("Gather", [name, stored], place.grid, axis=axis)
    _end(place, name)


def by_places_in_a_row(place: Place) -> None:
    """One Gather from all values in a row."""
    found = _found(place)
    if found.size > _MOST_FLAT or found.ndim == 0:
        raise NoMatchError(f"it makes more than {_MOST_FLAT} values, or one")
    row = place.number("in_a_row", np.asarray([-1], np.int64))
    name = place.step("Reshape", [_on_result_grid(place), row], place.grid)
    name = place.step("Gather", [name, place.number("places", found.reshape(-1))], place.grid, axis=0)
    _end(place, place.step("Reshape", [name, place.number("shape", np.asarray(found.shape, np.int64))], None))


def _found(place: Place) -> npt.NDArray[np.int64]:
    """For each value of the result its place among those of the input."""
    shape = place.shape(place.only_computed)
    size = math.prod(shape)
    if size > _MOST:
        raise NoMatchError(f"it reads more than {_MOST} values")
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


def _along(coordinates: npt.NDArray[Any], axis: int) -> npt.NDArray[np.int64]:
    """The places along an axis, where they are the same all over the others."""
    row = coordinates[tuple(slice(None) if other == axis else 0 for other in range(coordinates.ndim))]
    if not (coordinates == row.reshape([-1 if other == axis else 1 for other in range(coordinates.ndim)])).all():
        raise NoMatchError("what goes where along one axis depends on another")
    return np.ascontiguousarray(row, np.int64)


def _on_result_grid(place: Place) -> str:
    """What is read, in the integers that the result has: what moves them need not convert."""
    return place.only_computed if place.grid is None else place.converted(place.only_computed, place.grid)


def _end(place: Place, name: str) -> None:
    if name == place.only_computed:
        raise NoMatchError("it changes nothing")
    place.finish(name)
