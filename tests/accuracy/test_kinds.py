"""What outputs are is read from the graph, and never from their names."""

from typing import Any

import numpy as np
from onnx import shape_inference

from deploykit.accuracy.judge.kinds import OutputKind, Task, detection_sets, kind_of, pieces_of
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from tables import each_row
from text_models import text_model

K, T = OutputKind, Task
LAST, K10, EIGHT = np.asarray([-1]), np.asarray([10]), np.float32(8)


def facts(given: str, body: str, made: str = "y", *, opset: int = 17, **stored: Any) -> GraphFacts:
    return facts_of(shape_inference.infer_shapes(text_model(given, body, made, opset=opset, **stored)))


@each_row(
    ("given", "body", "kind"),
    ("float[1,5,8,8] x", "y = ArgMax<axis=1>(x)", K.LABELS),
    ("float[1,5] x", "y = Softmax(x)", K.SCORES),
    ("float[1,5,8,8] x", "y = Sigmoid(x)", K.SCORES),
    ("float[1,5,8,8] x", "y = Relu(x)", K.DENSE),
    ("float[1,5,1,1] x", "y = Relu(x)", K.LOGITS),
    ("float[1,5] x", "y = Relu(x)", K.LOGITS),
    ("float[1,7,32] x", "y = Relu(x)", K.SEQUENCE),
    ("float[7] x", "y = Relu(x)", K.OTHER),
    ("float[7,1] x", "y = Relu(x)", K.OTHER),
    # The best of some scores is a score and its place a label; a detector of speech averages over its frames.
    ("float[1,20] x", "s = Sigmoid(x) y, i = TopK(s, k)", K.SCORES),
    ("float[1,20] x", "s = Sigmoid(x) v, y = TopK(s, k)", K.LABELS),
    ("float[1,20] x", "s = Sigmoid(x) y = ReduceMean<axes=[1]>(s)", K.SCORES),
    ("float[1,5] x", "a = Sigmoid(x) b = Softmax(x) p = Mul(a, b) y = Mul(p, a)", K.SCORES),
    ("float[1,5] x", "a = Sigmoid(x) b = Relu(x) y = Mul(a, b)", K.LOGITS),
    ("float[1,5] x, bool[1,5] c", "a = Sigmoid(x) y = Where(c, a, eps)", K.SCORES),
    ("float[1,5] x, bool[1,5] c", "a = Sigmoid(x) b = Relu(x) y = Where(c, a, b)", K.LOGITS),
    ("float[1,4,8,8] x", "y = QuantizeLinear(x, scale, zero)", K.DENSE),  # stored steps are no labels
    ("float[2,8] x", "y = LpNormalization<axis=1>(x)", K.EMBEDDING),
    ("float[2,8] x", "n = ReduceL2<axes=[1]>(x) y = Div(x, n)", K.EMBEDDING),
    ("float[2,8] x", "q = Mul(x, x) s = ReduceSum(q) c = Clip(s, eps) r = Sqrt(c) y = Div(x, r)", K.EMBEDDING),
    ("float[2,8] x, float[2,8] z", "n = ReduceL2<axes=[1]>(z) y = Div(x, n)", K.LOGITS),
    ("float[2,8] x, float[2,8] z", "q = Mul(z, z) s = ReduceSum(q) y = Div(x, s)", K.LOGITS),
    ("float[2,8] x", "m = ReduceMax<axes=[1]>(x) y = Div(x, m)", K.LOGITS),
)
def test_operators_and_shapes_say_what_an_output_is(given: str, body: str, kind: OutputKind) -> None:
    known: dict[str, Any] = {"k": K10, "scale": np.float32(0.1), "zero": np.uint8(3), "eps": np.float32(1e-12)}
    stored = {name: value for name, value in known.items() if f" {name}" in body}
    assert kind_of(facts(given, body, **stored), "y") is kind


