"""The traits of one node, in the words of the atlas' conditions: sizes, settings, ranges, neighbours.

Some follow from sizes, stored values and grids by what a kernel is known to do. The words are the same for a user's
node and for one of a graph made for the atlas. Nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TypeAlias

from deploykit.findings.records import Json, Shape
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import QUANTIZERS, ops
from deploykit.model.operators import Trait as Kind
from deploykit.model.parameters import stored_behind_pairs
from deploykit_qualcomm.rules.views import EncodedGraph, grid_of, quantized

__all__ = ["traits_of", "type_of"]

Trait: TypeAlias = float | str

_PAIR = (*QUANTIZERS, "Cast", "Identity")
_SIZES = {2: ("rows", "last"), 3: ("batch", "channels", "last"), 4: ("batch", "channels", "height", "last")}
# Operators that commute with a common factor of all values: only the ratios of grids can matter.
_SCALE_FREE = ops(
    Kind.REARRANGES, Kind.SELECTS, Kind.JOINS, Kind.AVERAGES, Kind.RECTIFIES, Kind.LINEAR, Kind.NORMALIZES
) | frozenset(
    """
    Abs Add AveragePool CumSum GridSample LpNormalization Neg Pad ReduceSum Relu Resize ScatterElements ScatterND Sub
    """.split()  # noqa: SIM905 - names are easier to read without quotes
)
# Operators whose kernels deviate as much, or cut off at the same value, on any grid of their result.
_LIMITED = frozenset({"ReduceL2", "Softplus"})
_DIGITS = 6  # float32 holds no more, and equal grids must compare as equal
_LEAST_SPAN = 1e-30  # a grid with one value has no range to divide by

# Traits that depend on grids, and so on the type.
RANGES = frozenset(
    {
        "in steps per out step",
        "grids apart",
        "grid of the gate",
        "largest result",
        "one is off by",
        "steps beyond its bounds",
    }
    | {f"{side} {end}" for side in ("in", "out", "second", "third") for end in ("bits", "span")}
)


def type_of(graph: EncodedGraph, node: NodeFact) -> str:
    """The type of a node: ``u8``, ``u16`` or ``float`` by its result, else by its inputs; "" for other integers only.

    Signed activations are written as unsigned ones of the same width.
    """
    for name in (*node.outputs, *node.inputs):
        found = quantized(graph, name) if name else None
        if found is not None and found.bits in (8, 16) and not stored_behind_pairs(graph.facts, name):
            return f"u{found.bits}"
    return "float" if any(graph.facts.tensor(name).is_float for name in (*node.outputs, *node.inputs)) else ""


def traits_of(graph: EncodedGraph, node: NodeFact, *, grids: bool = True) -> dict[str, Trait]:
    """Every known trait by name; numbers are floats. Without ``grids``
    only those that do not depend on types or values.
    """
    settings = dict(_settings(graph.facts, node))
    measured = {**dict(_ranges(graph, node)), **dict(traits_of_values(graph, node, settings))} if grids else {}
    return {**settings, **measured, **_place(graph.facts, node)}


def _place(facts: GraphFacts, node: NodeFact) -> dict[str, Trait]:
    """The traits of shapes and neighbours."""
    # The operator that reads the result, through pairs; ``several`` or ``output`` if it is not exactly one. A
    # conversion's reader may be the conversion back: the compiler leaves both out.
    todo, found = [name for name in node.outputs if name], set[str]()
    for name in todo:
        for reader in facts.consumers_of(name):
            if reader.op_type in _PAIR and not node.op_type == reader.op_type == "Cast":
                todo += reader.outputs
            else:
                found.add(reader.op_type)
    computed = [name for name in node.inputs if name and not stored_behind_pairs(facts, name)]
    around = {
        "behind": _maker(facts, computed[0]) if computed else "input",
        "before": (found.pop() if len(found) == 1 else "several" if found else "output"),
    }
    # In a product of x with an operator's result of x: that operator, and the one that makes x.
    gate, x = _gated(facts, node)
    if gate is not None:
        around |= {"gate": gate.op_type, "gated": _maker(facts, x)}
    return {**dict(_shapes(facts, node)), **around}


def _gated(facts: GraphFacts, node: NodeFact) -> tuple[NodeFact | None, str]:
    """The operator that makes one factor of a product from the other factor,
    and the other's name; (None, "") without one.
    """
    if node.op_type == "Mul" and len(node.inputs) == len({*node.inputs}) == 2:
        for x, made in (node.inputs, reversed(node.inputs)):
            gate = facts.maker_behind(made, _PAIR)
            if gate is None or len(gate.inputs) != 1:
                continue
            if facts.origin(gate.inputs[0], _PAIR) == facts.origin(x, _PAIR):
                return gate, x
    return None, ""


def _settings(facts: GraphFacts, node: NodeFact) -> Iterator[tuple[str, Trait]]:
    """Yields attributes: texts and numbers, for lists the largest, the smallest and the count; else the default."""
    given = {**_defaults(node.op_type, facts.opset), **node.attributes}
    if given.get("mode") != "nearest":
        given.pop("nearest_mode", None)  # exporters write it beside every mode
    for name, value in given.items():
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, str):
            yield name, value
        elif isinstance(value, list | tuple) and value and all(isinstance(item, int | float) for item in value):
            yield f"most {name}", float(max(value))
            yield f"least {name}", float(min(value))
            yield f"count {name}", float(len(value))


@cache
def _defaults(op: str, opset: int) -> Json:
    """The default values of an operator's attributes, as far as they do not depend on a node."""
    from onnx import defs

    from deploykit.model.collect import plain

    try:
        attributes = defs.get_schema(op, opset).attributes
    except defs.SchemaError:  # no operator of this set
        return {}
    return {name: plain(one.default_value) for name, one in attributes.items() if one.default_value.name}


