"""A detector whose weights are made by hand: it finds what is in pictures of coloured cells, so losses are real."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from sample_models.tiny_graphs import TinyGraph

SIDE, CELLS, CLASSES = 64, 64, 4
COLOURS = np.asarray([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], np.float64)
Feeds: TypeAlias = list[dict[str, npt.NDArray[Any]]]


def cell_detector(seed: int = 0) -> ModelProto:
    """A picture of 64 cells; in each a box with four scores by its colour, times how much there is to see."""
    graph, rng = TinyGraph(), np.random.default_rng(seed)
    mean = np.zeros((3, 3, 8, 8))
    mean[np.arange(3), np.arange(3)] = 1 / 64
    cells = graph.op(
        "Conv", [graph.input("images", (1, 3, SIDE, SIDE)), graph.stored("mean", mean)], "cells", strides=[8, 8]
    )
    colours = 12 * (2 * COLOURS[rng.permutation(CLASSES) if seed else slice(None)] - 1)

    def head(name: str, weight: npt.NDArray[Any], bias: npt.NDArray[Any]) -> str:
        stored = graph.stored(f"{name}.w", weight[:, :, None, None]), graph.stored(f"{name}.b", bias)
        flat = graph.op(
            "Reshape",
            [graph.op("Conv", [cells, *stored], f"{name}.map"), graph.stored(f"{name}.to", [1, -1, CELLS], "int64")],
            f"{name}.flat",
        )
        return graph.op("Transpose", [flat], name, perm=[0, 2, 1])

    classes = graph.op("Sigmoid", [head("cls", colours, -9 * np.ones(CLASSES))], "classes")
    hidden = graph.stored("hidden", np.zeros((1, CELLS, 1)))
    there = graph.op("Add", [head("obj", np.full((1, 3), 6.0), np.asarray([-4.5])), hidden], "there")
    graph.op("Mul", [classes, graph.op("Sigmoid", [there], "seen")], "scores")
    sizes = head(
        "size", rng.uniform(4, 12, (4, 3)) * np.asarray([[-0.2], [-0.2], [1], [1.6]]), np.asarray([0.0, 0, 8, 8])
    )
    rows, columns = np.divmod(np.arange(CELLS), 8)
    corners = np.stack([columns, rows, columns, rows], axis=1)[None] * 8.0
    boxes = graph.op("Add", [sizes, graph.stored("anchors", corners)], "placed")
    graph.op("Mul", [boxes, graph.stored("unit", np.full((1, 1, 1), 10.0))], "boxes")
    return graph.model("boxes", "scores")


def cell_pictures(count: int) -> Feeds:
    """Pictures of eight by eight cells, about half of them with something in it."""
    rng, made = np.random.default_rng(7), []
    for _ in range(count):
        which = rng.integers(0, CLASSES + 4, (8, 8))
        ground = np.concatenate([COLOURS, np.zeros((4, 3))])[which] * rng.uniform(0.7, 1, (8, 8, 1))
        image = np.kron(ground.transpose(2, 0, 1), np.ones((1, 8, 8))) + rng.normal(0, 0.01, (3, SIDE, SIDE))
        made.append({"images": np.clip(image, 0, 1).astype(np.float32)[None]})
    return made
