"""Forms of operators that models hold now and then; what most models are made of stands in ``forms``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from onnx import TensorProto

from atlas.sketch import Sketch

__all__ = ["Rare", "rare_operators"]

Draw = Callable[[Sketch], str]
Rare = tuple[str, str, int, Draw]
"""Operator, what is particular about the form, the lowest operator set, and who draws it."""

_SHAPE = (1, 12, 16)
_UNARY: tuple[tuple[str, float, float, int, dict[str, Any]], ...] = (
    ("Acos", -0.9, 0.9, 17, {}),
    ("Asin", -0.9, 0.9, 17, {}),
    ("Atan", -2.0, 2.0, 17, {}),
    ("Acosh", 1.1, 3.0, 17, {}),
    ("Asinh", -2.0, 2.0, 17, {}),
    ("Atanh", -0.9, 0.9, 17, {}),
    ("Cosh", -2.0, 2.0, 17, {}),
    ("Sinh", -2.0, 2.0, 17, {}),
    ("Tan", -1.0, 1.0, 17, {}),
    ("Selu", -2.0, 2.0, 17, {}),
    ("Celu", -2.0, 2.0, 17, {}),
    ("ThresholdedRelu", -2.0, 2.0, 17, {"alpha": 0.5}),
    ("Shrink", -2.0, 2.0, 17, {"lambd": 0.5}),
    ("Hardmax", -2.0, 2.0, 17, {"axis": -1}),
    ("Identity", -2.0, 2.0, 17, {}),
    ("MeanVarianceNormalization", -2.0, 2.0, 17, {"axes": [2]}),
    ("LpNormalization", -2.0, 2.0, 17, {"axis": 1}),
    ("Gelu", -3.0, 3.0, 20, {"approximate": "tanh"}),
    ("Trilu", -2.0, 2.0, 17, {"upper": 0}),
    ("Elu", -2.0, 2.0, 17, {"alpha": 0.5}),
    ("HardSigmoid", -2.0, 2.0, 17, {"alpha": 1 / 6, "beta": 0.5}),
    ("Log", 0.8, 2.0, 17, {}),
    ("Log", 0.05, 8.0, 17, {}),
    ("Sqrt", 0.01, 9.0, 17, {}),
    ("Reciprocal", 0.1, 1.0, 17, {}),
    ("Exp", -8.0, 0.0, 17, {}),
)


def rare_operators() -> Iterator[Rare]:
    """All of them."""
    yield from _unaries()
    yield from _numeric()
    yield from _others()


def _unaries() -> Iterator[Rare]:
    for op, low, high, opset, settings in _UNARY:
        words = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings.items()
        )
        yield op, f"from {low:g} to {high:g}{', ' if words else ''}{words}", opset, _unary(op, low, high, settings)
        yield (
            op,
            f"from {low:g} to {high:g}{', ' if words else ''}{words}, image",
            opset,
            _unary(op, low, high, settings, (1, 8, 6, 10)),
        )


def _numeric() -> Iterator[Rare]:
    for op in ("ReduceProd", "ReduceL1", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"):
        low = 0.5 if op in ("ReduceProd", "ReduceLogSum") else -2.0
        yield op, "last axis, rank 3", 17, _reduced(op, low)
    for op in ("Sum", "Mean", "Max", "Min"):
        yield op, "of three, rank 3", 17, _several(op, 3)
        yield op, "of two, rank 4", 17, _several(op, 2, (1, 8, 6, 10))
    yield "Xor", "of two comparisons, rank 3", 17, _xor
    for fmod in (0, 1):
        yield "Mod", f"by a stored number, fmod {fmod}", 17, _mod(fmod)
    yield "LRN", "5 channels, rank 4", 17, lambda sketch: sketch.op("LRN", sketch.input(1, 8, 6, 10), size=5)
    yield (
        "LpPool",
        "2 wide, rank 4",
        18,
        lambda sketch: sketch.op("LpPool", sketch.input(1, 8, 6, 10), kernel_shape=[2, 2]),
    )
    yield "GlobalLpPool", "rank 4", 17, lambda sketch: sketch.op("GlobalLpPool", sketch.input(1, 8, 6, 10))
    for groups in (1, 2, 4):
        yield "GroupNormalization", f"{groups} groups, rank 4", 21, _groups(groups)
    yield "RMSNormalization", "last axis, rank 3", 23, _rms


def _others() -> Iterator[Rare]:
    for kind in ("int32", "int64"):
        yield "Cast", f"to {kind} and back", 17, _cast_there(kind)
    yield "Cast", "to truth values and back", 17, _cast_there("bool")
    yield "OneHot", "places as input", 17, _one_hot
    yield "ReverseSequence", "rank 3", 17, _reversed_rows
    yield "IsNaN", "behind it Where", 17, _is("IsNaN")
    yield "IsInf", "behind it Where", 17, _is("IsInf")
    yield "NonZero", "of a comparison", 17, lambda sketch: sketch.op("NonZero", sketch.input(6, 10, coarse=True))
    yield "Compress", "stored condition", 17, _compressed
    yield "RNN", "one direction", 17, _rnn
    yield "RoiAlign", "avg", 17, _regions
    yield "MaxRoiPool", "2 by 2", 17, _pooled_regions
    yield "Col2Im", "2 by 2", 18, _columns
    yield "Det", "3 by 3", 17, lambda sketch: sketch.op("Det", sketch.input(2, 3, 3))
    yield "BitShift", "left", 17, _shifted
    yield "NonMaxSuppression", "5 boxes", 17, _suppressed
    yield (
        "AffineGrid",
        "2-D",
        20,
        lambda sketch: sketch.op("AffineGrid", sketch.input(1, 2, 3), sketch.stored([1, 4, 5, 6], "int64")),
    )
    yield (
        "CenterCropPad",
        "rank 3",
        18,
        lambda sketch: sketch.op("CenterCropPad", sketch.input(*_SHAPE), sketch.stored([10, 12], "int64"), axes=[1, 2]),
    )
    yield "SpaceToDepth", "3 by 3", 17, lambda sketch: sketch.op("SpaceToDepth", sketch.input(1, 4, 6, 9), blocksize=3)
    for blocks, mode in ((2, "DCR"), (2, "CRD"), (3, "DCR")):
        yield "DepthToSpace", f"{mode}, {blocks} by {blocks}, 4 rows", 17, _depth(blocks, mode)
    yield "Upsample", "nearest, as Resize of set 10", 17, _upsampled
    yield "Resize", "cubic, factors of two axes", 18, _cubic([2.0, 2.0], axes=[2, 3])
    yield "Resize", "cubic, weights outside left out", 18, _cubic([1.0, 1.0, 2.0, 2.0], exclude_outside=1)


def _unary(op: str, low: float, high: float, settings: dict[str, Any], shape: tuple[int, ...] = _SHAPE) -> Draw:
    return lambda sketch: sketch.op(
        op, sketch.input(*shape, low=low, high=high, coarse=op in ("Hardmax", "Shrink", "ThresholdedRelu")), **settings
    )


def _reduced(op: str, low: float) -> Draw:
    return lambda sketch: sketch.op(op, sketch.input(1, 12, 6, low=low, high=1.5), axes=[-1], keepdims=1)


def _several(op: str, count: int, shape: tuple[int, ...] = _SHAPE) -> Draw:
    return lambda sketch: sketch.op(op, *(sketch.input(*shape, high=1.0 + number) for number in range(count)))


def _xor(sketch: Sketch) -> str:
    x = sketch.input(*_SHAPE, coarse=True)
    sides = [sketch.op(kind, x, sketch.stored(0.25, "float32")) for kind in ("Greater", "Less")]
    return sketch.op("Where", sketch.op("Xor", *sides), x, sketch.stored(-1.5, "float32"))


def _mod(fmod: int) -> Draw:
    return lambda sketch: sketch.op("Mod", sketch.input(*_SHAPE, coarse=True), sketch.stored(1.0, "float32"), fmod=fmod)


def _groups(groups: int) -> Draw:
    return lambda sketch: sketch.op(
        "GroupNormalization",
        sketch.input(1, 8, 6, 10),
        sketch.between(0.5, 1.5, 8),
        sketch.between(-0.5, 0.5, 8),
        num_groups=groups,
    )


def _rms(sketch: Sketch) -> str:
    return sketch.op("RMSNormalization", sketch.input(*_SHAPE), sketch.between(0.5, 1.5, 16), axis=-1)


def _cast_there(kind: str) -> Draw:
    def draw(sketch: Sketch) -> str:
        there = sketch.op("Cast", sketch.input(*_SHAPE, coarse=True), to=TensorProto.DataType.Value(kind.upper()))
        return sketch.op("Cast", there, to=TensorProto.FLOAT)

    return draw


def _one_hot(sketch: Sketch) -> str:
    return sketch.op(
        "OneHot", sketch.places(1, 7, below=5), sketch.stored(5, "int64"), sketch.stored([0.0, 1.0], "float32")
    )


def _reversed_rows(sketch: Sketch) -> str:
    return sketch.op("ReverseSequence", sketch.input(5, 2, 8), sketch.stored([3, 5], "int64"))


def _is(op: str) -> Draw:
    def draw(sketch: Sketch) -> str:
        x = sketch.input(*_SHAPE)
        return sketch.op("Where", sketch.op(op, x), sketch.stored(0.0, "float32"), x)

    return draw


def _compressed(sketch: Sketch) -> str:
    return sketch.op("Compress", sketch.input(*_SHAPE), sketch.stored([True, False, True], "bool"), axis=1)


def _rnn(sketch: Sketch) -> str:
    return sketch.op("RNN", sketch.input(5, 1, 16), sketch.weight(1, 8, 16), sketch.weight(1, 8, 8), hidden_size=8)


def _regions(sketch: Sketch) -> str:
    boxes = sketch.stored([[0.0, 0.0, 4.0, 4.0], [1.0, 2.0, 6.0, 5.0]], "float32")
    return sketch.op(
        "RoiAlign", sketch.input(1, 4, 8, 8), boxes, sketch.stored([0, 0], "int64"), output_height=2, output_width=2
    )


def _pooled_regions(sketch: Sketch) -> str:
    boxes = sketch.stored([[0.0, 0.0, 0.0, 4.0, 4.0]], "float32")
    return sketch.op("MaxRoiPool", sketch.input(1, 4, 8, 8), boxes, pooled_shape=[2, 2])


def _columns(sketch: Sketch) -> str:
    return sketch.op("Col2Im", sketch.input(1, 4, 9), sketch.stored([4, 4], "int64"), sketch.stored([2, 2], "int64"))


def _shifted(sketch: Sketch) -> str:
    whole = sketch.places(1, 8, below=9, dtype="uint8")
    return sketch.op("BitShift", whole, sketch.stored([1], "uint8"), direction="LEFT")


def _suppressed(sketch: Sketch) -> str:
    boxes = sketch.stored([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.1], [0.0, 2.0, 1.0, 3.0]]], "float32")
    return sketch.op("NonMaxSuppression", boxes, sketch.input(1, 1, 3), sketch.stored([3], "int64"))


def _depth(blocks: int, mode: str) -> Draw:
    return lambda sketch: sketch.op("DepthToSpace", sketch.input(1, 2 * blocks**2, 4, 5), blocksize=blocks, mode=mode)


def _cubic(factors: list[float], **settings: Any) -> Draw:
    def draw(sketch: Sketch) -> str:
        return sketch.op(
            "Resize", sketch.input(1, 4, 6, 10), "", sketch.stored(factors, "float32"), mode="cubic", **settings
        )

    return draw


def _upsampled(sketch: Sketch) -> str:
    scales = sketch.stored([1.0, 1.0, 2.0, 2.0], "float32")
    return sketch.op(
        "Resize",
        sketch.input(1, 8, 6, 10),
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
