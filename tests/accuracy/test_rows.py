"""Rows behind a choice are matched as sets, through every operator behind it; nothing else is forgiven."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import shape_inference

from deploykit.accuracy.judge.judge import Judge, judge_outputs
from deploykit.accuracy.judge.rows import ChosenRows, match_contents
from deploykit.accuracy.judge.verdict import Context, Measure
from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.collect import facts_of
from tables import each_row
from text_models import text_model

Values = dict[str, np.ndarray]
ROWS, CHOSEN = 12, 6


def test_rows_that_are_not_alike_are_not_matched() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(30, 4)), rng.normal(size=(30, 4)) + 5
    assert match_contents([(one, other)]) is None
    assert match_contents([(one, one[:, :3])]) is None, "no column can be compared"
    assert match_contents([(np.zeros((2049, 1)), np.zeros((2049, 1)))]) is None, "too many"
    far = one.copy()
    far[7] += 0.4
    for strict, kept in ((True, 29), (False, 30)):
        pairs = match_contents([(one, far)], strict)
        assert pairs is not None and pairs[0].size == kept, "the odd pair is left out"
    classes = np.arange(30)[:, None]
    assert match_contents([(classes, classes + 1)]) is not None
    assert match_contents([(2 * classes, 2 * classes + 1)]) is None, "whole numbers are equal or not"


# Rows [1, 12, width] by their best scores, as they are picked in one of two ways.
PICKED = {
    "GatherElements": "v, i = TopK(scores, k) i3 = Unsqueeze(i, last) w = Tile(i3, reps)"
    " chosen = GatherElements<axis=1>(rows, w)",
    "Gather": "v, i = TopK(scores, k) f = Squeeze(i, first) chosen = Gather<axis=1>(rows, f)",
}


def _model(behind: str, pick: str = "GatherElements", *, width: int = 4, more: str = "") -> onnx.ModelProto:
    known: dict[str, Any] = {"k": [CHOSEN], "last": [-1], "reps": [1, 1, width], "first": [0], "eight": [8], "c": width}
    known |= {"four": [1, 6, 2, 2], "flat": [1, CHOSEN * width], "zeros": np.zeros((1, ROWS, width), np.float32)}
    body = f"{PICKED[pick]} {behind}"
    stored: dict[str, Any] = {n: np.asarray(v) for n, v in known.items() if f"{n})" in body or f"({n}," in body}
    model = text_model(f"float[1,{ROWS}] scores, float[1,{ROWS},{width}] rows{more}", body, **stored)
    return shape_inference.infer_shapes(model)


def _feed(seed: int, width: int) -> Values:
    rng = np.random.default_rng(seed)
    feed = {"scores": rng.permutation(ROWS)[None], "rows": rng.normal(size=(1, ROWS, width))}
    return {name: value.astype(np.float32) for name, value in feed.items()}


def _reranked(feed: Values, seed: int) -> Values:
    """The same rows are the best, in another order."""
    best = np.argsort(feed["scores"][0])[-CHOSEN:]
    other = {**feed, "scores": feed["scores"].copy()}
    other["scores"][0, best] = np.random.default_rng(seed + 1).permutation(CHOSEN) + 100
    return other


@pytest.mark.parametrize("pick", PICKED)
@each_row(
    "behind",
    "y = Tanh(chosen)",
    "y = Transpose<perm=[2,0,1]>(chosen)",
    "t = Transpose<perm=[0,2,1]>(chosen) m = MatMul(chosen, t) y = Softmax(m)",
    "h = Reshape(chosen, four) y = Transpose<perm=[0,2,1,3]>(h)",
    "y = Reshape(chosen, flat)",
    "n = Neg(chosen) y = Concat<axis=1>(chosen, n)",
    "y = ReduceMax<axes=[2],keepdims=0>(chosen)",
    'y = Einsum<equation="bqc,bkc->bqk">(chosen, chosen)',
)
def test_rows_stay_matched_through_operators(pick: str, behind: str) -> None:
    model, feed = _model(behind, pick), _feed(3, 4)
    session = Session(model)
    one, two = session.run(feed), session.run(_reranked(feed, 3))
    assert not np.array_equal(one["y"], two["y"])
    found = ChosenRows(facts_of(model)).matched("y", one["y"], two["y"])
    assert found.reordered and found.lost == 0
    np.testing.assert_allclose(found.left, found.right, rtol=1e-6)


def test_inside_of_a_graph_a_row_that_is_off_keeps_its_partner() -> None:
    one = np.random.default_rng(0).normal(size=(1, CHOSEN, 4))
    far = one.copy()
    far[0, 1] += 0.25
    found = ChosenRows(facts_of(_model("y = Tanh(chosen)"))).matched("y", one, far[:, ::-1])
    assert found.lost == 0 and found.reordered and np.abs(found.left - found.right).max() < 0.5


def test_boxes_that_survived_suppression_are_matched_whatever_their_number() -> None:
    body = "kept = NonMaxSuppression(boxes, scores, most, iou, least) y = Cast<to=1>(kept)"
    given = "float[1,20,4] boxes, float[1,1,20] scores"
    model = text_model(given, body, most=[10], iou=[0.5], least=[0.1])
    kept = np.asarray([[0, 0, 3], [0, 0, 7], [0, 0, 1]], np.float32)
    facts = facts_of(shape_inference.infer_shapes(model))
    found = ChosenRows(facts).matched("y", kept, kept[[2, 0]])
    np.testing.assert_array_equal(found.left, found.right)
    assert found.lost == pytest.approx(1 / 3)
    for other, right in ((kept[[2, 0]], True), (kept[[2]], False), (kept[[2], :2], False)):
        verdict = judge_outputs(facts, Context(label="given"), [{"y": kept}], [{"y": other}])
        assert any(number.passes is False for number in verdict.numbers) is not right, verdict.lines()


# Rows chosen once, twice, or for their classes: then the place is divided by their number.
FORMS = {
    "once": "y = Tanh(chosen)",
    "twice": "v2, j = TopK(again, k) j3 = Unsqueeze(j, last) w2 = Tile(j3, reps)"
    " chosen2 = GatherElements<axis=1>(chosen, w2) y = Tanh(chosen2)",
    "classes": "g = Reshape(chosen, flat) b, p = TopK(g, eight) j = Div(p, c) j3 = Unsqueeze(j, last)"
    " w2 = Tile(j3, reps) chosen2 = GatherElements<axis=1>(chosen, w2) y = Tanh(chosen2)",
}


def test_wrong_rows_are_not_forgiven_and_rows_of_one_side_are_counted() -> None:
    model, feed = _model(FORMS["once"], width=3), _feed(3, 3)
    judge, session = Judge(model, facts_of(model), [feed], label="given"), Session(model)
    assert judge.compare([{"y": -session.run(feed)["y"]}]).overall_db < 0
    other = {**feed, "scores": feed["scores"].copy()}
    ends = np.argsort(feed["scores"][0])[[0, -1]]
    other["scores"][0, ends] = other["scores"][0, ends[::-1]]
    verdict = judge.compare([session.run(other)])
    assert verdict.lost == pytest.approx(1 / CHOSEN) and verdict.overall_db == np.inf
    assert [n.value for n in verdict.numbers if n.limit.measure is Measure.ROWS] == [pytest.approx(5 / 6)]


@pytest.mark.parametrize("hidden", [False, True])
def test_detections_in_another_order_are_the_same(decoder_detector: Any, hidden: bool) -> None:
    """An operator nobody knows hides every shape behind it; a choice before it still makes the order mean nothing."""
    facts = decoder_detector.facts
    if hidden:
        model = onnx.ModelProto()
        model.CopyFrom(decoder_detector.model)
        for node in model.graph.node:
            node.domain = "nobody.knows" if node.op_type == "TopK" else node.domain
        model.opset_import.add(domain="nobody.knows", version=1)
        model.graph.ClearField("value_info")
        facts = facts_of(model)
    feed = decoder_detector.feeds[0]
    outputs = Session(decoder_detector.model).run(feed)
    order = np.random.default_rng(3).permutation(outputs["scores"].shape[1])
    other = {name: value[:, order] for name, value in outputs.items()}
    verdict = judge_outputs(facts, Context(label="given"), [outputs], [other], [feed])
    boxes = [number for number in verdict.numbers if number.limit.measure is Measure.BOX_ERROR]
    assert boxes and all(number.passes for number in boxes)
    assert hidden or verdict.right


@each_row(("length", "reordered"), (6, True), (7, False), (2, True), (1, False))
def test_rows_that_were_put_one_behind_the_other_are_matched(length: int, reordered: bool) -> None:
    """Two rows were chosen: what is a whole number of times as long may hold them."""
    body = "v, i = TopK(scores, k) s = ReduceSum(v) y = Add(z, s)"
    model = shape_inference.infer_shapes(text_model(f"float[1,9] scores, float[1,{length}] z", body, k=[2]))
    left = np.asarray([[1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 40.0]])[:, :length]
    rows = ChosenRows(facts_of(model))
    assert rows.is_behind("y") and rows.is_behind("v") and rows.is_behind("i") and not rows.is_behind("scores")
    found = rows.matched("y", left, left[:, ::-1])
    assert found.reordered is reordered and np.array_equal(found.left, found.right) is (reordered or length == 1)


@each_row("batch", 1, 6)
def test_every_item_of_a_batch_chooses_for_itself(batch: int) -> None:
    model = text_model(f"float[{batch},9] scores", "v, i = TopK(scores, k) y = Sin(v)", k=[5])
    rng = np.random.default_rng(1)
    y = Session(model).run({"scores": rng.random((batch, 9)).astype(np.float32)})["y"]
    other = np.stack([row[rng.permutation(5)] for row in y])
    found = ChosenRows(facts_of(shape_inference.infer_shapes(model))).matched("y", y, other)
    np.testing.assert_array_equal(found.left, found.right)
    assert found.left.size == y.size and found.reordered
