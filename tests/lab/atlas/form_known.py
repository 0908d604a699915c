"""Forms of kernels of which it is known what they do instead, on both sides of where they begin to.

A product with its own gate behind what slides, a Softmax over a narrow range, a Clip behind a transposed convolution,
a norm that float16 cannot hold the square of, a Softplus with a small result, means of wide windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

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


def clip_behind(maker: str, shape: tuple[int, ...], high: float) -> Draw:
    """From zero to a bound, of what a layer makes."""

    def draw(sketch: Sketch) -> str:
        x = _made(sketch, maker, sketch.input(*shape), shape[1])
        return sketch.op("Clip", x, sketch.stored(0.0, "float32"), sketch.stored(high, "float32"))

    return draw
