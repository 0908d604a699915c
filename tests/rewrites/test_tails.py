"""split-output, scale-last and cut-tail: head and tail together give the original outputs bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from deploykit.accuracy.simulate.sessions import Session
from deploykit.findings.records import Arrays
from deploykit.flow.cure import Rewriting, rewrite
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from tables import each_row
from text_models import text_model

CUTS = ("split-output", "scale-last", "cut-tail")


def run_chain(sessions: Sequence[Session], feed: Arrays) -> dict[str, Any]:
    """Run models one after the other, each reading inputs and everything made before it."""
    values: dict[str, Any] = dict(feed)
    for session in sessions:
        values.update(session.run(values))
    return values


def _head(graph: TinyGraph, source: str, name: str, width: int, rng: np.random.Generator) -> str:
    weight = graph.stored(f"{name}.weight", rng.normal(size=(8, width)))
    product = graph.op("MatMul", [source, weight], f"{name}_product")
    return graph.op("Add", [product, graph.stored(f"{name}.bias", rng.normal(size=width))], f"{name}_logits")


def _detector(queries: int, classes: int, seed: int, *, scale: str = "input", top: bool = False) -> TinyGraph:
    """A small decoder end: boxes times the image size beside scores, optionally the best few by score."""
    rng = np.random.default_rng(seed)
    graph = TinyGraph()
    source = graph.op("Relu", [graph.input("features", (1, queries, 8))], "relu")
    boxes = graph.op("Sigmoid", [_head(graph, source, "box", 4, rng)], "boxes")
    scores = graph.op("Sigmoid", [_head(graph, source, "score", classes, rng)], "scores")
    if scale == "input":
        size = graph.op("Tile", [graph.input("size", (1, 2)), graph.stored("two", [1, 2], "int64")], "sizes")
        size = graph.op("Unsqueeze", [size, graph.stored("axis", [1], "int64")], "size3")
    else:
        size = graph.stored("size", [640.0, 480.0, 640.0, 480.0])
    boxes = graph.op("Mul", [boxes, size], "scaled")
    if top:
        best = graph.op("ReduceMax", [scores], "best", axes=[-1], keepdims=1)
        graph.op("TopK", [best, graph.stored("k", [min(3, queries)], "int64")], ["values", "index"], axis=1)
        where = graph.op("Tile", ["index", graph.stored("four", [1, 1, 4], "int64")], "where")
        boxes = graph.op("GatherElements", [boxes, where], "chosen", axis=1)
        scores = "values"
    graph.op("Concat", [boxes, scores], "detections", axis=-1)
    return graph


def _check(model: onnx.ModelProto, done: Rewriting, feeds: list[dict[str, np.ndarray]]) -> None:
    onnx.checker.check_model(done.model)
    assert done.tail is not None
    onnx.checker.check_model(done.tail)
    parts = [Session(done.model), Session(done.tail)]
    for feed in feeds:
        for name, value in Session(model).run(feed).items():
            np.testing.assert_array_equal(run_chain(parts, feed)[name], value)


@each_row(
    ("names", "how", "outputs"),
    ("split-output", {}, "scaled scores"),
    ("scale-last", {}, "boxes scores"),
    ("scale-last", {"scale": "constant", "top": True}, "boxes where values"),
    ("cut-tail", {"top": True}, "box_logits score_logits"),
    ("split-output scale-last", {}, "boxes scores"),
    (" ".join(CUTS), {"scale": "constant"}, "box_logits score_logits"),
)
def test_where_each_cut_ends_and_head_and_tail_give_the_original(names: str, how: Any, outputs: str) -> None:
    model = _detector(5, 3, 0, **how).model("detections")
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, None, names.split(), feeds)
    _check(model, done, feeds)
    assert [item.name for item in done.model.graph.output] == outputs.split() and done.tail is not None
    if names == "scale-last" and not how:
        assert [item.name for item in done.model.graph.input] == ["features"]
        assert {item.name for item in done.tail.graph.input} == {"boxes", "scores", "size"}
    if names == "cut-tail":
        assert {node.op_type for node in done.model.graph.node} == {"Relu", "MatMul", "Add"}


LOOP = """
    steps = Constant <value = int64 {9}> ()  go = Constant <value = bool {1}> ()
    l = MatMul (x, w)  r = Relu (l)
    s = Loop (steps, go, r) <body = b (int64 i, bool on, float[1,2,3] a) => (bool more, float[1,2,3] c) {
      c = Mul (a, half)  m = ReduceMax <keepdims = 0> (c)  more = Greater (m, one)
    }>
"""


def test_what_decides_a_size_runs_on_the_host_behind_the_layers() -> None:
    body = """
        b = MatMul (x, w)  l = MatMul (x, v)  t = Transpose <perm = [0,2,1]> (l)  s = Sigmoid (t)
        chosen = NonMaxSuppression (b, s, most, half, half)  at = Gather <axis = 1> (chosen, two)
        rows = Squeeze (b, first)  y = Gather (rows, at)
    """
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"w": rng.normal(size=(8, 4)).astype(np.float32), "v": np.ones((8, 1), np.float32)}
    numbers: dict[str, Any] = {"most": [9], "half": np.array([0.5], np.float32), "two": 2, "first": [0]}
    model = text_model("float[1,6,8] x", body, "float[n,4] y", **given, **numbers)
    done = rewrite(model, None, ["loops-on-host"], random_feeds(model))
    assert done.tail is not None and "Sigmoid" in {node.op_type for node in done.model.graph.node}
    assert [node.op_type for node in done.tail.graph.node] == ["NonMaxSuppression", "Gather", "Gather"]
    _check(model, done, random_feeds(model))


def test_what_the_values_end_runs_on_the_host_behind_the_layers() -> None:
    """A trained reader of tables decodes in such a Loop."""
    given: dict[str, Any] = {
        "w": 9 * np.ones((8, 3), np.float32),
        "half3": np.ones(3, np.float32),
        "half": np.float32(0.5),
        "one": np.float32(1),
    }
    model = text_model("float[1,2,8] x", f"{LOOP}  y = Sigmoid (s)", "float[1,2,3] y", **given)
    done = rewrite(model, None, ["loops-on-host"], random_feeds(model))
    assert [node.op_type for node in done.model.graph.node] == ["MatMul", "Relu"]
    _check(model, done, random_feeds(model))
