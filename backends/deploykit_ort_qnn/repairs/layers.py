"""Ways for convolutions whose settings a kernel gets wrong: one group, and a transposed one as an ordinary one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.repairs.place import Grid, Place

__all__ = ["as_ordinary", "without_groups"]

_MOST = 1 << 22
"""Values of a weight beyond which the zeros of other groups are not written out."""


def without_groups(place: Place) -> None:
    """One group: the weights that lead from one group to another are zeros."""
    place.assert_is("Conv", "ConvTranspose")
    if place.setting("group", 1) == 1:
        raise NoMatchError("it has one group")
    weight = _stored(place, *_one_group(place))
    place.finish(place.again([place.node.input[0], weight, *place.node.input[2:]], group=None))


def as_ordinary(place: Place) -> None:
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
        along = np.arange(made[at + 2] + reach) - reach + _start(place, at)
        held = (along >= 0) & (along % steps[at] == 0) & (along // steps[at] < given[at + 2])
        places[at + 2] = np.where(held, along // steps[at], -1)
    name = place.taken(source, places, None if place.grid is None else place.one_grid(source))
    turned = np.ascontiguousarray(np.flip(values.swapaxes(0, 1), tuple(range(2, values.ndim))))
    weight = _stored(place, turned, None if grid is None else replace(grid, axis=0))
    inputs = [name, weight, *place.node.input[2:]]
    place.finish(place.step("Conv", inputs, None, dilations=gaps, kernel_shape=kernel))


def _start(place: Place, at: int) -> int:
    """How much of the beginning is cut off along one axis."""
    if place.setting("auto_pad", "NOTSET") != "NOTSET" or place.setting("output_shape", ()):
        raise NoMatchError("its pads follow from its size")
    pads = tuple(place.setting("pads", ()))
    return int(pads[at]) if pads else 0


def _one_group(place: Place) -> tuple[Any, Grid | None]:
    """The weights as of one group: integers with their grid, or floats."""
    group, weight = place.setting("group", 1), place.node.input[1]
    grid, values = place.grid_of(weight), place.integers(weight)
    if grid is None:
        values = place.value(weight)
    elif grid.zero.any():
        raise NoMatchError("zero is not the middle of its weights' grid")
    if values is None or values.size * group > _MOST:
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


def _stored(place: Place, values: Any, grid: Grid | None) -> str:
    return place.number("weight", values) if grid is None else place.constant("weight", values, grid)
