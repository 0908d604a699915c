"""Forms of layers with weights, of pools, of resizing and of products of two activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from atlas.form_shapes import SHAPES, Drawn, at_rank
from atlas.sketch import Sketch

__all__ = ["convolutions", "linear_layers", "pools", "recurrent", "resizes"]

Draw = Callable[[Sketch], str]
_SIDES = {1: (14,), 2: (10, 12), 3: (5, 6, 7)}


def linear_layers() -> Iterator[Drawn]:
    """Stored weights at every rank, with and without a bias, and products of two activations."""
    for rank in (2, *SHAPES):
        yield "MatMul", f"stored weight, rank {rank}", _linear(rank, biased=False)
        yield "MatMul", f"stored weight and Add, rank {rank}", _linear(rank, biased=True)
    for rank in (2, 3, 4, 5):
        yield "MatMul", f"two activations, rank {rank}", _product(rank)
    yield "MatMul", "two activations, one stretched over the batch, rank 4", _stretched
    for turned in (0, 1):
        yield "Gemm", f"stored weight, bias, transB {turned}", _gemm(turned)
    yield "Gemm", "stored weight, no bias", _gemm(0, biased=False)
    yield "Einsum", "bhid,bhjd->bhij", _einsum("bhid,bhjd->bhij", (1, 2, 6, 8), (1, 2, 5, 8))
    yield "Einsum", "bqc,bchw->bqhw", _einsum("bqc,bchw->bqhw", (1, 5, 8), (1, 8, 6, 4))


def _linear(rank: int, *, biased: bool) -> Draw:
    def layer(sketch: Sketch, x: str) -> str:
        width = 16 if rank == 2 else SHAPES[rank][-1]
        made = sketch.op("MatMul", x, sketch.weight(width, 8))
        return sketch.op("Add", made, sketch.between(-0.5, 0.5, 8)) if biased else made

    return at_rank(rank, layer) if rank > 2 else lambda sketch: layer(sketch, sketch.input(12, 16))


def _product(rank: int) -> Draw:
    batch = {2: (), 3: (2,), 4: (1, 3), 5: (1, 2, 3)}[rank]
    return lambda sketch: sketch.op("MatMul", sketch.input(*batch, 6, 16), sketch.input(*batch, 16, 8))


def _stretched(sketch: Sketch) -> str:
    return sketch.op("MatMul", sketch.input(1, 3, 6, 16), sketch.input(16, 8))


def _gemm(turned: int, *, biased: bool = True) -> Draw:
    def draw(sketch: Sketch) -> str:
        inputs = [sketch.input(6, 16), sketch.weight(*((8, 16) if turned else (16, 8)))]
        if biased:
            inputs.append(sketch.between(-0.5, 0.5, 8))
        return sketch.op("Gemm", *inputs, transB=turned)

    return draw


def _einsum(equation: str, first: tuple[int, ...], second: tuple[int, ...]) -> Draw:
    return lambda sketch: sketch.op("Einsum", sketch.input(*first), sketch.input(*second), equation=equation)


def convolutions() -> Iterator[Drawn]:
    """By the number of sides that the window slides along."""
    for sides in _SIDES:
        plain: dict[str, tuple[int, int, dict[str, Any]]] = {
            "3 wide": (3, 1, {}),
            "3 wide, padded, no bias": (3, 1, {"pads": [1] * 2 * sides}),
            "1 wide": (1, 1, {}),
            "stride 2": (3, 1, {"strides": [2] * sides}),
            "dilation 2": (3, 1, {"dilations": [2] * sides}),
            "depthwise": (3, 8, {"pads": [1] * 2 * sides}),
            "2 groups": (3, 2, {}),
        }
        for words, (width, groups, settings) in plain.items():
            biased = "no bias" not in words
            yield "Conv", f"{words}, {sides} sides", _conv("Conv", sides, width, groups, biased, settings)
        for words, settings in {"stride 2": {"strides": [2] * sides}, "stride 1": {}}.items():
            name = f"{words}, {sides} sides"
            yield "ConvTranspose", name, _conv("ConvTranspose", sides, 2, 1, True, settings)
    yield "Conv", "weight computed, 2 sides", _computed_weight


def _conv(op: str, sides: int, width: int, groups: int, biased: bool, settings: dict[str, Any]) -> Draw:
    def draw(sketch: Sketch) -> str:
        inputs = [sketch.input(1, 8, *_SIDES[sides]), sketch.weight(8, 8 // groups, *[width] * sides)]
        if biased:
            inputs.append(sketch.between(-0.5, 0.5, 8))
        return sketch.op(op, *inputs, group=groups, **settings)

    return draw


def _computed_weight(sketch: Sketch) -> str:
    return sketch.op("Conv", sketch.input(1, 8, 10, 12), sketch.input(4, 8, 3, 3))


def pools() -> Iterator[Drawn]:
    """Windows of two, with and without padding; and whole planes."""
    for sides, size in _SIDES.items():
        shape = (1, 8, *size)
        for op in ("MaxPool", "AveragePool"):
            yield op, f"{sides} sides", _pooled(op, shape, kernel_shape=[2] * sides, strides=[2] * sides)
            pads = {"kernel_shape": [3] * sides, "strides": [2] * sides, "pads": [1] * 2 * sides}
            yield op, f"padded, {sides} sides", _pooled(op, shape, **pads)
        for op in ("GlobalAveragePool", "GlobalMaxPool"):
            yield op, f"{sides} sides", _pooled(op, shape)
    counted = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    yield "AveragePool", "padding counted, 2 sides", _pooled("AveragePool", (1, 8, 10, 12), **counted)


def _pooled(op: str, shape: tuple[int, ...], **settings: Any) -> Draw:
    return lambda sketch: sketch.op(op, sketch.input(*shape), **settings)


def resizes() -> Iterator[Drawn]:
    """Twice as large, and to a size that is no multiple."""
    for mode, place in (
        ("nearest", "asymmetric"),
        ("nearest", "half_pixel"),
        ("linear", "half_pixel"),
        ("linear", "align_corners"),
        ("linear", "asymmetric"),
        ("cubic", "half_pixel"),
    ):
        for words, size in (("twice", (12, 20)), ("to 9 by 14", (9, 14))):
            yield "Resize", f"{mode}, {place}, {words}, rank 4", _resized(mode, place, (1, 8, 6, 10), size)
    yield "Resize", "linear, half_pixel, twice, rank 3", _resized("linear", "half_pixel", (1, 8, 10), (20,))
    yield "Resize", "nearest, asymmetric, twice, rank 5", _resized("nearest", "asymmetric", (1, 4, 3, 4, 5), (6, 8, 10))


def _resized(mode: str, place: str, shape: tuple[int, ...], size: tuple[int, ...]) -> Draw:
    def draw(sketch: Sketch) -> str:
        wanted = sketch.stored([*shape[:2], *size], "int64")
        rounding: dict[str, Any] = {"nearest_mode": "floor"} if mode == "nearest" else {}
        return sketch.op(
            "Resize", sketch.input(*shape), "", "", wanted, mode=mode, coordinate_transformation_mode=place, **rounding
        )

    return draw


def recurrent() -> Iterator[Drawn]:
    """One direction, a batch of one."""
    for op, gates in (("LSTM", 4), ("GRU", 3)):
        yield op, "one direction", _recurrent(op, gates)


def _recurrent(op: str, gates: int) -> Draw:
    def draw(sketch: Sketch) -> str:
        inputs = [sketch.input(5, 1, 16), sketch.weight(1, gates * 8, 16), sketch.weight(1, gates * 8, 8)]
        settings = {"linear_before_reset": 1} if op == "GRU" else {}
        return sketch.op(op, *inputs, sketch.between(-0.3, 0.3, 1, 2 * gates * 8), hidden_size=8, **settings)

    return draw
