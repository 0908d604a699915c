"""Forms that differ in attributes and sizes alone: every way of resizing, pooling, padding, sampling and stretching.

Where a kernel is wrong for some settings only, the border between them shows in these; layers stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from atlas.form_shapes import Drawn
from atlas.sketch import Sketch

__all__ = ["settings_of_operators"]

Draw = Callable[[Sketch], str]
_PLANES = ((6, 10), (8, 8), (13, 7), (16, 24))


def settings_of_operators() -> Iterator[Drawn]:
    """All families."""
    for family in (_resizes, _windows, _planes, _pads, _grids, _scatters, _gathers, _stretches, _clips, _axes, _layers):
        yield from family()


def _resizes() -> Iterator[Drawn]:
    places = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    sizes = {"twice": (12, 20), "3 times": (18, 30), "to 9 by 14": (9, 14), "half": (3, 5)}
    for place, rounding, (words, size) in product(places, ("floor", "ceil", "round_prefer_floor"), sizes.items()):
        settings = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
        yield "Resize", f"nearest, {place}, {rounding}, {words}, 4 channels", _resized((1, 4, 6, 10), size, settings)
    for mode, place, (words, size) in product(("linear", "cubic"), places, sizes.items()):
        settings = {"mode": mode, "coordinate_transformation_mode": place}
        yield "Resize", f"{mode}, {place}, {words}, 4 channels", _resized((1, 4, 6, 10), size, settings)


def _resized(shape: tuple[int, ...], size: tuple[int, ...], settings: dict[str, Any]) -> Draw:
    def draw(sketch: Sketch) -> str:
        x = sketch.input(*shape)
        if any(new % old and old % new for new, old in zip(size, shape[2:], strict=True)):
            # A factor that float32 does not hold leaves open how large the result is.
            return sketch.op("Resize", x, "", "", sketch.stored([*shape[:2], *size], "int64"), **settings)
        scales = [1.0, 1.0, *(new / old for new, old in zip(size, shape[2:], strict=True))]
        return sketch.op("Resize", x, "", sketch.stored(scales, "float32"), **settings)

    return draw


def _windows() -> Iterator[Drawn]:
    for op, width, stride, padded, plane in product(
        ("AveragePool", "MaxPool"), (2, 3, 5), (1, 2), (False, True), _PLANES
    ):
        pads = [width // 2] * 4 if padded else [0] * 4
        settings: dict[str, Any] = {"kernel_shape": [width] * 2, "strides": [stride] * 2, "pads": pads}
        words = f"{width} wide, stride {stride}, pads {pads[0]}, {plane[0]} by {plane[1]}"
        yield op, words, _on("input", op, (1, 8, *plane), settings)
        if op == "AveragePool" and padded:
            counted = {**settings, "count_include_pad": 1}
            yield op, f"{words}, padding counted", _on("input", op, (1, 8, *plane), counted)
    for channels in (1, 3, 32):
        settings = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}
        yield (
            "AveragePool",
            f"3 wide, pads 1, {channels} channels",
            _on("input", "AveragePool", (1, channels, 8, 8), settings),
        )
    for ceil in (0, 1):
        settings = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": ceil}
        yield "MaxPool", f"3 wide, stride 2, ceil_mode {ceil}", _on("input", "MaxPool", (1, 8, 10, 12), settings)
        yield (
            "AveragePool",
            f"3 wide, stride 2, ceil_mode {ceil}",
            _on("input", "AveragePool", (1, 8, 10, 12), settings),
        )


def _on(kind: str, op: str, shape: tuple[int, ...], settings: dict[str, Any]) -> Draw:
    del kind
    return lambda sketch: sketch.op(op, sketch.input(*shape), **settings)


def _planes() -> Iterator[Drawn]:
    for op, shape in product(
        ("GlobalAveragePool", "GlobalMaxPool"),
        ((1, 4, 30), (1, 16, 7, 7), (1, 3, 16, 24), (1, 4, 4, 5, 6), (1, 8, 2, 8, 8)),
    ):
        yield op, f"shape {'x'.join(map(str, shape))}", _on("input", op, shape, {})


def _pads() -> Iterator[Drawn]:
    sides = {"one side": [0, 0, 1, 0, 0, 0, 0, 0], "all around": [0, 0, 2, 1, 0, 0, 1, 2]}
    for mode, channels, (words, pads) in product(("constant", "reflect", "edge"), (1, 3, 4, 32), sides.items()):
        yield "Pad", f"{mode}, {words}, {channels} channels", _padded((1, channels, 6, 10), mode, pads, 0.0)
    for value in (-1.0, 1.5):
        yield "Pad", f"constant {value:g}, all around", _padded((1, 8, 6, 10), "constant", sides["all around"], value)
    yield "Pad", "constant, channels", _padded((1, 4, 6, 10), "constant", [0, 2, 0, 0, 0, 2, 0, 0], 0.0)
    yield "Pad", "edge, rank 3", _padded((1, 12, 16), "edge", [0, 0, 2, 0, 0, 1], 0.0)
    yield "Pad", "reflect, rank 3", _padded((1, 12, 16), "reflect", [0, 0, 2, 0, 0, 1], 0.0)


def _padded(shape: tuple[int, ...], mode: str, pads: Sequence[int], value: float) -> Draw:
    def draw(sketch: Sketch) -> str:
        filling = [sketch.stored(value, "float32")] if mode == "constant" else []
        return sketch.op("Pad", sketch.input(*shape), sketch.stored(pads, "int64"), *filling, mode=mode)

    return draw


def _grids() -> Iterator[Drawn]:
    for mode, padding, corners, shape in product(
        ("bilinear", "nearest"), ("zeros", "border"), (0, 1), ((1, 4, 8, 8), (1, 3, 16, 10))
    ):
        settings = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        words = f"{mode}, {padding}, align_corners {corners}, {'x'.join(map(str, shape))}"
        yield "GridSample", f"{words}, inside", _sampled(shape, settings, 0.9)
        yield "GridSample", f"{words}, beyond", _sampled(shape, settings, 1.5)


def _sampled(shape: tuple[int, ...], settings: dict[str, Any], most: float) -> Draw:
    return lambda sketch: sketch.op(
        "GridSample", sketch.input(*shape), sketch.input(1, 5, 6, 2, low=-most, high=most), **settings
    )


def _scatters() -> Iterator[Drawn]:
    for axis, rows in product((0, 1, -1), (1, 4)):
        yield "ScatterElements", f"stored places, axis {axis}, {rows} rows, rank 2", _scattered(axis, rows)
    for reduction in ("add", "mul", "max", "min"):
        yield "ScatterElements", f"reduction {reduction}, axis 1, rank 3", _reduced_into("ScatterElements", reduction)
        yield "ScatterND", f"reduction {reduction}, rank 3", _reduced_into("ScatterND", reduction)


def _scattered(axis: int, rows: int) -> Draw:
    def draw(sketch: Sketch) -> str:
        places = [[(3 * row + place) % 8 for place in range(rows)] for row in range(rows)]
        return sketch.op(
            "ScatterElements", sketch.input(8, 8), sketch.stored(places, "int64"), sketch.input(rows, rows), axis=axis
        )

    return draw


def _reduced_into(op: str, reduction: str) -> Draw:
    def draw(sketch: Sketch) -> str:
        if op == "ScatterND":
            places, news = sketch.stored([[0, 2], [0, 5]], "int64"), sketch.input(2, 16)
            return sketch.op(op, sketch.input(1, 12, 16), places, news, reduction=reduction)
        places = sketch.stored([[[(row * 5 + place) % 12 for place in range(16)] for row in range(2)]], "int64")
        return sketch.op(op, sketch.input(1, 12, 16), places, sketch.input(1, 2, 16), axis=1, reduction=reduction)

    return draw


def _gathers() -> Iterator[Drawn]:
    for op, axis in product(("Gather", "GatherElements"), (0, 1, 2)):
        yield op, f"negative stored places, axis {axis}, rank 3", _negative(op, axis)
    yield "GatherND", "negative stored places, rank 3", _negative_points
    for axis in (0, 1):
        yield "Gather", f"one stored place, axis {axis}, rank 3", _one_place(axis)


def _negative(op: str, axis: int) -> Draw:
    def draw(sketch: Sketch) -> str:
        places: Any = [-1, 0, -2, 1]
        if op == "GatherElements":
            places = [[[-1, 0, -2, 1]] * 2] * 3
        return sketch.op(op, sketch.input(4, 12, 16), sketch.stored(places, "int64"), axis=axis)

    return draw


def _negative_points(sketch: Sketch) -> str:
    return sketch.op("GatherND", sketch.input(4, 12, 16), sketch.stored([[-1, -2], [0, 3], [1, -1]], "int64"))


def _one_place(axis: int) -> Draw:
    return lambda sketch: sketch.op("Gather", sketch.input(4, 12, 16), sketch.stored(1, "int64"), axis=axis)


def _stretches() -> Iterator[Drawn]:
    shapes = {
        "channels": ((1, 8, 6, 10), (1, 8, 1, 1)),
        "rows": ((1, 8, 6, 10), (1, 1, 6, 1)),
        "both": ((1, 8, 1, 10), (1, 1, 6, 1)),
        "lower rank": ((2, 8, 6), (8, 1)),
        "first smaller": ((1, 1, 16), (1, 12, 16)),
    }
    for op, (words, (one, two)) in product(("Add", "Sub", "Mul", "Div", "Max", "Min"), shapes.items()):
        low = 0.5 if op == "Div" else -2.0
        yield op, f"stretched by {words}", _two(op, one, two, low)
        yield op, f"stretched by {words}, second stored", _with_stored(op, one, two, low)
    for op in ("Sub", "Div"):
        yield op, "a stored number first", _stored_first(op)


def _two(op: str, one: tuple[int, ...], two: tuple[int, ...], low: float) -> Draw:
    return lambda sketch: sketch.op(op, sketch.input(*one), sketch.input(*two, low=low))


def _with_stored(op: str, one: tuple[int, ...], two: tuple[int, ...], low: float) -> Draw:
    return lambda sketch: sketch.op(op, sketch.input(*one), sketch.between(low, 2.0, *two))


def _stored_first(op: str) -> Draw:
    low = 0.5 if op == "Div" else -2.0
    return lambda sketch: sketch.op(op, sketch.stored(1.0, "float32"), sketch.input(1, 12, 16, low=low))


def _clips() -> Iterator[Drawn]:
    for low, high in ((0.0, 6.0), (-1.0, 1.0), (0.25, 0.75), (-0.5, 0.0)):
        yield "Clip", f"{low:g} to {high:g}, rank 4", _clipped(low, high)
    yield (
        "Clip",
        "lower bound alone",
        lambda sketch: sketch.op("Clip", sketch.input(1, 12, 16), sketch.stored(-0.5, "float32")),
    )


def _clipped(low: float, high: float) -> Draw:
    return lambda sketch: sketch.op(
        "Clip", sketch.input(1, 8, 6, 10), sketch.stored(low, "float32"), sketch.stored(high, "float32")
    )


def _axes() -> Iterator[Drawn]:
    for op, axes, kept in product(("ReduceMean", "ReduceMax", "ReduceMin"), ([1], [2], [3], [2, 3], [1, 2, 3]), (0, 1)):
        words = f"axes {axes}, keepdims {kept}, 1x8x6x10"
        yield op, words, _on("input", op, (1, 8, 6, 10), {"axes": axes, "keepdims": kept})
    for axes in ([1], [2, 3]):
        yield "ReduceSum", f"axes {axes}, keepdims 0", _summed(axes)
    for op, axis, width in product(("Softmax", "LogSoftmax"), (1, -1), (3, 64, 200)):
        shape = (1, width, 5) if axis == 1 else (1, 5, width)
        yield op, f"axis {axis}, {width} values", _on("input", op, shape, {"axis": axis})
    for axis in (0, 1, 2):
        yield "Concat", f"three, axis {axis}, rank 3", _three(axis)
    for exclusive, reverse in product((0, 1), (0, 1)):
        yield "CumSum", f"exclusive {exclusive}, reverse {reverse}", _cumulated(exclusive, reverse)


def _summed(axes: Sequence[int]) -> Draw:
    return lambda sketch: sketch.op("ReduceSum", sketch.input(1, 8, 6, 10), sketch.stored(axes, "int64"), keepdims=0)


def _three(axis: int) -> Draw:
    return lambda sketch: sketch.op(
        "Concat", *(sketch.input(1, 4, 6, high=high) for high in (1.0, 2.0, 4.0)), axis=axis
    )


def _cumulated(exclusive: int, reverse: int) -> Draw:
    return lambda sketch: sketch.op(
        "CumSum", sketch.input(1, 12, 16), sketch.stored(1, "int64"), exclusive=exclusive, reverse=reverse
    )


def _layers() -> Iterator[Drawn]:
    for width in (10, 16, 33, 64, 100):
        yield "LayerNormalization", f"{width} values, rank 3", _normalized(width, (1, 12, width))
        yield "LayerNormalization", f"{width} values, rank 2", _normalized(width, (12, width))
    for channels, plane in product((1, 3, 16), ((8, 8), (6, 10))):
        yield "InstanceNormalization", f"{channels} channels, {plane[0]} by {plane[1]}", _instance(channels, plane)
    for width, stride, groups, channels in product((1, 3, 5), (1, 2), (1, 0), (3, 16)):
        groups = groups or channels
        yield (
            "Conv",
            f"{width} wide, stride {stride}, {groups} groups, {channels} channels",
            _conv(width, stride, groups, channels),
        )
    for width, stride, extra in product((2, 3, 4), (1, 2), (0, 1)):
        if extra < stride:
            yield (
                "ConvTranspose",
                f"{width} wide, stride {stride}, output_padding {extra}",
                _transposed(width, stride, extra),
            )
    for slope in ((8, 1, 1), (1, 1, 1)):
        yield "PRelu", f"slope {'x'.join(map(str, slope))}", _prelu(slope)


def _normalized(width: int, shape: tuple[int, ...]) -> Draw:
    return lambda sketch: sketch.op(
        "LayerNormalization",
        sketch.input(*shape),
        sketch.between(0.5, 1.5, width),
        sketch.between(-0.5, 0.5, width),
        axis=-1,
    )


def _instance(channels: int, plane: tuple[int, int]) -> Draw:
    return lambda sketch: sketch.op(
        "InstanceNormalization",
        sketch.input(1, channels, *plane),
        sketch.between(0.5, 1.5, channels),
        sketch.between(-0.5, 0.5, channels),
    )


def _conv(width: int, stride: int, groups: int, channels: int) -> Draw:
    def draw(sketch: Sketch) -> str:
        weight = sketch.weight(channels, channels // groups, width, width)
        inputs = [sketch.input(1, channels, 10, 13), weight, sketch.between(-0.5, 0.5, channels)]
        return sketch.op("Conv", *inputs, strides=[stride] * 2, pads=[width // 2] * 4, group=groups)

    return draw


def _transposed(width: int, stride: int, extra: int) -> Draw:
    def draw(sketch: Sketch) -> str:
        inputs = [sketch.input(1, 8, 6, 7), sketch.weight(8, 4, width, width), sketch.between(-0.5, 0.5, 4)]
        return sketch.op("ConvTranspose", *inputs, strides=[stride] * 2, output_padding=[extra] * 2)

    return draw


def _prelu(slope: tuple[int, ...]) -> Draw:
    return lambda sketch: sketch.op("PRelu", sketch.input(1, 8, 6, 10), sketch.between(0.1, 0.4, *slope))
