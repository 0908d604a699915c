"""What outputs are is read from the graph, and never from their names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from deploykit.accuracy.judge.kinds import OutputKind, Task, detection_sets, kind_of, pieces_of
from deploykit.model.collect import facts_of
from sample_models.tiny_graphs import TinyGraph
from tables import each_row


def _norm(graph: TinyGraph, form: str) -> str:
    x = graph.input("x", (2, 8))
    if form == "LpNormalization":
        return graph.op("LpNormalization", [x], "y", axis=1)
    if form == "ReduceL2":
        return graph.op("Div", [x, graph.op("ReduceL2", [x], "n", axes=[1])], "y")
    squared = graph.op("Mul", [x, x], "xx")
    total = graph.op("ReduceSum", [squared, graph.stored("axes", [1], "int64")], "sum")
    root = graph.op("Sqrt", [graph.op("Clip", [total, graph.stored("eps", 1e-12)], "clipped")], "root")
    return graph.op("Div", [x, graph.op("Expand", [root, graph.stored("shape", [2, 8], "int64")], "wide")], "y")


@pytest.mark.parametrize("form", ["LpNormalization", "ReduceL2", "written out"])
def test_a_vector_divided_by_its_norm_is_an_embedding(form: str) -> None:
    graph = TinyGraph()
    _norm(graph, form)
    assert kind_of(facts_of(graph.model("y")), "y") is OutputKind.EMBEDDING


def test_a_vector_divided_by_another_norm_is_none() -> None:
    graph = TinyGraph()
    x, z = graph.input("x", (2, 8)), graph.input("z", (2, 8))
    graph.op("Div", [x, graph.op("ReduceL2", [z], "n", axes=[1])], "y")
    assert kind_of(facts_of(graph.model("y")), "y") is OutputKind.LOGITS


@each_row(
    ("op", "shape", "attributes", "kind"),
    [
        ("ArgMax", (1, 5, 8, 8), {"axis": 1}, OutputKind.LABELS),
        ("Softmax", (1, 5), {}, OutputKind.SCORES),
        ("Sigmoid", (1, 5, 8, 8), {}, OutputKind.SCORES),
        ("Relu", (1, 5, 8, 8), {}, OutputKind.DENSE),
        ("Relu", (1, 5, 1, 1), {}, OutputKind.LOGITS),
        ("Relu", (1, 5), {}, OutputKind.LOGITS),
        ("Relu", (1, 7, 32), {}, OutputKind.SEQUENCE),
        ("Relu", (7,), {}, OutputKind.OTHER),
        ("Relu", (7, 1), {}, OutputKind.OTHER),
    ],
)
def test_operators_and_shapes_say_what_an_output_is(
    op: str, shape: tuple[int, ...], attributes: dict[str, int], kind: OutputKind
) -> None:
    graph = TinyGraph()
    graph.op(op, [graph.input("boxes", shape)], "labels", **attributes)
    assert kind_of(facts_of(graph.model("labels")), "labels") is kind


def test_the_best_of_some_scores_is_a_score_and_its_place_a_label() -> None:
    graph = TinyGraph()
    scores = graph.op("Sigmoid", [graph.input("x", (1, 20))], "s")
    graph.op("TopK", [scores, graph.stored("k", [5], "int64")], ["v", "i"])
    graph.op("ReduceMean", [scores], "mean", axes=[1])
    facts = facts_of(graph.model("v", "i", "mean"))
    assert (kind_of(facts, "v"), kind_of(facts, "i")) == (OutputKind.SCORES, OutputKind.LABELS)
    assert kind_of(facts, "mean") is OutputKind.SCORES, "as a detector of speech averages over its frames"


def test_stored_steps_of_a_quantizer_are_no_labels() -> None:
    graph = TinyGraph()
    grid = [graph.stored("scale", 0.1), graph.stored("zero", 3, "uint8")]
    graph.op("QuantizeLinear", [graph.input("x", (1, 4, 8, 8)), *grid], "y")
    assert kind_of(facts_of(graph.model("y")), "y") is OutputKind.DENSE


def yolo(classes: int = 3, rows: int = 40, *, last: bool = False) -> onnx.ModelProto:
    """Boxes in pixels beside sigmoids, ``[1, 4+C, N]``, or ``[1, N, 4+C]``."""
    graph = TinyGraph()
    graph.input("image", (1, 3, 64, 64))
    shape = (1, rows) if last else (1, 4, rows)
    axis = 2 if last else 1
    boxes = graph.op("Mul", [graph.input("b", (1, rows, 4) if last else shape), graph.stored("stride", 8.0)], "pixels")
    scores = graph.op("Sigmoid", [graph.input("s", (1, rows, classes) if last else (1, classes, rows))], "p")
    return graph.model(graph.op("Concat", [boxes, scores], "out", axis=axis))


@pytest.mark.parametrize("last", [False, True])
def test_boxes_beside_scores_in_one_output_are_detections(last: bool) -> None:
    facts = facts_of(yolo(last=last))
    (group,) = detection_sets(facts)
    assert (group.boxes.start, group.boxes.stop, group.boxes.axis) == (0, 4, 2 if last else 1)
    assert (group.scores.start, group.scores.stop) == (4, 7)
    assert [piece.kind for piece in pieces_of(facts, "out")][1] is OutputKind.SCORES


@pytest.mark.parametrize("form", ["map", "flattened", "turned", "levels"])
@each_row("raw", [False, True])
def test_boxes_beside_scores_in_maps_are_two_pieces(form: str, raw: bool) -> None:
    """As heads of detectors are exported: channels of a map, small beside them, flattened and turned afterwards."""
    graph = TinyGraph()

    def head(number: int, side: int) -> str:
        scores = graph.input(f"s{number}", (1, 8, side, side))
        scores = scores if raw else graph.op("Sigmoid", [scores], f"p{number}")
        boxes = graph.op(
            "Mul", [graph.input(f"b{number}", (1, 4, side, side)), graph.stored(f"stride{number}", 8.0)], f"x{number}"
        )
        return graph.op("Concat", [boxes, scores], f"map{number}", axis=1)

    def flat(number: int, side: int) -> str:
        return graph.op(
            "Reshape", [head(number, side), graph.stored(f"rows{number}", [1, 12, -1], "int64")], f"flat{number}"
        )

    out = {
        "map": lambda: head(0, 8),
        "flattened": lambda: flat(0, 8),
        "turned": lambda: graph.op("Transpose", [flat(0, 8)], "turned", perm=[0, 2, 1]),
        "levels": lambda: graph.op("Concat", [flat(0, 8), flat(1, 4)], "all", axis=2),
    }[form]()
    pieces = pieces_of(facts_of(graph.model(out)), out)
    assert [(piece.start, piece.stop, piece.axis) for piece in pieces] == [
        (0, 4, 2 if form == "turned" else 1),
        (4, 12, 2 if form == "turned" else 1),
    ]
    assert raw or pieces[1].kind is OutputKind.SCORES


def test_channels_that_were_split_by_a_reshape_are_one_piece() -> None:
    graph = TinyGraph()
    boxes, scores = graph.input("b", (1, 4, 8, 8)), graph.op("Sigmoid", [graph.input("s", (1, 8, 8, 8))], "p")
    whole = graph.op("Concat", [boxes, scores], "map", axis=1)
    graph.op("Reshape", [whole, graph.stored("rows", [1, 6, 128], "int64")], "out")
    (piece,) = pieces_of(facts_of(graph.model("out")), "out")
    assert piece.axis is None


def test_rows_of_six_are_detections() -> None:
    graph = TinyGraph()
    scores = graph.op("Sigmoid", [graph.input("x", (1, 60))], "s")
    graph.op("TopK", [scores, graph.stored("k", [10], "int64")], ["v", "i"])
    last = graph.stored("last", [-1], "int64")
    label = graph.op("Cast", [graph.op("Mod", ["i", graph.stored("c", 3, "int64")], "class")], "number", to=1)
    parts = [graph.input("b", (1, 10, 4)), graph.op("Unsqueeze", ["v", last], "v3")]
    parts.append(graph.op("Unsqueeze", [label, last], "n3"))
    (group,) = detection_sets(facts_of(graph.model(graph.op("Concat", parts, "out", axis=2))))
    assert group.labels is not None
    assert (group.boxes.start, group.scores.start, group.labels.start) == (0, 4, 5)


def test_levels_below_one_another_are_seen_through() -> None:
    graph = TinyGraph()
    levels = []
    for level, rows in enumerate((32, 16)):
        scores = graph.op("Sigmoid", [graph.input(f"s{level}", (1, rows, 3))], f"p{level}")
        levels.append(graph.op("Concat", [graph.input(f"b{level}", (1, rows, 4)), scores], f"l{level}", axis=2))
    (group,) = detection_sets(facts_of(graph.model(graph.op("Concat", levels, "out", axis=1))))
    assert (group.boxes.axis, group.boxes.stop, group.scores.stop) == (2, 4, 7)


def test_two_outputs_of_one_length_are_detections_and_other_pairs_are_not() -> None:
    def pair(rows: int) -> onnx.ModelProto:
        graph = TinyGraph()
        graph.op("Sigmoid", [graph.input("b", (1, 20, 4))], "first")
        graph.op("Relu", [graph.input("l", (1, rows, 7))], "second")
        return graph.model("first", "second")

    (group,) = detection_sets(facts_of(pair(20)))
    assert (group.boxes.output, group.scores.output, group.labels) == ("first", "second", None)
    assert detection_sets(facts_of(pair(21))) == ()


def test_the_size_that_boxes_are_multiplied_by_is_found(decoder_detector: object) -> None:
    facts = decoder_detector.facts  # type: ignore[attr-defined]
    (group,) = detection_sets(facts)
    assert group.sizes == "orig_target_sizes"
    assert set(group.outputs) == {"boxes", "scores", "labels"}


@pytest.mark.parametrize("order", [("boxes", "scores"), ("scores", "boxes")])
@pytest.mark.parametrize("logits", [False, True])
def test_scores_of_four_classes_are_no_boxes(order: tuple[str, str], logits: bool) -> None:
    """Decoded boxes beside probabilities, or logits of a plain projection beside boxes out of a Sigmoid."""
    graph = TinyGraph()
    x = graph.input("x", (1, 30, 4))
    plain = graph.op("MatMul", [x, graph.stored("w", np.eye(4))], "scores" if logits else "offsets")
    if logits:
        graph.op("Sigmoid", [graph.op("Relu", [x], "r")], "boxes")
    else:
        graph.op("Add", [plain, graph.stored("anchors", np.ones((1, 30, 4)))], "near")
        graph.op("Mul", ["near", graph.stored("stride", 8.0)], "boxes")
        graph.op("Sigmoid", [x], "scores")
    (found,) = detection_sets(facts_of(graph.model(*order)))
    assert (found.boxes.output, found.scores.output) == ("boxes", "scores")


@pytest.mark.parametrize(
    ("classes", "kernel", "enlarged", "task"),
    [
        (5, 1, 4, Task.SEGMENTATION),  # logits in the size of the picture
        (17, 1, 1, Task.SIGNAL),  # heat maps of key points
        (19, 1, 1, Task.SEGMENTATION),  # Cityscapes, before it is enlarged
        (5, 3, 4, Task.SIGNAL),  # features
        (3, 1, 4, Task.IMAGE),
    ],
)
def test_logits_of_each_pixel_are_areas(classes: int, kernel: int, enlarged: int, task: Task) -> None:
    graph = TinyGraph()
    x = graph.op("Relu", [graph.input("image", (1, 3, 16, 16))], "r")
    small = graph.op("MaxPool", [x], "small", kernel_shape=[4, 4], strides=[4, 4])
    weight = graph.stored("w", np.ones((classes, 3, kernel, kernel)))
    y = graph.op("Conv", [small, weight], "maps", pads=[kernel // 2] * 4)
    if enlarged > 1:
        sizes = graph.stored("scales", [1.0, 1.0, enlarged, enlarged])
        y = graph.op("Resize", [y, "", sizes], "large", mode="linear")
    (piece,) = pieces_of(facts_of(graph.model(y)), y)
    assert piece.task is task
    assert piece.class_axis == (1 if task is Task.SEGMENTATION else None)