@each_row(
    ("given", "body", "axis", "task"),
    ("float[1,5] x", "y = Relu(x)", 1, T.CLASSES),
    ("float[1,2,3] x", "y = Softmax<axis=1>(x)", 1, T.CLASSES),
    ("float[1,5,1,1] x", "s = Softmax<axis=1>(x) y = Flatten(s)", 1, T.CLASSES),
    ("float[1,8,30] x", "y = Softmax(x)", 2, T.TEXT),
    ("float[1,8,30] x", "s = Softmax(x) y = Transpose<perm=[1,0,2]>(s)", 2, T.TEXT),
    ("int64[1,8] x", "c = Cast<to=1>(x) r = Reshape(c, rows) m = MatMul(r, wide) y = Add(m, bias)", 2, T.TOKENS),
    ("int64[1,8] x", "c = Cast<to=1>(x) r = Reshape(c, rows) y = MatMul(r, narrow)", None, T.SIGNAL),
    ("float[1,5,8,8] x", "y = Softmax<axis=1>(x)", 1, T.SEGMENTATION),
    ("float[1,1,8,8] x", "y = Sigmoid(x)", None, T.MASK),
    ("float[1,5] x", "y = Sigmoid(x)", None, T.DECISIONS),
    ("float x", "y = Softmax(x)", None, T.SIGNAL),  # of one number, which has no axis
    ("float[1,3,8,8] x", "y = Relu(x)", None, T.IMAGE),
    ("float[1,3,8,8] x", "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", None, T.SIGNAL),  # smaller than given
    ("float[1,8,8,3] x", "y = Relu(x)", None, T.SIGNAL),
    ("float[7,1] x", "y = Relu(x)", None, T.REGRESSION),
    ("float[2,8] x", "y = LpNormalization<axis=1>(x)", None, T.EMBEDDING),
)
def test_the_task_is_what_people_measure(given: str, body: str, axis: int | None, task: Task) -> None:
    known: dict[str, Any] = {"rows": np.asarray([1, 8, 1]), "bias": np.ones(30, "f4"), "wide": np.ones((1, 30), "f4")}
    known["narrow"] = np.ones((1, 12), np.float32)
    stored = {name: value for name, value in known.items() if name in body}
    (piece,) = pieces_of(facts(given, body, **stored), "y")
    assert (piece.class_axis, piece.task) == (axis, task)


@each_row(
    ("classes", "kernel", "enlarged", "task"),
    (5, 1, 4, T.SEGMENTATION),  # logits in the size of the picture
    (17, 1, 1, T.SIGNAL),  # heat maps of key points
    (19, 1, 1, T.SEGMENTATION),  # Cityscapes, before it is enlarged
    (5, 3, 4, T.SIGNAL),  # features
    (3, 1, 4, T.IMAGE),
)
def test_logits_of_each_pixel_are_areas(classes: int, kernel: int, enlarged: int, task: Task) -> None:
    body = f"r = Relu(image) s = MaxPool<kernel_shape=[4,4], strides=[4,4]>(r) m = Conv<pads={[kernel // 2] * 4}>(s, w)"
    sizes: dict[str, Any] = {"sizes": [1.0, 1.0, 4.0, 4.0]} if enlarged > 1 else {}
    body += ' y = Resize<mode="linear">(m, , sizes)' if sizes else " y = Identity(m)"
    weight = np.ones((classes, 3, kernel, kernel), np.float32)
    (piece,) = pieces_of(facts("float[1,3,16,16] image", body, w=weight, **sizes), "y")
    assert (piece.task, piece.class_axis) == (task, 1 if task is T.SEGMENTATION else None)


# Rows or maps of boxes and scores, as heads of detectors are exported.
ROWS = "float[1,40,4] b, float[1,40,3] s, float[1,40,1] o"
HEADS = "float[1,4,8,8] b, float[1,8,8,8] s, float[1,4,4,4] b2, float[1,8,4,4] s2"
FLAT = "x = Mul(b, eight) m = Concat<axis=1>(x, s) f = Reshape(m, flat)"
FLAT2 = "x2 = Mul(b2, eight) m2 = Concat<axis=1>(x2, s2) f2 = Reshape(m2, flat)"


