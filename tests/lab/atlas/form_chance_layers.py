"""Forms drawn by chance of layers, pools, resizing and sampling: settings and sizes from a source of chance."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

from atlas.sketch import Sketch

__all__ = ["LAYERS_BY_CHANCE"]

Draw = Callable[[Sketch], str]
Maker = Callable[[Random], Draw]


def _conv(random: Random) -> Draw:
    sides = random.choice((1, 2, 2, 2, 3))
    groups = random.choice((1, 1, 2, 4))
    inside, outside = groups * random.randint(1, 4), groups * random.randint(1, 4)
    if random.random() < 0.25:
        groups = outside = inside
    width, stride, dilation = random.choice((1, 2, 3, 5)), random.choice((1, 1, 2, 3)), random.choice((1, 1, 2))
    plane = [random.choice((9, 12, 15)) for _ in range(sides)]
    biased, pad = random.random() < 0.6, random.choice((0, width // 2))

    def draw(sketch: Sketch) -> str:
        inputs = [sketch.input(1, inside, *plane), sketch.weight(outside, inside // groups, *[width] * sides)]
        if biased:
            inputs.append(sketch.between(-0.4, 0.4, outside))
        return sketch.op(
            "Conv",
            *inputs,
            strides=[stride] * sides,
            dilations=[dilation] * sides,
            pads=[pad] * 2 * sides,
            group=groups,
        )

    return draw


def _transposed(random: Random) -> Draw:
    groups = random.choice((1, 1, 2))
    inside, outside = 2 * groups * random.randint(1, 3), random.randint(1, 4)
    width, stride = random.choice((2, 3, 4)), random.choice((1, 2, 3))
    extra, pad = random.randint(0, stride - 1), random.choice((0, 1))
    plane = [random.choice((4, 5, 8)), random.choice((4, 7))]

    def draw(sketch: Sketch) -> str:
        inputs = [sketch.input(1, inside, *plane), sketch.weight(inside, outside, width, width)]
        return sketch.op(
            "ConvTranspose",
            *inputs,
            strides=[stride] * 2,
            output_padding=[extra] * 2,
            pads=[min(pad, width - 1)] * 4,
            group=groups,
        )

    return draw


def _product(random: Random) -> Draw:
    batch = [random.randint(1, 3) for _ in range(random.randint(0, 3))]
    rows, inside, columns = random.randint(1, 9), random.choice((4, 16, 24)), random.choice((1, 6, 16))
    stored = random.random() < 0.5

    def draw(sketch: Sketch) -> str:
        x = sketch.input(*batch, rows, inside)
        return sketch.op(
            "MatMul", x, sketch.weight(inside, columns) if stored else sketch.input(*batch, inside, columns)
        )

    return draw


def _gemm(random: Random) -> Draw:
    rows, inside, columns, turned = random.randint(1, 9), 12, random.choice((1, 6, 16)), random.randint(0, 1)
    shape = (columns, inside) if turned else (inside, columns)

    def draw(sketch: Sketch) -> str:
        inputs = [sketch.input(rows, inside), sketch.weight(*shape), sketch.between(-0.4, 0.4, columns)]
        return sketch.op("Gemm", *inputs, transB=turned)

    return draw


def _pool(op: str) -> Maker:
    def make(random: Random) -> Draw:
        channels = random.choice((1, 3, 5, 8))
        if op.startswith("Global"):
            shape = [1, channels, *(random.choice((3, 6, 9, 14)) for _ in range(random.choice((2, 2, 2, 3))))]
            return lambda sketch: sketch.op(op, sketch.input(*shape))
        width, stride = [random.choice((2, 3, 4)) for _ in range(2)], [random.choice((1, 2, 3)) for _ in range(2)]
        pads = [random.randint(0, size // 2) for size in width] * 2
        settings: dict[str, Any] = {"ceil_mode": random.choice((0, 0, 0, 1))}
        if op == "AveragePool":
            settings["count_include_pad"] = random.randint(0, 1)
        plane = [random.choice((8, 11, 14)), random.choice((8, 9, 13))]
        return lambda sketch: sketch.op(
            op, sketch.input(1, channels, *plane), kernel_shape=width, strides=stride, pads=pads, **settings
        )

    return make


def _resize(op: str) -> Maker:
    def make(random: Random) -> Draw:
        mode = random.choice(("nearest", "nearest", "linear", "linear", "cubic"))
        place = random.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
        rounding = random.choice(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
        settings: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place}
        if mode == "nearest":
            settings["nearest_mode"] = rounding
        shape = [1, random.choice((1, 3, 8)), random.choice((4, 6, 9)), random.choice((4, 7, 12))]
        factors = [random.choice((2.0, 2.0, 3.0, 4.0, 0.5, 1.5)) for _ in range(2)]
        size = [*shape[:2], *(math.floor(side * factor) for side, factor in zip(shape[2:], factors, strict=True))]
        return lambda sketch: sketch.op(op, sketch.input(*shape), "", "", sketch.stored(size, "int64"), **settings)

    return make


def _sampled(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape = [1, random.choice((2, 3, 8)), random.choice((5, 9, 12)), random.choice((6, 10))]
        settings: dict[str, Any] = {
            "mode": random.choice(("bilinear", "nearest")),
            "padding_mode": random.choice(("zeros", "border", "reflection")),
            "align_corners": random.randint(0, 1),
        }
        most, size = random.choice((0.8, 1.3)), random.choice((3, 7))
        return lambda sketch: sketch.op(
            op, sketch.input(*shape), sketch.input(1, size, 4, 2, low=-most, high=most), **settings
        )

    return make


LAYERS_BY_CHANCE: dict[str, Maker] = {
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "MatMul": _product,
    "Gemm": _gemm,
    "Resize": _resize("Resize"),
    "GridSample": _sampled("GridSample"),
    **{op: _pool(op) for op in ("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool")},
}
