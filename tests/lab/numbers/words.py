"""Models of words, of sequences, of boxes and of stored integers."""

from __future__ import annotations

import numpy as np

from .sketches import Sketch, entered


def _tokens(g: Sketch, into: str = "words", width: int = 16) -> str:
    ids = g.given("ids", 1, 12, high=49, dtype="int64")
    table = np.random.default_rng(5).normal(size=(50, width))
    return g.op("Gather", [g.stored("table", table), ids], into)


def _scores(g: Sketch, x: str) -> tuple[str, str]:
    keys = g.op("Transpose", [g.linear(x, 16, 16, "k")], "kt", perm=[0, 2, 1])
    scaled = g.op("Mul", [g.op("MatMul", [g.linear(x, 16, 16, "q"), keys], "qk"), g.stored("scale", 0.1)], "scores")
    return scaled, g.linear(x, 16, 16, "v")


def _open_mask(g: Sketch) -> str:
    """A mask of words as what is added to scores: 0 for those that are there, far below for the others."""
    given = g.given("mask", 1, 12, dtype="int64")
    kept = g.op("Cast", [given], "kept", to=1)
    hidden = g.op("Sub", [g.stored("one", 1.0), kept], "hidden")
    return g.op(
        "Unsqueeze",
        [g.op("Mul", [hidden, g.stored("far", 0.0 if g.faulty else -100.0)], "low"), g.ints("at", 1)],
        "add",
    )


@entered("language", "v", fault="the mask is ignored")
def masked_attention(g: Sketch) -> str:
    scores, values = _scores(g, _tokens(g))
    weights = g.op("Softmax", [g.op("Add", [scores, _open_mask(g)], "masked")], "weights", axis=-1)
    return g.op("MatMul", [weights, values], "mixed")


@entered("language", "waves", fault="angles rounded to float16")
def sine_of_positions(g: Sketch) -> str:
    places = g.given("positions", 1, 24, 1, high=4096)
    angles = g.op("Mul", [places, g.stored("rates", np.geomspace(0.5, 1.0, 8))], "angles")
    if g.faulty:
        angles = g.half(angles, "coarse")
    waves = g.op("Concat", [g.op("Sin", [angles], "sin"), g.op("Cos", [angles], "cos")], "waves", axis=-1)
    return g.op("Identity", [waves], "code")


def _negative_in_one(number: int, feed: dict[str, np.ndarray]) -> None:
    if number != 3:
        feed["index"] %= 20


@entered(
    "language", "rows", fault="negative indices read row 0; they occur in sample 3 of 8 only", shape=_negative_in_one
)
def negative_gather(g: Sketch) -> str:
    index = g.given("index", 1, 8, low=-20, high=19, dtype="int64")
    if g.faulty:
        index = g.op("Max", [index, g.ints("least", 0)], "clamped")
    table = np.random.default_rng(6).normal(size=(20, 12))
    return g.linear(g.op("Gather", [g.stored("table", table), index], "rows"), 12, 6, "y")


@entered("language", "hidden")
def lstm(g: Sketch) -> str:
    x = g.given("frames", 10, 1, 8, low=-2, high=2)
    kept, back = (
        g.stored(name, np.random.default_rng(7).normal(size=(1, 48, width)) / 2)
        for name, width in (("w", 8), ("r", 12))
    )
    states = g.op("LSTM", [x, kept, back], "states", hidden_size=12)
    return g.linear(g.op("Squeeze", [states, g.ints("direction", 1)], "hidden"), 12, 6, "y")


@entered("embeddings", "mixed", fault="squares in float16, infinite from 256 on")
def length_of_bytes(g: Sketch) -> str:
    flat = g.op("Flatten", [g.images(high=255)], "flat")
    square = g.op("Mul", [flat, flat], "square")
    total = g.op("ReduceSum", [square, g.ints("last", -1)], "total", keepdims=1)
    if g.faulty:
        total = g.half(total, "coarse")
    small = g.op("Div", [flat, g.op("Sqrt", [total], "length")], "small")
    return g.unit(g.linear(small, 768, 32, "mixed"), "embedding")


