"""Ways for pools whose pads a kernel gets wrong: the windows lie inside of a map that is larger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.repairs.place import Grid, Place

__all__ = ["max_without_pads", "mean_without_pads"]


def max_without_pads(place: Place) -> None:
    """The greatest of windows that lie inside: values at a border come again, where they are in the window anyway."""
    place.assert_is("MaxPool")
    source = place.only_computed
    name = source if place.grid is None else place.converted(source, place.grid)
    inside = {axis: np.clip(places, 0, given - 1) for axis, places, given in _windows(place)}
    taken = place.taken(name, inside, place.grid)
    if taken == name:
        raise NoMatchError("its windows lie inside")
    place.finish(place.again([taken], pads=None, auto_pad=None, ceil_mode=None))


def mean_without_pads(place: Place) -> None:
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
    spread = None if grid is None else Grid.over(0.0, float(factors.max()), grid.zero.dtype)
    place.finish(place.step("Mul", [name, place.floats("counts", factors, spread)], None))


def _mean_inside(place: Place, made: tuple[int, ...]) -> Any:
    """Of ones with zeros around them, the mean over each window, all of it counted."""
    whole = np.ones((1, 1, *([1] * len(made))))
    for at, (axis, places, given) in enumerate(_windows(place)):
        size, step = _sizes(place)[at]
        starts = places[0] + np.arange(made[at]) * step
        held = [
            np.count_nonzero((start + np.arange(size) >= 0) & (start + np.arange(size) < given)) for start in starts
        ]
        whole = whole * np.reshape(np.asarray(held) / size, [-1 if other == axis else 1 for other in range(whole.ndim)])
    return whole


def _sizes(place: Place) -> tuple[tuple[int, int], ...]:
    """The size and the step of a pool's window along each axis."""
    kernel = tuple(place.setting("kernel_shape", ()))
    return tuple(zip(kernel, tuple(place.setting("strides", ())) or (1,) * len(kernel), strict=True))


def _windows(place: Place) -> Iterator[tuple[int, Any, int]]:
    """Of each axis of a map all places that a pool's windows reach, from below zero on, and how many there are.

    NoMatchError where a window has gaps, or holds nothing.
    """
    if any(step != 1 for step in place.setting("dilations", ())):
        raise NoMatchError("its window has gaps")
    given = place.shape(place.only_computed)
    made = place.function(np.zeros(given)).shape  # where windows begin beyond the map, less than is declared
    for at, (size, step) in enumerate(_sizes(place)):
        there = given[at + 2]
        needed = (made[at + 2] - 1) * step + size
        places = np.arange(needed, dtype=np.int64) - _pad_before(place, at, needed - there)
        starts = places[0] + np.arange(made[at + 2]) * step
        if (starts >= there).any() or (starts + size <= 0).any():
            raise NoMatchError("a window holds no value")
        yield at + 2, places, there


def _pad_before(place: Place, at: int, missing: int) -> int:
    """Of the window's first place, before the first value along one axis."""
    word = place.setting("auto_pad", "NOTSET")
    if word.startswith("SAME"):
        total = max(missing, 0)
        return total // 2 if word == "SAME_UPPER" else total - total // 2
    pads = tuple(place.setting("pads", ()))
    return int(pads[at]) if pads else 0
