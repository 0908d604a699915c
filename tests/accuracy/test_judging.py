"""The judge forgives another order of rows behind a TopK, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from sample_models.tiny_graphs import TinyGraph

ROWS, CHOSEN = 12, 6


def _model(*, second: bool) -> onnx.ModelProto:
    """Chosen rows by score, and optionally rows chosen again among them."""
    graph = TinyGraph()
    graph.op("TopK", [graph.input("scores", (1, ROWS)), graph.stored("k", [CHOSEN], "int64")], ["v", "i"], axis=1)
    index = graph.op("Unsqueeze", ["i", graph.stored("last", [-1], "int64")], "i3")
    where = graph.op("Tile", [index, graph.stored("reps", [1, 1, 3], "int64")], "where")
    rows = graph.op("GatherElements", [graph.input("rows", (1, ROWS, 3)), where], "chosen", axis=1)
    if second:
        kept = graph.stored("k2", [CHOSEN], "int64")
        graph.op("TopK", [graph.input("again", (1, CHOSEN)), kept], ["v2", "i2"], axis=1)
        index = graph.op("Unsqueeze", ["i2", "last"], "i23")
        where = graph.op("Tile", [index, "reps"], "where2")
        rows = graph.op("GatherElements", [rows, where], "chosen2", axis=1)
    graph.op("Tanh", [rows], "y")
    return graph.model("y")


def _judge(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> Judge:
    return Judge(model, collect_facts(wrap_proto(model, path=Path("tiny.onnx"))), [feed])


def _feed(seed: int, *, second: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feed = {"scores": rng.permutation(ROWS)[None], "rows": rng.normal(size=(1, ROWS, 3))}
    if second:
        feed["again"] = rng.permutation(CHOSEN)[None]
    return {name: value.astype(np.float32) for name, value in feed.items()}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), second=st.booleans())
def test_the_same_rows_in_another_order_are_equal(seed: int, second: bool) -> None:
    model = _model(second=second)
    feed = _feed(seed, second=second)
    judge = _judge(model, feed)
    session = Session(model)
    order = np.argsort(feed["scores"][0])[-CHOSEN:]
    other = {**feed, "scores": feed["scores"].copy()}
    other["scores"][0, order] = np.random.default_rng(seed + 1).permutation(CHOSEN) + 100

    def run(_: Feed) -> Mapping[str, Any]:
        return session.run(other)

    verdict = judge.judge(run)
    assert verdict.overall_db == np.inf
    assert verdict.lost == 0


def _classified() -> onnx.ModelProto:
    """Rows chosen by score, then (row, class) pairs among them: the place is divided by the number of classes."""
    graph = TinyGraph()
    graph.op("TopK", [graph.input("scores", (1, ROWS)), graph.stored("k", [CHOSEN], "int64")], ["v", "i"], axis=1)
    last = graph.stored("last", [-1], "int64")
    reps = graph.stored("reps", [1, 1, 3], "int64")
    where = graph.op("Tile", [graph.op("Unsqueeze", ["i", last], "i3"), reps], "where")
    rows = graph.op("GatherElements", [graph.input("rows", (1, ROWS, 3)), where], "chosen", axis=1)
    flat = graph.op("Reshape", [rows, graph.stored("flat", [1, CHOSEN * 3], "int64")], "flattened")
    graph.op("TopK", [flat, graph.stored("k2", [8], "int64")], ["best", "pair"], axis=1)
    row = graph.op("Div", ["pair", graph.stored("classes", 3, "int64")], "row")
    where = graph.op("Tile", [graph.op("Unsqueeze", [row, last], "row3"), reps], "where2")
    graph.op("Tanh", [graph.op("GatherElements", [rows, where], "again", axis=1)], "y")
    return graph.model("y")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500))
def test_rows_chosen_twice_for_their_classes_are_matched(seed: int) -> None:
    model, feed = _classified(), _feed(seed, second=False)
    judge = _judge(model, feed)
    session = Session(model)
    order = np.argsort(feed["scores"][0])[-CHOSEN:]
    other = {**feed, "scores": feed["scores"].copy(), "rows": feed["rows"] * np.float32(1.0001)}
    other["scores"][0, order] = np.random.default_rng(seed + 1).permutation(CHOSEN) + 100
    verdict = judge.judge(lambda _: session.run(other))
    assert verdict.overall_db > 60
    assert verdict.lost <= 0.25


def test_wrong_rows_are_not_forgiven() -> None:
    model, feed = _model(second=False), _feed(3, second=False)
    judge = _judge(model, feed)
    session = Session(model)

    def run(given_: Feed) -> Mapping[str, Any]:
        values = session.run(given_)
        return {**values, "y": -values["y"]}

    assert judge.judge(run).overall_db < 0


def test_rows_that_only_one_side_chose_are_counted() -> None:
    model, feed = _model(second=False), _feed(3, second=False)
    judge = _judge(model, feed)
    session = Session(model)
    other = {**feed, "scores": feed["scores"].copy()}
    lowest, highest = np.argsort(feed["scores"][0])[[0, -1]]
    other["scores"][0, [lowest, highest]] = other["scores"][0, [highest, lowest]]
    verdict = judge.judge(lambda _: session.run(other))
    assert verdict.lost == pytest.approx(1 / CHOSEN)
    assert verdict.overall_db == np.inf
