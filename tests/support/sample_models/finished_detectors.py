"""Three small detectors that decode their boxes inside the graph, as YOLO, SSD and DETR do, and scenes to show them.

Their weights are random and fixed, their biases such that they see several things per scene. Nothing is run here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from sample_models.tiny_graphs import TinyGraph

SIDE = 160
"""Height and width of the images, and what boxes are measured in."""

_CLASSES, _BINS, _QUERIES, _WIDTH = 5, 8, 24, 24
_STRIDES = (8, 16)
Numbers: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = Mapping[str, Numbers]


def scenes(count: int, *, seed: int = 0) -> list[dict[str, Numbers]]:
    """Images [1, 3, 160, 160] in 0..1: coloured rectangles on a smooth ground, with a little noise."""
    rng = np.random.default_rng(seed)
    return [{"images": _scene(rng)} for _ in range(count)]


def _scene(rng: np.random.Generator) -> Numbers:
    ground = np.kron(rng.uniform(0.2, 0.5, (3, 4, 4)), np.ones((1, SIDE // 4, SIDE // 4)))
    for _ in range(int(rng.integers(4, 9))):
        top, left = rng.integers(0, SIDE - 24, 2)
        height, width = rng.integers(12, 64, 2)
        ground[:, top : top + height, left : left + width] = rng.random((3, 1, 1))
    noisy = ground + rng.normal(0, 0.02, ground.shape)
    return np.asarray(np.clip(noisy, 0, 1)[None], np.float32)


def yolo_like(*, seed: int = 4) -> ModelProto:
    """``images`` to ``output0`` [1, 4 + 5, 500]: centre and size in pixels above class scores in 0..1.

    Distances to the four sides are expectations over bins (Softmax, then a 1x1 Conv with 0..7), taken from and added
    to grid points, and multiplied by strides: the end of a YOLOv8 export.
    """
    draw = _Drawing(seed)
    graph = draw.graph
    heads = []
    for level, features in enumerate(draw.levels()):
        box = draw.conv(features, 4 * _BINS, f"box{level}", kernel=1, gain=1.5)
        scores = draw.conv(features, _CLASSES, f"cls{level}", kernel=1, gain=4.0, bias=-5.0)
        joined = graph.op("Concat", [box, scores], f"head{level}", axis=1)
        cells = (SIDE // _STRIDES[level]) ** 2
        heads.append(draw.reshape(joined, (1, 4 * _BINS + _CLASSES, cells), f"flat{level}"))
    every = graph.op("Concat", heads, "heads", axis=2)
    graph.op("Split", [every, draw.whole("parts", [4 * _BINS, _CLASSES])], ["box", "cls"], axis=1)
    sides = draw.expectation("box")
    points, strides = _grid()
    graph.op("Split", [sides, draw.whole("halves", [2, 2])], ["lt", "rb"], axis=1)
    low = graph.op("Sub", [graph.stored("points", points), "lt"], "low")
    high = graph.op("Add", ["points", "rb"], "high")
    centre = graph.op("Div", [graph.op("Add", [low, high], "sum"), graph.stored("two", 2.0)], "centre")
    size = graph.op("Sub", [high, low], "size")
    relative = graph.op("Concat", [centre, size], "relative", axis=1)
    pixels = graph.op("Mul", [relative, graph.stored("strides", strides)], "pixels")
    graph.op("Concat", [pixels, graph.op("Sigmoid", ["cls"], "scores")], "output0", axis=1)
    return graph.model("output0")


def ssd_like(*, seed: int = 5) -> ModelProto:
    """``images`` to ``detections`` [1, 500, 4 + 5]: corners in pixels beside class scores, background left out.

    Offsets are scaled by variances, moved to anchors, sizes go through Exp: the end of an SSD export.
    """
    draw = _Drawing(seed)
    graph = draw.graph
    boxes: list[str] = []
    scores: list[str] = []
    for level, features in enumerate(draw.levels()):
        location = draw.conv(features, 4, f"loc{level}", kernel=1, gain=1.0)
        confidence = draw.conv(features, _CLASSES + 1, f"conf{level}", kernel=1, gain=3.0, bias=_background())
        cells = (SIDE // _STRIDES[level]) ** 2
        for made, width, found in ((location, 4, boxes), (confidence, _CLASSES + 1, scores)):
            rows = graph.op("Transpose", [made], f"{made}.rows", perm=[0, 2, 3, 1])
            found.append(draw.reshape(rows, (1, cells, width), f"{made}.flat"))
    offsets = graph.op("Concat", boxes, "offsets", axis=1)
    logits = graph.op("Concat", scores, "logits", axis=1)
    centres, sizes = _anchors()
    graph.op("Split", [offsets, draw.whole("halves", [2, 2])], ["moves", "growths"], axis=2)
    moved = graph.op("Mul", ["moves", graph.stored("reach", 0.1 * sizes)], "moved")
    centre = graph.op("Add", [moved, graph.stored("centres", centres)], "centre")
    grown = graph.op("Exp", [graph.op("Mul", ["growths", graph.stored("variance", 0.2)], "scaled")], "grown")
    half = graph.op("Mul", [grown, graph.stored("half", 0.5 * sizes)], "extent")
    corners = [graph.op("Sub", [centre, half], "low"), graph.op("Add", [centre, half], "high")]
    pixels = graph.op("Concat", corners, "pixels", axis=2)
    probable = graph.op("Softmax", [logits], "probable", axis=2)
    ends = [draw.whole(name, [value]) for name, value in (("first", 1), ("end", _CLASSES + 1), ("along", 2))]
    graph.op("Concat", [pixels, graph.op("Slice", [probable, *ends], "scores")], "detections", axis=2)
    return graph.model("detections")


def detr_like(*, seed: int = 6) -> ModelProto:
    """``images`` to ``labels`` [1, 24], ``boxes`` [1, 24, 4] as corners in pixels, and ``scores`` [1, 24].

    Queries look at the cells once; boxes come from a Sigmoid; a TopK over (query, class) pairs chooses what is given.
    """
    draw = _Drawing(seed)
    graph = draw.graph
    *_, last = draw.levels()
    cells = (SIDE // _STRIDES[-1]) ** 2
    flat = draw.reshape(last, (1, _WIDTH, cells), "cells")
    memory = draw.linear(graph.op("Transpose", [flat], "memory", perm=[0, 2, 1]), _WIDTH, "value", gain=1.0)
    queries = graph.stored("queries", draw.rng.normal(0, 1.0, (1, _QUERIES, _WIDTH)))
    turned = graph.op("Transpose", [draw.linear("memory", _WIDTH, "key", gain=0.5)], "turned", perm=[0, 2, 1])
    mix = graph.op("Softmax", [graph.op("MatMul", [queries, turned], "looks")], "mix", axis=-1)
    seen = graph.op("MatMul", [mix, memory], "seen")
    target = graph.op(
        "Relu", [draw.linear(graph.op("Add", [seen, queries], "target"), _WIDTH, "up", gain=1.5)], "hidden"
    )
    logits = draw.linear(target, _CLASSES, "class", gain=3.0, bias=-4.0)
    boxes = graph.op("Sigmoid", [draw.linear(target, 4, "bbox", gain=1.5)], "points")
    pairs = draw.reshape(graph.op("Sigmoid", [logits], "probable"), (1, _QUERIES * _CLASSES), "pairs")
    graph.op("TopK", [pairs, draw.whole("kept", [_QUERIES])], ["scores", "pair"], axis=1)
    classes = draw.whole("classes", _CLASSES)
    row = graph.op("Div", ["pair", classes], "row")
    graph.op("Sub", ["pair", graph.op("Mul", [row, classes], "first")], "labels")
    graph.op("Split", [boxes, draw.whole("halves", [2, 2])], ["centre", "extent"], axis=-1)
    half = graph.op("Mul", ["extent", graph.stored("half", 0.5)], "reach")
    corners = [graph.op("Sub", ["centre", half], "low"), graph.op("Add", ["centre", half], "high")]
    pixels = graph.op(
        "Mul", [graph.op("Concat", corners, "corners", axis=-1), graph.stored("side", float(SIDE))], "pixels"
    )
    where = graph.op("Unsqueeze", [row, draw.whole("last", [-1])], "row3")
    where = graph.op("Tile", [where, draw.whole("four", [1, 1, 4])], "places")
    graph.op("GatherElements", [pixels, where], "boxes", axis=1)
    return graph.model("labels", "boxes", "scores")


DETECTORS = {"yolo": yolo_like, "ssd": ssd_like, "detr": detr_like}
"""The three by name."""


def count_kept(reference: Sequence[Values], others: Sequence[Values]) -> tuple[int, int]:
    """(kept, all): the detections at 0.25 of one execution that another has too.

    A detection is kept where the other side has one of the same class at 0.25, and the four numbers of its box lie
    within 8 pixels on average.
    """
    kept = every = 0
    for one, two in zip(reference, others, strict=True):
        (boxes, labels), (others_boxes, others_labels) = detections_of(one), detections_of(two)
        apart = np.abs(boxes[:, None] - others_boxes[None]).mean(axis=2)
        same = (labels[:, None] == others_labels[None]) & (apart <= SIDE / 20)
        kept, every = kept + int(same.any(axis=1).sum()), every + len(boxes)
    return kept, every


def detections_of(outputs: Values) -> tuple[Numbers, Numbers]:
    """Boxes and classes of what one of the three gives, scores from 0.25 on."""
    if "labels" in outputs:
        boxes, labels, scores = outputs["boxes"][0], outputs["labels"][0], outputs["scores"][0]
    else:
        rows = outputs["output0"][0].T if "output0" in outputs else outputs["detections"][0]
        boxes, labels, scores = rows[:, :4], rows[:, 4:].argmax(axis=1), rows[:, 4:].max(axis=1)
    chosen = scores >= 0.25
    return boxes[chosen], labels[chosen]


class _Drawing:
    """Writes the parts that the three have in common; every method returns the name of what it made."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = TinyGraph()

    def levels(self) -> list[str]:
        """Feature maps with strides 8 and 16."""
        x, depth = self.graph.input("images", (1, 3, SIDE, SIDE)), 3
        maps = []
        for index, width in enumerate((8, 16, _WIDTH, _WIDTH)):
            x = self.conv(x, width, f"conv{index}", kernel=3, gain=2.4, depth=depth, stride=2)
            x = self.graph.op("Relu", [x], f"relu{index}")
            depth = width
            maps.append(x)
        return maps[-2:]

    def conv(
        self,
        x: str,
        width: int,
        out: str,
        *,
        kernel: int,
        gain: float,
        bias: Numbers | float = 0.0,
        depth: int = _WIDTH,
        stride: int = 1,
    ) -> str:
        weight = _differences(self.rng.normal(0, gain / np.sqrt(depth * kernel**2), (width, depth, kernel, kernel)), 1)
        names = [
            self.graph.stored(f"{out}.weight", weight),
            self.graph.stored(f"{out}.bias", bias + self.rng.normal(0, 0.1, width)),
        ]
        pads = [kernel // 2] * 4
        return self.graph.op("Conv", [x, *names], out, pads=pads, strides=[stride, stride])

    def linear(self, x: str, width: int, out: str, *, gain: float, bias: float = 0.0) -> str:
        drawn = _differences(self.rng.normal(0, gain / np.sqrt(_WIDTH), (_WIDTH, width)), 0)
        weight = self.graph.stored(f"{out}.weight", drawn)
        product = self.graph.op("MatMul", [x, weight], f"{out}.product")
        offset = self.graph.stored(f"{out}.bias", bias + self.rng.normal(0, 0.2, width))
        return self.graph.op("Add", [product, offset], out)

    def expectation(self, box: str) -> str:
        """[1, 32, 500] logits of bins to [1, 4, 500] expected distances."""
        graph = self.graph
        rows = sum((SIDE // stride) ** 2 for stride in _STRIDES)
        bins = self.reshape(box, (1, 4, _BINS, rows), "bins")
        chances = graph.op("Softmax", [graph.op("Transpose", [bins], "turned", perm=[0, 2, 1, 3])], "chances", axis=1)
        numbers = graph.stored("numbers", np.arange(_BINS).reshape(1, _BINS, 1, 1))
        return self.reshape(graph.op("Conv", [chances, numbers], "expected"), (1, 4, rows), "sides")

    def reshape(self, x: str, shape: tuple[int, ...], out: str) -> str:
        return self.graph.op("Reshape", [x, self.whole(f"{out}.shape", list(shape))], out)

    def whole(self, name: str, value: Any) -> str:
        return self.graph.stored(name, value, "int64")


def _differences(weights: Numbers, axis: int) -> Numbers:
    """Weights that sum up to nothing along the inputs: what all inputs have in common moves no output."""
    return np.asarray(weights - weights.mean(axis=axis, keepdims=True))


def _background() -> Numbers:
    """Biases that make the first of the classes the usual one."""
    return np.asarray([6.0] + [0.0] * _CLASSES)


def _places(stride: int) -> Numbers:
    """Centres of the cells of one level, [cells, 2] as x and y in cells."""
    steps = np.arange(SIDE // stride) + 0.5
    y, x = np.meshgrid(steps, steps, indexing="ij")
    return np.stack([x.ravel(), y.ravel()], axis=-1)


def _grid() -> tuple[Numbers, Numbers]:
    """Grid points [1, 2, 500] in cells and strides [1, 500] in pixels."""
    points = np.concatenate([_places(stride) for stride in _STRIDES]).T[None]
    strides = np.concatenate([np.full((SIDE // stride) ** 2, stride) for stride in _STRIDES])[None]
    return points, strides


def _anchors() -> tuple[Numbers, Numbers]:
    """Centres and sizes of anchors in pixels, each [1, 500, 2]."""
    centres = np.concatenate([_places(stride) * stride for stride in _STRIDES])[None]
    sizes = np.concatenate([np.full(((SIDE // stride) ** 2, 2), 3.0 * stride) for stride in _STRIDES])[None]
    return centres, sizes
