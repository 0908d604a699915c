"""Rows behind a choice are matched as sets, through every operator behind it; nothing else is forgiven."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.judge.judge import Judge, judge_outputs
from deploykit.accuracy.judge.rows import ChosenRows, match_contents
from deploykit.accuracy.judge.verdict import Context, Measure
from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.collect import facts_of
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

Values = dict[str, np.ndarray]
ROWS, CHOSEN = 12, 6


# --- contents -------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(2, 40), seed=st.integers(0, 999), noise=st.floats(0, 0.02))
def test_rows_are_matched_by_what_they_hold(rows: int, seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    table = np.linspace(0, 100, rows)[:, None] + rng.normal(size=(1, 4))
    labels = rng.integers(0, 3, (rows, 1))
    order = rng.permutation(rows)
    moved = table[order] + rng.normal(size=(rows, 4)) * noise * 100 / rows
    pairs = match_contents([(table, moved), (labels, labels[order])])
    assert pairs is not None
    np.testing.assert_array_equal(order[pairs[1]], pairs[0])


def test_rows_that_are_not_alike_are_not_matched() -> None:
    rng = np.random.default_rng(0)
    assert match_contents([(rng.normal(size=(30, 4)), rng.normal(size=(30, 4)) + 5)]) is None


# --- through operators ----------------------------------------------------------------------------------------------


def _gathered(graph: TinyGraph, rows: str, index: str, name: str, width: int) -> str:
    """Rows [1, N, width] at the places [1, K]."""
    last = graph.op("Unsqueeze", [index, graph.stored(f"{name}.last", [-1], "int64")], f"{name}.i3")
    where = graph.op("Tile", [last, graph.stored(f"{name}.reps", [1, 1, width], "int64")], f"{name}.where")
    return graph.op("GatherElements", [rows, where], name, axis=1)


def _chosen(graph: TinyGraph, width: int, pick: str = "GatherElements") -> str:
    """The best rows by score."""
    kept = graph.stored("k", [CHOSEN], "int64")
    graph.op("TopK", [graph.input("scores", (1, ROWS)), kept], ["v", "i"], axis=1)
    rows = graph.input("rows", (1, ROWS, width))
    if pick == "GatherElements":
        return _gathered(graph, rows, "i", "chosen", width)
    flat = graph.op("Squeeze", ["i", graph.stored("first", [0], "int64")], "flat_index")
    return graph.op("Gather", [rows, flat], "chosen", axis=1)


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


def _chain(graph: TinyGraph, rows: str, name: str) -> str:
    """One way from chosen rows [1, 6, 4] to an output."""
    if name == "transpose":
        return graph.op("Transpose", [rows], "y", perm=[2, 0, 1])
    if name == "matmul":
        turned = graph.op("Transpose", [rows], "turned", perm=[0, 2, 1])
        return graph.op("Softmax", [graph.op("MatMul", [rows, turned], "qk")], "y", axis=-1)
    if name == "heads":
        four = graph.op("Reshape", [rows, graph.stored("four", [1, 6, 2, 2], "int64")], "four_d")
        return graph.op("Transpose", [four], "y", perm=[0, 2, 1, 3])
    if name == "flat":
        return graph.op("Reshape", [rows, graph.stored("flat", [1, 24], "int64")], "y")
    if name == "concat":
        return graph.op("Concat", [rows, graph.op("Neg", [rows], "negative")], "y", axis=1)
    if name == "reduce":
        return graph.op("ReduceMax", [rows], "y", axes=[-1], keepdims=0)
    if name == "einsum":
        return graph.op("Einsum", [rows, rows], "y", equation="bqc,bkc->bqk")
    return graph.op("Tanh", [rows], "y")


@pytest.mark.parametrize("way", ["plain", "transpose", "matmul", "heads", "flat", "concat", "reduce", "einsum"])
@each_row("pick", ["GatherElements", "Gather"])
def test_rows_stay_matched_through_operators(way: str, pick: str) -> None:
    graph = TinyGraph()
    _chain(graph, _chosen(graph, 4, pick), way)
    model, feed = graph.model("y"), _feed(3, 4)
    session = Session(model)
    one, two = session.run(feed), session.run(_reranked(feed, 3))
    assert not np.array_equal(one["y"], two["y"])
    found = ChosenRows(facts_of(model)).matched("y", one["y"], two["y"])
    assert found.reordered and found.lost == 0
    np.testing.assert_allclose(found.left, found.right, rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 2])
def test_every_item_of_a_batch_chooses_for_itself(batch: int) -> None:
    graph = TinyGraph()
    graph.op("TopK", [graph.input("scores", (batch, 9)), graph.stored("k", [5], "int64")], ["v", "i"], axis=1)
    graph.op("Sin", ["v"], "y")
    model, rng = graph.model("y"), np.random.default_rng(1)
    y = Session(model).run({"scores": rng.random((batch, 9)).astype(np.float32)})["y"]
    found = ChosenRows(facts_of(model)).matched("y", y, y[:, rng.permutation(5)])
    np.testing.assert_array_equal(found.left, found.right)
    assert found.left.size == y.size


def test_boxes_that_survived_suppression_are_matched_whatever_their_number() -> None:
    graph = TinyGraph()
    names = [graph.input("boxes", (1, 20, 4)), graph.input("scores", (1, 1, 20))]
    limits = [graph.stored("most", 10, "int64"), graph.stored("iou", 0.5), graph.stored("least", 0.1)]
    graph.op("NonMaxSuppression", [*names, *limits], "kept")
    graph.op("Cast", ["kept"], "y", to=1)
    kept = np.asarray([[0, 0, 3], [0, 0, 7], [0, 0, 1]], np.float32)
    found = ChosenRows(facts_of(graph.model("y", "kept"))).matched("y", kept, kept[[2, 0]])
    np.testing.assert_array_equal(found.left, found.right)
    assert found.lost == pytest.approx(1 / 3)


# --- judged ---------------------------------------------------------------------------------------------------------


def _model(form: str) -> onnx.ModelProto:
    """Rows chosen ``once``, ``twice``, or for their ``classes``: then the place is divided by their number."""
    graph = TinyGraph()
    rows = _chosen(graph, 3)
    if form == "twice":
        kept = graph.stored("k2", [CHOSEN], "int64")
        graph.op("TopK", [graph.input("again", (1, CHOSEN)), kept], ["v2", "i2"], axis=1)
        rows = _gathered(graph, rows, "i2", "chosen2", 3)
    elif form == "classes":
        flat = graph.op("Reshape", [rows, graph.stored("flat", [1, CHOSEN * 3], "int64")], "flattened")
        graph.op("TopK", [flat, graph.stored("k2", [8], "int64")], ["best", "pair"], axis=1)
        row = graph.op("Div", ["pair", graph.stored("classes", 3, "int64")], "row")
        rows = _gathered(graph, rows, row, "again3", 3)
    graph.op("Tanh", [rows], "y")
    return graph.model("y")


@pytest.mark.parametrize("form", ["once", "twice", "classes"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500))
def test_the_same_rows_in_another_order_are_equal(form: str, seed: int) -> None:
    model, feed = _model(form), _feed(seed, 3)
    if form == "twice":
        feed["again"] = np.random.default_rng(seed).permutation(CHOSEN)[None].astype(np.float32)
    other = _reranked(feed, seed)
    if form == "classes":  # near ties among rows and classes
        other["rows"] = feed["rows"] * np.float32(1.0001)
    verdict = Judge(model, facts_of(model), [feed]).compare([Session(model).run(other)])
    if form == "classes":
        assert verdict.overall_db > 60 and verdict.lost <= 0.25
    else:
        assert verdict.overall_db == np.inf and verdict.lost == 0


def test_wrong_rows_are_not_forgiven_and_rows_of_one_side_are_counted() -> None:
    model, feed = _model("once"), _feed(3, 3)
    judge, session = Judge(model, facts_of(model), [feed]), Session(model)
    assert judge.compare([{"y": -session.run(feed)["y"]}]).overall_db < 0
    other = {**feed, "scores": feed["scores"].copy()}
    ends = np.argsort(feed["scores"][0])[[0, -1]]
    other["scores"][0, ends] = other["scores"][0, ends[::-1]]
    verdict = judge.compare([session.run(other)])
    assert verdict.lost == pytest.approx(1 / CHOSEN)
    assert verdict.overall_db == np.inf


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
