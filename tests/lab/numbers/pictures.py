"""Models that look at pictures."""

from __future__ import annotations

from .sketches import Sketch, entered


@entered("vision", "a")
def softmax_classifier(g: Sketch) -> str:
    features = g.pooled(g.conv_relu(g.images(), 3, 8, "a"), "p")
    logits = g.op("Mul", [g.linear(features, 32, 6, "l"), g.stored("sharp", 8.0)], "logits")
    return g.op("Softmax", [logits], "probabilities", axis=1)


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