def _features(g: Sketch) -> str:
    """64 rows of 16 numbers, one row for each place of the grid."""
    x = g.conv_relu(g.images(), 3, 16, "a")
    small = g.op("MaxPool", [x], "small", kernel_shape=[2, 2], strides=[2, 2])
    return g.op("Transpose", [g.op("Reshape", [small, g.ints("to", 1, 16, 64)], "flat")], "rows", perm=[0, 2, 1])


def _boxes(g: Sketch, rows: str, side: float) -> str:
    """Two corners: a place of the grid, and how far the box reaches from there."""
    across = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(1, 64, 2) / 8 + 1 / 16
    reach = g.op("Mul", [g.op("Sigmoid", [g.linear(rows, 16, 2, "d")], "reach"), g.stored("largest", 0.3)], "far")
    place = g.stored("places", across)
    corners = [g.op("Sub", [place, reach], "upper"), g.op("Add", [place, reach], "lower")]
    return g.op("Mul", [g.op("Concat", corners, "corners", axis=-1), g.stored("side", side)], "boxes")


def _class_scores(g: Sketch, rows: str) -> str:
    return g.op("Sigmoid", [g.linear(rows, 16, 5, "logits")], "scores")


@entered("detectors", "a")
def boxes_beside_scores(g: Sketch) -> str:
    rows = _features(g)
    joined = g.op("Concat", [_boxes(g, rows, 16), _class_scores(g, rows)], "joined", axis=-1)
    return g.op("Transpose", [joined], "detections", perm=[0, 2, 1])


@entered("detectors", "a")
def best_rows(g: Sketch) -> tuple[str, ...]:
    rows = _features(g)
    best = g.op("ReduceMax", [_class_scores(g, rows)], "best", axes=[-1], keepdims=0)
    g.op("TopK", [best, g.ints("most", 20)], ["kept", "index"], axis=1)
    columns = g.op("Unsqueeze", ["index", g.ints("last", -1)], "column")
    where = g.op("Tile", [columns, g.ints("four", 1, 1, 4)], "where")
    kinds = g.op("ArgMax", ["scores"], "kinds", axis=-1, keepdims=0)
    boxes = g.op("GatherElements", [_boxes(g, rows, 16), where], "chosen", axis=1)
    return boxes, "kept", g.op("GatherElements", [kinds, "index"], "labels", axis=1)


@entered("detectors", "a", fault="sizes taken as 1", said=("sizes",))
def sizes_times_boxes(g: Sketch) -> tuple[str, ...]:
    sizes = g.op("Cast", [g.given("sizes", 1, 2, low=320, high=640, dtype="int64")], "float", to=1)
    if g.faulty:
        sizes = g.op("Min", [sizes, g.stored("most", 1.0)], "ones")
    rows = _features(g)
    both = g.op("Unsqueeze", [g.op("Concat", [sizes, sizes], "both", axis=-1), g.ints("at", 1)], "scale")
    return g.op("Mul", [_boxes(g, rows, 1), both], "pixels"), _class_scores(g, rows)


@entered("quantized inputs", "a", fault="the zero point of the input is taken as 0")
def bytes_in(g: Sketch) -> str:
    x = g.given("bytes", 1, 3, 16, 16, high=255, dtype="uint8")
    zero = g.stored("zero", 0 if g.faulty else 128, "uint8")
    real = g.op("DequantizeLinear", [x, g.stored("step", 1 / 64), zero], "real")
    return g.conv(g.conv_relu(real, 3, 8, "a"), 8, 4, "map")


@entered("quantized inputs", "a", fault="the step of the output is half of what it should be")
def integers_in_and_out(g: Sketch) -> str:
    x = g.given("integers", 1, 8, 16, low=-128, high=127, dtype="int8")
    real = g.op("DequantizeLinear", [x, g.stored("step", 1 / 32), g.stored("zero", 0, "int8")], "real")
    y = g.linear(g.op("Relu", [g.linear(real, 16, 24, "a")], "r"), 24, 8, "y")
    ends = [g.stored("out", 0.15 if g.faulty else 0.3), g.stored("middle", 128, "uint8")]
    return g.op("QuantizeLinear", [y, *ends], "stored")
