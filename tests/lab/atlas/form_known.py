"""Forms of kernels of which it is known what they do instead, on both sides of where they begin to.

A product with its own gate behind what slides, a Softmax over a narrow range, a Clip behind a transposed convolution,
a norm that float16 cannot hold the square of, a Softplus with a small result, means of wide windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from atlas.form_shapes import Drawn
from atlas.sketch import Sketch

__all__ = ["clip_behind", "far_norm", "gate_behind", "known_kernels", "narrow_softmax", "narrow_softplus"]

Draw = Callable[[Sketch], str]
_PLANES = ((6, 10), (7, 7), (8, 8), (9, 9), (11, 11), (13, 13), (16, 24), (12, 30))
_CHANNELS = (8, 16)
_MAKERS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool")
_WINDOW: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
_SPANS = (0.005, 0.009, 0.013, 0.03, 0.1, 0.16, 0.2, 0.4)


def known_kernels() -> Iterator[Drawn]:
    """All of them."""
    for maker, channels, plane in product(_MAKERS, _CHANNELS, _PLANES):
        name = f"by its own Sigmoid behind {maker}, {channels} channels, {plane[0]} by {plane[1]}"
        yield "Mul", name, gate_behind(maker, (1, channels, *plane))
    for span, length in product(_SPANS, (9, 16, 100)):
        yield "Softmax", f"over {length} values, input span {span:g}", narrow_softmax(span, length)
    for norm, length in product((300, 540, 700, 1600), (64, 256, 4096)):
        yield "ReduceL2", f"norms up to {norm}, {length} values", far_norm(norm, length)
    for span in (0.2, 1.0, 2.0, 16.0):
        yield "Softplus", f"input span {span:g}", narrow_softplus(span)
    for width, channels, side, counted in product((3, 5, 7, 9), (8, 24, 32), (10, 14, 28), (0, 1)):
        name = f"{width} wide, {channels} channels, {side} by {side}{', padding counted' * counted}"
        yield "AveragePool", name, wide_mean(width, (1, channels, side, side), counted)
    for channels, width, extra in product((4, 8), (3, 4, 5), (0, 1)):
        name = f"each channel by itself, {channels} channels, {width} wide, output padding {extra}"
        yield "ConvTranspose", name, by_itself(channels, width, extra)
    for width in (8, 9, 21, 30, 32):
        yield "DepthToSpace", f"4 by 4, 48 channels, {width} wide", blocks_of_four(width)
    for mode, plane in product(("linear", "nearest"), ((7, 9), (13, 27), (8, 6))):
        yield "Resize", f"{mode}, half_pixel, by a half, {plane[0]} by {plane[1]}", halved(mode, plane)
    for channels in (3, 4, 8, 16, 32, 64):
        yield "BatchNormalization", f"offsets of {channels} channels", offset(channels)
    yield "OneHot", "values in 8 bits", one_hot
    for high in (1.0, 0.5):
        yield "Clip", f"0 to {high:g} behind ConvTranspose", clip_behind("ConvTranspose", (1, 8, 6, 10), high)


def gate_behind(maker: str, shape: tuple[int, ...]) -> Draw:
    """What an operator makes, times its Sigmoid."""

    def draw(sketch: Sketch) -> str:
        x = _made(sketch, maker, sketch.input(*shape, low=-3.0, high=3.0), shape[1])
        return sketch.op("Mul", x, sketch.op("Sigmoid", x))

    return draw


def _made(sketch: Sketch, maker: str, x: str, channels: int) -> str:
    if maker in ("Conv", "ConvTranspose"):
        return sketch.op(maker, x, sketch.weight(channels, channels, 1, 1))
    return sketch.op(maker, x, **({} if maker.startswith("Global") else _WINDOW))


def narrow_softmax(span: float, length: int) -> Draw:
    """Over rows of a length, of values that lie so near together."""
    return lambda sketch: sketch.op("Softmax", sketch.input(1, 12, length, low=-span / 2, high=span / 2), axis=-1)


def far_norm(norm: float, length: int) -> Draw:
    """Of rows of a length, the largest of which has that norm."""
    most = norm / length**0.5
    return lambda sketch: sketch.op("ReduceL2", sketch.input(4, length, low=-most, high=most), axes=[1])


def narrow_softplus(span: float) -> Draw:
    """Around zero, where its result is half curved."""
    return lambda sketch: sketch.op("Softplus", sketch.input(1, 4, 9, 9, low=-span / 2, high=span / 2))


def wide_mean(width: int, shape: tuple[int, ...], counted: int) -> Draw:
    """Of windows that are padded by half of their width."""
    settings: dict[str, Any] = {"kernel_shape": [width] * 2, "pads": [width // 2] * 4, "count_include_pad": counted}
    return lambda sketch: sketch.op("AveragePool", sketch.input(*shape), **settings)


def blocks_of_four(width: int) -> Draw:
    """A picture of three colours, four times as large."""
    return lambda sketch: sketch.op("DepthToSpace", sketch.input(1, 48, 2, width), blocksize=4, mode="DCR")


def by_itself(channels: int, width: int, extra: int) -> Draw:
    """A transposed convolution of stride 2 in as many groups as channels."""
    settings: dict[str, Any] = {"group": channels, "strides": [2, 2], "output_padding": [extra] * 2}
    weights = (channels, 1, width, width)
    return lambda sketch: sketch.op(
        "ConvTranspose", sketch.input(1, channels, 6, 10), sketch.weight(*weights), **settings
    )


def halved(mode: str, plane: tuple[int, int]) -> Draw:
    """By a factor that is given, so that the last half of an odd side is left out."""
    settings: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    factors = np.array([1, 1, 0.5, 0.5], np.float32)
    return lambda sketch: sketch.op("Resize", sketch.input(1, 4, *plane), "", sketch.stored(factors), **settings)


def offset(channels: int) -> Draw:
    """A BatchNormalization with statistics that are none."""

    def draw(sketch: Sketch) -> str:
        x, ones = sketch.input(1, channels, 6, 10), sketch.between(1.0, 1.0, channels)
        none = sketch.between(0.0, 0.0, channels)
        return sketch.op("BatchNormalization", x, ones, sketch.between(-1.0, 1.0, channels), none, ones)

    return draw


def one_hot(sketch: Sketch) -> str:
    """Of values that are stored in steps."""
    step, zero = sketch.stored(1 / 255, "float32"), sketch.stored(0, "uint8")
    values = sketch.op("DequantizeLinear", sketch.stored([0, 255], "uint8"), step, zero)
    return sketch.op("OneHot", sketch.places(1, 7, below=5), sketch.stored(5, "int64"), values)


def clip_behind(maker: str, shape: tuple[int, ...], high: float) -> Draw:
    """From zero to a bound, of what a layer makes."""

    def draw(sketch: Sketch) -> str:
        x = _made(sketch, maker, sketch.input(*shape), shape[1])
        return sketch.op("Clip", x, sketch.stored(0.0, "float32"), sketch.stored(high, "float32"))

    return draw
