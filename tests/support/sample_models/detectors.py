"""A small transformer detector with everything inside that makes such models hard to quantize and to compare.

Its weights are random and fixed; it detects nothing. Nothing here runs a model or knows encodings.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from sample_models.tiny_graphs import TinyGraph

UNREACHABLE = 3.4028234663852886e38
"""What stands in the anchors where no box may start: the largest float32."""

_SIDE, _CELLS, _WIDTH, _CLASSES = 32, 8, 16, 5
_QUERIES, _POINTS, _DETECTIONS = 12, 4, 10


def decoder_detector(*, layers: int = 2, seed: int = 9) -> ModelProto:
    """Inputs ``images`` [1, 3, 32, 32] and int64 ``orig_target_sizes`` [1, 2]; outputs labels, boxes and scores.

    A convolutional backbone; queries chosen by TopK among 64 cells whose anchors hold 3.4e38 at the border; decoder
    layers with self-attention, GridSample around reference points, and boxes refined through inverse sigmoids; then a
    TopK over (query, class) pairs, whose places are divided by the number of classes before boxes are gathered and
    multiplied by the target sizes: int64 ``labels`` [1, 10], ``boxes`` [1, 10, 4] in target pixels, ``scores`` [1, 10].
    """
    return _Detector(seed).model(layers)


def decoder_feeds(count: int, *, seed: int = 0) -> list[dict[str, npt.NDArray[Any]]]:
    """Samples for it: smooth images in 0..1 and sizes of ordinary photographs."""
    rng = np.random.default_rng(seed)
    feeds: list[dict[str, npt.NDArray[Any]]] = []
    for index in range(count):
        coarse = rng.random((1, 3, 4, 4))
        image = np.kron(coarse, np.ones((1, 1, 8, 8))) * 0.8 + rng.random((1, 3, _SIDE, _SIDE)) * 0.2
        sizes = np.asarray([[640, 480] if index % 2 else [640, 640]], np.int64)
        feeds.append({"images": image.astype(np.float32), "orig_target_sizes": sizes})
    return feeds


class _Detector:
    """Writes the graph part by part; every method returns the name of what it made."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._graph = TinyGraph()
        self._known: set[str] = set()

    def model(self, layers: int) -> ModelProto:
        graph = self._graph
        images = graph.input("images", (1, 3, _SIDE, _SIDE))
        sizes = graph.input("orig_target_sizes", (1, 2), "int64")
        value = self._backbone(images)
        cells = self._reshape(value, (1, _WIDTH, _CELLS**2), "flat")
        memory = self._norm(graph.op("Transpose", [cells], "cells", perm=[0, 2, 1]), "memory")
        target, points = self._select(memory)
        for layer in range(layers):
            target = self._attend(target, f"l{layer}.self")
            target = self._sample(target, points, value, f"l{layer}.cross")
            target = self._norm(self._residual_mlp(target, f"l{layer}.mlp"), f"l{layer}.norm")
            delta = self._linear(target, 4, f"l{layer}.bbox", gain=0.4)
            points = graph.op(
                "Sigmoid",
                [graph.op("Add", [delta, self._logit(points, f"l{layer}")], f"l{layer}.moved")],
                f"l{layer}.points",
            )
        logits = self._linear(target, _CLASSES, "class", gain=2.0)
        self._detections(graph.op("Sigmoid", [logits], "probabilities"), points, sizes)
        return graph.model("labels", "boxes", "scores")

    def _weights(self, *shape: int, gain: float = 1.0) -> npt.NDArray[Any]:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self._rng.normal(0.0, gain / np.sqrt(fan_in), shape)

    def _reshape(self, x: str, shape: tuple[int, ...], out: str) -> str:
        return self._graph.op("Reshape", [x, self._graph.stored(f"{out}.shape", shape, "int64")], out)

    def _linear(self, x: str, width: int, out: str, *, gain: float = 1.0) -> str:
        graph = self._graph
        weight = graph.stored(f"{out}.weight", self._weights(_WIDTH, width, gain=gain))
        product = graph.op("MatMul", [x, weight], f"{out}.product")
        return graph.op("Add", [product, graph.stored(f"{out}.bias", self._weights(1, width, gain=0.2)[0])], out)

    def _norm(self, x: str, out: str) -> str:
        ends = [self._graph.stored(f"{out}.{name}", value) for name, value in _affine(self._rng)]
        return self._graph.op("LayerNormalization", [x, *ends], out, axis=-1)

    def _backbone(self, images: str) -> str:
        graph, x, depth = self._graph, images, 3
        for index, width in enumerate((8, _WIDTH)):
            weight = graph.stored(f"conv{index}.weight", self._weights(width, depth, 3, 3, gain=1.6))
            bias = graph.stored(f"conv{index}.bias", self._weights(1, width, gain=0.3)[0])
            x = graph.op("Conv", [x, weight, bias], f"conv{index}", strides=[2, 2], pads=[1, 1, 1, 1])
            x = graph.op("Relu", [x], f"relu{index}")
            depth = width
        return x

    def _select(self, memory: str) -> tuple[str, str]:
        """The rows of the best cells, and their boxes as reference points in 0..1."""
        graph = self._graph
        heads = self._linear(memory, _CLASSES, "enc.class", gain=2.0)
        best = graph.op("ReduceMax", [heads], "enc.best", axes=[-1], keepdims=0)
        graph.op("TopK", [best, graph.stored("queries", [_QUERIES], "int64")], ["enc.values", "enc.index"], axis=1)
        offsets = self._linear(memory, 4, "enc.bbox", gain=0.5)
        anchors, valid = _anchors()
        anchored = graph.op(
            "Where",
            [graph.stored("valid", valid, "bool"), graph.stored("cells.anchors", anchors),
             graph.stored("unreachable", UNREACHABLE)],
            "anchors",
        )  # fmt: skip
        boxes = graph.op("Add", [offsets, anchored], "enc.boxes")
        target = self._gather(memory, "enc.index", _WIDTH, "target")
        return target, graph.op("Sigmoid", [self._gather(boxes, "enc.index", 4, "enc.chosen")], "enc.points")

    def _gather(self, rows: str, index: str, width: int, out: str) -> str:
        graph = self._graph
        last = graph.op("Unsqueeze", [index, graph.stored(f"{out}.last", [-1], "int64")], f"{out}.index3")
        tiled = graph.op("Tile", [last, graph.stored(f"{out}.repeats", [1, 1, width], "int64")], f"{out}.where")
        return graph.op("GatherElements", [rows, tiled], out, axis=1)

    def _attend(self, x: str, out: str) -> str:
        graph = self._graph
        query, key, value = (self._linear(x, _WIDTH, f"{out}.{name}") for name in ("q", "k", "v"))
        turned = graph.op("Transpose", [key], f"{out}.turned", perm=[0, 2, 1])
        scaled = graph.op("Mul", [query, graph.stored(f"{out}.scale", _WIDTH**-0.5)], f"{out}.scaled")
        mixed = graph.op("Softmax", [graph.op("MatMul", [scaled, turned], f"{out}.scores")], f"{out}.mix", axis=-1)
        return self._norm(
            graph.op("Add", [x, graph.op("MatMul", [mixed, value], f"{out}.mixed")], f"{out}.sum"), f"{out}.norm"
        )

    def _sample(self, x: str, points: str, value: str, out: str) -> str:
        """Deformable attention with one head and one level."""
        graph = self._graph
        spread = (1, _QUERIES, _POINTS, 2)
        offsets = self._reshape(self._linear(x, _POINTS * 2, f"{out}.offsets"), spread, f"{out}.offsets4")
        single = self._reshape(points, (1, _QUERIES, 1, 4), f"{out}.points4")
        graph.op("Split", [single, graph.stored(f"{out}.halves", [2, 2], "int64")], [f"{out}.xy", f"{out}.wh"], axis=-1)
        scaled = graph.op(
            "Mul", [offsets, graph.op("Mul", [f"{out}.wh", self._half()], f"{out}.reach")], f"{out}.steps"
        )
        placed = graph.op("Add", [f"{out}.xy", scaled], f"{out}.placed")
        doubled = graph.op("Mul", [placed, graph.stored(f"{out}.two", 2.0)], f"{out}.doubled")
        grid = graph.op("Sub", [doubled, graph.stored(f"{out}.one", 1.0)], f"{out}.grid")
        seen = graph.op("GridSample", [value, grid], f"{out}.seen", mode="bilinear", padding_mode="zeros")
        logits = self._reshape(self._linear(x, _POINTS, f"{out}.weigh"), (1, 1, _QUERIES, _POINTS), f"{out}.weigh4")
        weighed = graph.op("Mul", [seen, graph.op("Softmax", [logits], f"{out}.mix", axis=-1)], f"{out}.weighed")
        axis = graph.stored(f"{out}.axis", [-1], "int64")
        summed = graph.op("ReduceSum", [weighed, axis], f"{out}.summed", keepdims=0)
        turned = graph.op("Transpose", [summed], f"{out}.turned", perm=[0, 2, 1])
        return self._norm(
            graph.op("Add", [x, self._linear(turned, _WIDTH, f"{out}.project")], f"{out}.sum"), f"{out}.norm"
        )

    def _half(self) -> str:
        return self._constant("half", 0.5)

    def _constant(self, name: str, value: float) -> str:
        if name not in self._known:
            self._known.add(name)
            self._graph.stored(name, value)
        return name

    def _residual_mlp(self, x: str, out: str) -> str:
        hidden = self._graph.op("Relu", [self._linear(x, _WIDTH, f"{out}.up")], f"{out}.relu")
        return self._graph.op("Add", [x, self._linear(hidden, _WIDTH, f"{out}.down")], f"{out}.sum")

    def _logit(self, points: str, out: str) -> str:
        """The inverse sigmoid as exporters write it, clipped at 1e-5."""
        graph, least = self._graph, self._constant("least", 1e-5)
        upper = graph.op("Clip", [points, least], f"{out}.upper")
        rest = graph.op("Sub", [self._constant("whole", 1.0), points], f"{out}.rest")
        lower = graph.op("Clip", [rest, least], f"{out}.lower")
        return graph.op("Log", [graph.op("Div", [upper, lower], f"{out}.ratio")], f"{out}.logit")

    def _detections(self, probabilities: str, points: str, sizes: str) -> None:
        graph = self._graph
        flat = self._reshape(probabilities, (1, _QUERIES * _CLASSES), "pairs")
        graph.op("TopK", [flat, graph.stored("kept", [_DETECTIONS], "int64")], ["scores", "pair"], axis=1)
        classes = graph.stored("classes", _CLASSES, "int64")
        row = graph.op("Div", ["pair", classes], "row")
        graph.op("Sub", ["pair", graph.op("Mul", [row, classes], "first")], "labels")
        graph.op("Split", [points, graph.stored("halves", [2, 2], "int64")], ["centre", "extent"], axis=-1)
        reach = graph.op("Mul", ["extent", self._half()], "reach")
        corners = [graph.op("Sub", ["centre", reach], "low"), graph.op("Add", ["centre", reach], "high")]
        relative = graph.op("Concat", corners, "corners", axis=-1)
        numbers = graph.op("Cast", [sizes], "sizes", to=1)
        twice = graph.op("Tile", [numbers, graph.stored("twice", [1, 2], "int64")], "sizes4")
        scale = graph.op("Unsqueeze", [twice, graph.stored("middle", [1], "int64")], "scale")
        self._gather(graph.op("Mul", [relative, scale], "pixels"), "row", 4, "boxes")


def _affine(rng: np.random.Generator) -> tuple[tuple[str, npt.NDArray[Any]], ...]:
    return ("weight", rng.uniform(0.7, 1.3, _WIDTH)), ("bias", rng.normal(0, 0.1, _WIDTH))


def _anchors() -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Logits of boxes [1, 64, 4] around the cells, and which cells [1, 64, 1] may start one: not those at the left."""
    places = (np.arange(_CELLS) + 0.5) / _CELLS
    y, x = (axis.ravel() for axis in np.meshgrid(places, places, indexing="ij"))
    boxes = np.stack([x, y, np.full(x.size, 0.2), np.full(x.size, 0.25)], axis=-1)[None]
    return np.log(boxes / (1 - boxes)), (x > places[0])[None, :, None]