def _shapes(facts: GraphFacts, node: NodeFact) -> Iterator[tuple[str, Trait]]:
    shapes = [facts.static_shape(name) for name in node.inputs]
    first = shapes[0] if shapes else None
    if first is not None:
        yield "rank", float(len(first))
        if len(first) > 1:
            yield from zip(_SIZES.get(len(first), ("batch", "channels")), (float(size) for size in first), strict=False)
            yield "last", float(first[-1])
        yield "elements", float(math.prod(first))
        axis = node.attributes.get("axis")
        if isinstance(axis, int) and -len(first) <= axis < len(first):
            yield "axis from the end", float(axis % len(first) - len(first))
            yield "along the axis", float(first[axis])
    stored = (str(place) for place, name in enumerate(node.inputs) if name and stored_behind_pairs(facts, name))
    yield "stored", " ".join(stored) or "none"
    made = facts.static_shape(node.outputs[0]) if node.outputs else None
    if first is not None and made is not None and math.prod(first) > 0:
        yield "grows by", round(math.prod(made) / math.prod(first), 4)
        if first and len(made) == len(first) and first[-1] > 0:
            yield "last grows by", round(made[-1] / first[-1], 4)
    if first is not None:
        yield from _windows(node, first)
    second = shapes[1] if len(shapes) > 1 else None
    if first is not None and second is not None:
        yield "second elements", float(math.prod(second))
        if second:
            yield "second last", float(second[-1])


