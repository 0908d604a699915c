"""Traits that follow from sizes, stored values and grids by what a kernel is known to do with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from deploykit.model.facts import NodeFact
from deploykit.model.parameters import stored_behind_pairs
from deploykit_qualcomm.rules.views import Grids, grid_of

__all__ = ["traits_of_values"]

_ROUNDED: Mapping[str, Callable[[float], float]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "round_prefer_ceil": lambda place: math.floor(place + 0.5),
    "round_prefer_floor": lambda place: math.ceil(place - 0.5),
}
_NEAR = 0.05  # parts of a pixel
_TILE = 32


def traits_of_values(
    graph: Grids, node: NodeFact, settings: Mapping[str, float | str]
) -> Iterator[tuple[str, float | str]]:
    """Those that are known of this operator; ``settings`` are its attributes and their defaults."""
    shapes = [graph.facts.static_shape(name) or () for name in (*node.inputs[:2], *node.outputs[:1]) if name]
    # Of a Resize, operator set 10 has no modes and was not measured, and longer sides are no picture's.
    measured = node.op_type == "Resize" and "coordinate_transformation_mode" in settings and sum(shapes[-1]) <= 1 << 16
    if measured and len(shapes[0]) == len(shapes[-1]) and all(shapes[0] + shapes[-1]):
        yield from _read_elsewhere(graph, node, settings, zip(shapes[0], shapes[-1], strict=True))
    elif node.op_type == "DepthToSpace" and shapes[0]:
        yield "columns beyond tiles", float(shapes[0][-1] % _TILE)
    elif node.op_type == "ConvTranspose" and (*shapes[0][1:2], *shapes[1][1:2]) == (settings.get("group"), 1):
        strides = node.attributes.get("strides") or [1] * len(shapes[1])
        meeting = max(-(-size // step) for size, step in zip(shapes[1][2:], strides, strict=False))
        yield "weights that meet", "an odd number" if meeting > 1 and meeting % 2 else "one or an even number"
    elif node.op_type == "BatchNormalization":
        yield from _largest_offset(graph, node, float(settings["epsilon"]))
    elif node.op_type == "Reciprocal" and (grid := grid_of(graph, node.inputs[0])) and grid.scale.size == 1:
        # In integers it divides a one by its input, and that one is written in the steps of the input.
        step, low, high = (float(end.min()) for end in (grid.scale, grid.minimum, grid.maximum))
        yield "one is off by", abs(min(max(round(1 / step) * step, low), high) - 1)


def _read_elsewhere(
    graph: Grids, node: NodeFact, settings: Mapping[str, float | str], sides: Iterable[tuple[int, int]]
) -> Iterator[tuple[str, float]]:
    """The share of a Resize's result that is read elsewhere than asked.

    Its factors are taken from its sizes, and the nearest by a rule that depends on the coordinates alone.
    """
    from deploykit.model.collect import constant_value

    how, rounding, taken = str(settings["coordinate_transformation_mode"]), str(settings.get("nearest_mode", "")), ""
    told = how
    if rounding:
        told, taken = (
            ("asymmetric", "floor") if how in ("asymmetric", "pytorch_half_pixel") else (how, "round_prefer_ceil")
        )
    stored = constant_value(graph.model, node.operand(2))
    axes = node.attributes.get("axes") or range(8)
    factors = dict(zip(axes, () if stored is None else map(float, stored), strict=False))
    same = 1.0
    for axis, (size, made) in enumerate(sides):
        asked = _places(how, rounding, size, made, factors.get(axis, made / size))
        read = _places(told, taken, size, made, made / size)
        same *= sum(abs(a - b) <= _NEAR for a, b in zip(asked, read, strict=True)) / made
    yield "read elsewhere", round(1 - same, 4)


def _places(how: str, rounding: str, size: int, made: int, factor: float) -> Iterator[float]:
    """Where in a side of ``size`` each of ``made`` values is read, when the result is ``factor`` times as long."""
    for i in range(made):
        place = i / factor if how == "asymmetric" else (i + 0.5) / factor - 0.5
        if how == "align_corners":
            place = i * (size - 1) / max(made - 1, 1)
        yield min(max(_ROUNDED.get(rounding, float)(round(place, 9)), 0), size - 1)


def _largest_offset(graph: Grids, node: NodeFact, epsilon: float) -> Iterator[tuple[str, str]]:
    """Of a BatchNormalization with a bias of 32 bits: whether the largest value that it adds turns to its negative.

    It is counted in steps of 2^-31 of itself as float32, and one more than the last of these is the first.
    """
    import numpy as np

    from deploykit.model.collect import constant_value

    exact = []
    for name in node.inputs[1:5]:
        stored, grid = constant_value(graph.model, stored_behind_pairs(graph.facts, name) or ""), grid_of(graph, name)
        # To what a float is rounded first is not known.
        if stored is None or (grid is not None and stored.dtype.kind == "f"):
            return
        exact.append((stored.astype(np.float64) - (grid.zero_point if grid else 0)) * (grid.scale if grid else 1))
    offsets = exact[1] - exact[2] * exact[0] / np.sqrt(np.abs(exact[3] + epsilon))  # below zero nothing is right anyway
    most = float(offsets[np.abs(offsets).argmax()])
    turned = most > 0 and most / float(np.float32(most)) * 2.0**31 >= 2.0**31 - 0.5
    yield "largest offset", "turned" if turned else "kept"