@each_row(
    ("given", "body", "pieces", "axis"),
    (ROWS, "p = Sigmoid(s) x = Mul(b, eight) y = Concat<axis=2>(x, p)", [4, 3], 2),
    (ROWS, "p = Sigmoid(s) c = Sigmoid(o) x = Mul(b, eight) y = Concat<axis=2>(x, c, p)", [4, 1, 3], 2),
    (ROWS, "p = Sigmoid(s) c = Sigmoid(o) x = Mul(b, eight) y = Concat<axis=2>(x, p, c)", [4, 4], 2),
    (ROWS, "c = Sigmoid(o) x = Mul(b, eight) y = Concat<axis=2>(x, c, c, c)", [4, 3], 2),
    # All numbers of a cell through one Sigmoid: the first score is whether there is anything to see.
    (
        "float[1,40,9] z",
        "s = Sigmoid(z) b, p = Split<axis=2>(s, cut) x = Mul(b, eight) y = Concat<axis=2>(x, p)",
        [4, 1, 4],
        2,
    ),
    (HEADS, "x = Mul(b, eight) y = Concat<axis=1>(x, s)", [4, 8], 1),
    (HEADS, "x = Mul(b, eight) p = Sigmoid(s) y = Concat<axis=1>(x, p)", [4, 8], 1),
    (HEADS, f"{FLAT} y = Identity(f)", [4, 8], 1),
    (HEADS, f"{FLAT} y = Transpose<perm=[0,2,1]>(f)", [4, 8], 2),
    (HEADS, f"{FLAT} {FLAT2} y = Concat<axis=2>(f, f2)", [4, 8], 1),
    (HEADS, "m = Concat<axis=1>(b, s) t = Transpose<perm=[0,2,3,1]>(m) y = Reshape(t, last)", [4, 8], 2),
    (HEADS, "p = Sigmoid(s) m = Concat<axis=1>(b, p) y = Reshape(m, rows)", [0], None),  # channels are split
    (HEADS, "y = Concat<axis=0>(b, b)", [0], None),
)
def test_what_lies_side_by_side_is_told_apart(given: str, body: str, pieces: list[int], axis: int | None) -> None:
    known: dict[str, Any] = {"eight": EIGHT, "flat": np.asarray([1, 12, -1]), "rows": np.asarray([1, 6, 128])}
    known |= {"last": np.asarray([1, 64, 12]), "cut": np.asarray([4, 5])}
    found = pieces_of(facts(given, body, **{name: value for name, value in known.items() if name in body}), "y")
    assert ([piece.width for piece in found], found[0].axis) == (pieces, axis)


def test_boxes_beside_scores_in_one_output_are_detections() -> None:
    """Also with one score more per row, whether there is anything to see, and level below level."""
    (group,) = detection_sets(facts(ROWS, "p = Sigmoid(s) c = Sigmoid(o) y = Concat<axis=2>(b, c, p)"))
    assert group.objectness is not None
    assert [(p.start, p.stop) for p in (group.boxes, group.objectness, group.scores)] == [(0, 4), (4, 5), (5, 8)]
    levels = "p = Sigmoid(s) l = Concat<axis=2>(b, p) y = Concat<axis=1>(l, l)"
    (group,) = detection_sets(facts(ROWS, levels))
    assert (group.boxes.axis, group.boxes.stop, group.scores.stop, group.objectness) == (2, 4, 7, None)


@each_row(("rows", "found"), (20, ("boxes", "scores")), (21, None))
def test_two_outputs_of_one_length_are_detections_and_other_pairs_are_not(rows: int, found: Any) -> None:
    given = f"float[1,20,4] b, float[1,{rows},7] l"
    sets = detection_sets(facts(given, "boxes = Sigmoid(b) scores = Relu(l)", "boxes, scores"))
    assert [(one.boxes.output, one.scores.output) for one in sets] == ([found] if found else [])
