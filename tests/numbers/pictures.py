"""Models that look at pictures."""

from __future__ import annotations

import numpy as np

from .sketches import Sketch, entered


@entered("vision", "a")
def softmax_classifier(g: Sketch) -> str:
    features = g.pooled(g.conv_relu(g.images(), 3, 8, "a"), "p")
    logits = g.op("Mul", [g.linear(features, 32, 6, "l"), g.stored("sharp", 8.0)], "logits")
    return g.op("Softmax", [logits], "probabilities", axis=1)


@entered("vision", "a")
def segmentation_logits(g: Sketch) -> str:
    return g.conv(g.conv_relu(g.images(), 3, 8, "a"), 8, 5, "map")


@entered("vision", "a")
def segmentation_labels(g: Sketch) -> str:
    return g.op("ArgMax", [g.conv(g.conv_relu(g.images(), 3, 8, "a"), 8, 5, "map")], "labels", axis=1, keepdims=0)


@entered("vision", "a")
def mask(g: Sketch) -> str:
    return g.op("Sigmoid", [g.conv(g.conv_relu(g.images(), 3, 8, "a"), 8, 1, "b")], "mask")


@entered("vision", "near", fault="log(1 + exp(x)) in float16, infinite from 12 on")
def softplus_of_bytes(g: Sketch) -> str:
    x = g.images(high=255)
    if g.faulty:
        grown = g.half(g.op("Exp", [x], "grown"), "rounded")
        near = g.op("Log", [g.op("Add", [grown, g.stored("one", 1.0)], "more")], "near")
    else:
        near = g.op("Softplus", [x], "near")
    return g.op("Mul", [near, g.stored("unit", 0.01)], "depth")


@entered("vision", "a")
def super_resolution(g: Sketch) -> str:
    return g.op("DepthToSpace", [g.conv(g.conv_relu(g.images(), 3, 8, "a"), 8, 12, "b")], "large", blocksize=2)


def _one_bright_pixel(number: int, feed: dict[str, np.ndarray]) -> None:
    feed["images"] *= 0.8
    if number == 5:
        feed["images"][0, :, 7, 9] = 255


@entered("vision", "square", fault="float16, infinite at one pixel", shape=_one_bright_pixel)
def energy_of_bytes(g: Sketch) -> str:
    x = g.images(high=255)
    square = g.op("Mul", [x, x], "square")
    total = g.op("Mul", [g.op("ReduceMean", [square], "mean", axes=[1], keepdims=1), g.stored("gain", 1.5)], "total")
    return g.half(total, "energy") if g.faulty else g.op("Identity", [total], "energy")


@entered("vision", "patches")
def patch_encoder(g: Sketch) -> str:
    x = g.op("Conv", [g.images(), g.weight("p.w", 24, 3, 4, 4)], "patches", strides=[4, 4])
    rows = g.op("Transpose", [g.op("Reshape", [x, g.ints("to", 1, 24, 16)], "flat")], "rows", perm=[0, 2, 1])
    normal = g.op("LayerNormalization", [rows, g.stored("g", np.ones(24))], "normal", axis=-1)
    return g.linear(g.op("Relu", [g.linear(normal, 24, 48, "wide")], "kept"), 48, 24, "tokens")
