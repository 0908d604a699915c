"""Rows are matched as sets, by what was chosen or by what they hold, through every operator behind a choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.judge.rows import ChosenRows, match_contents
from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.facts import GraphFacts
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

Collect = Callable[[onnx.ModelProto], GraphFacts]


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(2, 40), seed=st.integers(0, 999), noise=st.floats(0, 0.02))
def test_rows_are_matched_by_what_they_hold(rows: int, seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    table = np.linspace(0, 100, rows)[:, None] + rng.normal(size=(1, 4))
    labels = rng.integers(0, 3, (rows, 1))
    order = rng.permutation(rows)
    moved = table[order] + rng.normal(size=(rows, 4)) * noise * 100 / rows
    pairs = match_contents([table, labels], [moved, labels[order]])
    assert pairs is not None
    np.testing.assert_array_equal(order[pairs[1]], pairs[0])


def test_rows_that_are_not_alike_are_not_matched() -> None:
    rng = np.random.default_rng(0)
    assert match_contents([rng.normal(size=(30, 4))], [rng.normal(size=(30, 4)) + 5]) is None


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
def test_rows_stay_matched_through_operators(collect: Collect, way: str, pick: str) -> None:
    graph = TinyGraph()
    graph.op("TopK", [graph.input("scores", (1, 12)), graph.stored("k", [6], "int64")], ["v", "i"], axis=1)
    data = graph.input("rows", (1, 12, 4))
    if pick == "Gather":
        index = graph.op("Squeeze", ["i", graph.stored("first", [0], "int64")], "flat_index")
        rows = graph.op("Gather", [data, index], "chosen", axis=1)
    else:
        index = graph.op("Unsqueeze", ["i", graph.stored("last", [-1], "int64")], "i3")
        where = graph.op("Tile", [index, graph.stored("reps", [1, 1, 4], "int64")], "where")
        rows = graph.op("GatherElements", [data, where], "chosen", axis=1)
    _chain(graph, rows, way)
    model = graph.model("y")
    sets = ChosenRows(collect(model))
    session = Session(model)
    rng = np.random.default_rng(3)
    feed = {"scores": rng.permutation(12)[None], "rows": rng.normal(size=(1, 12, 4))}
    feed = {name: value.astype(np.float32) for name, value in feed.items()}
    best = np.argsort(feed["scores"][0])[-6:]
    other = {**feed, "scores": feed["scores"].copy()}
    other["scores"][0, best] = other["scores"][0, best[::-1]]
    one, two = session.run(feed), session.run(other)
    assert not np.array_equal(one["y"], two["y"])
    found = sets.matched("y", one["y"], two["y"])
    assert found.reordered and found.lost == 0
    np.testing.assert_allclose(found.left, found.right, rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 2])
def test_every_item_of_a_batch_chooses_for_itself(collect: Collect, batch: int) -> None:
    graph = TinyGraph()
    scores = graph.input("scores", (batch, 9))
    graph.op("TopK", [scores, graph.stored("k", [5], "int64")], ["v", "i"], axis=1)
    graph.op("Sin", ["v"], "y")
    model = graph.model("y")
    sets = ChosenRows(collect(model))
    session = Session(model)
    rng = np.random.default_rng(1)
    feed = {"scores": rng.random((batch, 9)).astype(np.float32)}
    one = session.run(feed)
    shuffled: dict[str, Any] = {name: value.copy() for name, value in one.items()}
    order = rng.permutation(5)
    shuffled["y"] = shuffled["y"][:, order]
    found = sets.matched("y", one["y"], shuffled["y"])
    np.testing.assert_array_equal(found.left, found.right)
    assert found.left.size == one["y"].size


def test_boxes_that_survived_suppression_are_matched_whatever_their_number(collect: Collect) -> None:
    graph = TinyGraph()
    names = [graph.input("boxes", (1, 20, 4)), graph.input("scores", (1, 1, 20))]
    limits = [graph.stored("most", 10, "int64"), graph.stored("iou", 0.5), graph.stored("least", 0.1)]
    graph.op("NonMaxSuppression", [*names, *limits], "kept")
    graph.op("Cast", ["kept"], "y", to=1)
    sets = ChosenRows(collect(graph.model("y", "kept")))
    kept = np.asarray([[0, 0, 3], [0, 0, 7], [0, 0, 1]])
    other = kept[[2, 0]]
    sides = [{"kept": rows, "y": rows.astype(np.float32)} for rows in (kept, other)]
    found = sets.matched("y", sides[0]["y"], sides[1]["y"])
    np.testing.assert_array_equal(found.left, found.right)
    assert found.lost == pytest.approx(1 / 3)