def _windows(node: NodeFact, shape: Shape) -> Iterator[tuple[str, Trait]]:
    """Yields traits of sliding operators: the rest behind the last window, even windows, and padding by half."""
    kernel, sides = node.attributes.get("kernel_shape"), len(shape) - 2
    if not isinstance(kernel, list | tuple) or len(kernel) != sides:
        return
    strides = list(node.attributes.get("strides") or [1] * sides)
    if "strides" not in node.attributes:
        yield from {"most strides": 1.0, "least strides": 1.0}.items()
    pads = list(node.attributes.get("pads") or [0] * 2 * sides)
    dilations = list(node.attributes.get("dilations") or [1] * sides)
    if len(strides) == sides == len(dilations) and len(pads) == 2 * sides:
        room = [shape[2 + n] + pads[n] + pads[n + sides] - (kernel[n] - 1) * dilations[n] - 1 for n in range(sides)]
        yield "left over", float(max(space % step for space, step in zip(room, strides, strict=True)))
        if not any(size % 2 for size in kernel):
            yield "windows", "even"
        if any(pads) and all(pads[n] == kernel[n] // 2 for n in range(sides)):
            yield "padded", "by half"


def _ranges(graph: EncodedGraph, node: NodeFact) -> Iterator[tuple[str, Trait]]:
    """Yields traits of the grids of the first three inputs and of the result, and of their relations."""
    steps = {}
    for side, name in zip(("out", "in", "second", "third"), (*node.outputs[:1], *node.inputs[:3]), strict=False):
        grid = grid_of(graph, name) if name else None
        if grid is None:
            continue
        yield f"{side} bits", float(grid.bits)
        if grid.scale.size != 1:
            yield f"{side} channels of scales", float(grid.scale.size)
            continue
        steps[side] = float(grid.scale.min())
        low, high = grid.ends
        if side == "out" and node.op_type in _LIMITED:
            yield "largest result", _rounded(high)
        if node.op_type in _SCALE_FREE:
            continue
        yield f"{side} span", _rounded(high - low)
    if "in" in steps and steps.get("out"):
        yield "in steps per out step", _rounded(steps["in"] / steps["out"])
    # The distance between the grids of computed inputs and that of the result: the largest distance between their ends,
    # as a part of the result's range.
    made = _ends(graph, node.outputs[0]) if node.outputs else None
    computed = (name for name in node.inputs if name and not stored_behind_pairs(graph.facts, name))
    known = [ends for name in computed if (ends := _ends(graph, name))]
    if known and made:
        span = max(made[1] - made[0], _LEAST_SPAN)
        yield "grids apart", _rounded(max(abs(one[end] - made[end]) for one in known for end in (0, 1)) / span)
    clipped = grid_of(graph, node.outputs[0]) if node.op_type == "Clip" else None
    if clipped is not None and clipped.scale.size == 1:
        # The number of steps by which its grid exceeds the bounds, at the end with more.
        below = _bound(graph, node, 1, "min") - float(clipped.minimum.min())
        beyond = max(below, float(clipped.maximum.max()) - _bound(graph, node, 2, "max"))
        if math.isfinite(beyond):
            yield "steps beyond its bounds", _rounded(beyond / float(clipped.scale.min()))
    shape = graph.facts.static_shape(node.inputs[0]) if node.op_type == "CumSum" else None
    if shape and math.isfinite(axis := _bound(graph, node, 1, "axis")):  # it is an input of the operator
        yield "axis from the end", axis % len(shape) - len(shape)
    gate, x = _gated(graph.facts, node)
    if gate is not None:
        yield "grid of the gate", "the same" if _ends(graph, gate.inputs[0]) == _ends(graph, x) else "another"


def _bound(graph: EncodedGraph, node: NodeFact, position: int, attribute: str) -> float:
    """A bound of a Clip (or another stored input); infinite if it is absent or computed."""
    from deploykit.model.collect import constant_range

    if attribute in node.attributes:
        return float(node.attributes[attribute])
    name = node.operand(position)
    stored = constant_range(graph.model, name) if name else None
    return (-math.inf if attribute == "min" else math.inf) if stored is None else stored[0]


def _ends(graph: EncodedGraph, name: str) -> tuple[float, float, int] | None:
    """Both ends of a per-tensor grid, and its bits; None for any other."""
    grid = grid_of(graph, name)
    if grid is None or grid.scale.size != 1:
        return None
    low, high = map(_rounded, grid.ends)
    return low, high, grid.bits


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _maker(facts: GraphFacts, name: str) -> str:
    """The operator that makes a tensor, seen through pairs and conversions; ``input`` if there is none."""
    maker = facts.maker_behind(name, _PAIR)
    return "input" if maker is None else maker.op_type


_ROUNDED: Mapping[str, Callable[[float], float]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "round_prefer_ceil": lambda place: math.floor(place + 0.5),
    "round_prefer_floor": lambda place: math.ceil(place - 0.5),
}
_NEAR = 0.05  # as a part of a pixel
_TILE = 32


def traits_of_values(
    graph: EncodedGraph, node: NodeFact, settings: Mapping[str, float | str]
) -> Iterator[tuple[str, float | str]]:
    """Yields traits of certain operators by stored values and grids; ``settings`` are attributes with their
    defaults.
    """
    shapes = [graph.facts.static_shape(name) or () for name in (*node.inputs[:2], *node.outputs[:1]) if name]
    # A Resize of operator set 10 has no modes and was not measured; longer sides are not those of pictures.
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
        # In integers it divides a one by its input, and this one is written in the input's steps.
        step, low, high = (float(end.min()) for end in (grid.scale, grid.minimum, grid.maximum))
        yield "one is off by", abs(min(max(round(1 / step) * step, low), high) - 1)


def _read_elsewhere(
    graph: EncodedGraph, node: NodeFact, settings: Mapping[str, float | str], sides: Iterable[tuple[int, int]]
) -> Iterator[tuple[str, float]]:
    """Yields the share of a Resize's result that is read at another position than asked.

    The kernel derives its factors from the sizes, and its rounding from the coordinate mode only.
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
    """Yields the position in a side of ``size`` at which each of ``made`` values is read, for a scale of ``factor``."""
    for i in range(made):
        place = i / factor if how == "asymmetric" else (i + 0.5) / factor - 0.5
        if how == "align_corners":
            place = i * (size - 1) / max(made - 1, 1)
        yield min(max(_ROUNDED.get(rounding, float)(round(place, 9)), 0), size - 1)


def _largest_offset(graph: EncodedGraph, node: NodeFact, epsilon: float) -> Iterator[tuple[str, str]]:
    """Yields whether the largest offset of a BatchNormalization with a 32-bit bias turns into its negative.

    The kernel counts it in steps of 2^-31 of its float32 value, in which the
    largest count plus one wraps around to the smallest.
    """
    import numpy as np

    from deploykit.model.collect import constant_value

    exact = []
    for name in node.inputs[1:5]:
        stored, grid = constant_value(graph.model, stored_behind_pairs(graph.facts, name) or ""), grid_of(graph, name)
        # It is not known what the kernel rounds a float to first.
        if stored is None or (grid is not None and stored.dtype.kind == "f"):
            return
        exact.append((stored.astype(np.float64) - (grid.zero_point if grid else 0)) * (grid.scale if grid else 1))
    # Only the sign of a variance below zero is lost here: its result is wrong anyway.
    offsets = exact[1] - exact[2] * exact[0] / np.sqrt(np.abs(exact[3] + epsilon))
    most = float(offsets[np.abs(offsets).argmax()])
    turned = most > 0 and most / float(np.float32(most)) * 2.0**31 >= 2.0**31 - 0.5
    yield "largest offset", "turned" if turned else "kept"
