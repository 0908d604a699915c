"""log-of-ratio, logit-of-sigmoid and log-range: equal results, small ranges, refusals with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.cure import difference_in_ulps, rewrite
from deploykit.model.graph import GraphCopy
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

RATIO = load_transform("log-of-ratio")
LOGIT = load_transform("logit-of-sigmoid")
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def _ratio(graph: TinyGraph, shape: list[int], above: str, below: str) -> TinyGraph:
    for name, op in (("a", above), ("b", below)):
        graph.op(op, [graph.input(f"x{name}", shape)], name)
    graph.op("Div", ["a", "b"], "ratio")
    graph.op("Log", ["ratio"], "y")
    return graph


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, above=st.sampled_from(["Sigmoid", "Exp", "Softmax"]), below=st.sampled_from(["Sigmoid", "Exp"]))
def test_a_log_of_a_ratio_becomes_a_difference(shape: list[int], above: str, below: str) -> None:
    model = _ratio(TinyGraph(), shape, above, below).model("y")
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, None, ["log-of-ratio"], feeds)
    assert done.kept == ("log-of-ratio",), done.steps[0].reason
    assert "Div" not in {node.op_type for node in done.model.graph.node}
    for feed in feeds:
        np.testing.assert_allclose(Session(model).run(feed)["y"], Session(done.model).run(feed)["y"], atol=1e-5)


def test_a_ratio_that_may_be_of_negative_numbers_is_refused() -> None:
    graph = TinyGraph()
    graph.op("Div", [graph.input("a", (2,)), graph.op("Exp", [graph.input("b", (2,))], "e")], "ratio")
    graph.op("Log", ["ratio"], "y")
    matched = RATIO.match(graph.model("y"))
    assert not matched
    assert "a may be negative" in matched.refusals[0].reason


def test_a_ratio_that_is_used_elsewhere_is_refused() -> None:
    graph = _ratio(TinyGraph(), [2], "Exp", "Exp")
    matched = RATIO.match(graph.model("y", "ratio"))
    assert not matched
    assert "used elsewhere" in matched.refusals[0].reason


def test_an_overflowing_ratio_is_found_by_the_proof() -> None:
    """The quotient overflows where the difference does not: the results differ, so the rewrite is undone."""
    model = _ratio(TinyGraph(), [2], "Exp", "Exp").model("y")
    feeds = [{"xa": np.asarray([80, 1], np.float32), "xb": np.asarray([-80, 1], np.float32)}]
    done = rewrite(model, None, ["log-of-ratio"], feeds)
    assert done.kept == ()
    assert "undone" in done.steps[0].reason


def _inverse_sigmoid(graph: TinyGraph, base: str, eps: float, *, idle_clip: bool) -> str:
    one = graph.stored("one", 1.0)
    low = graph.stored("eps", eps)
    if idle_clip:
        base = graph.op("Clip", [base, graph.stored("zero", 0.0), one], "inside")
    above = graph.op("Clip", [base, low, one], "above")
    complement = graph.op("Sub", [one, base], "complement")
    below = graph.op("Clip", [complement, low], "below")
    return graph.op("Log", [graph.op("Div", [above, below], "ratio")], "logit")


def _refined(shape: list[int], eps: float, *, idle_clip: bool, keep_sigmoid: bool) -> TinyGraph:
    graph = TinyGraph()
    sigmoid = graph.op("Sigmoid", [graph.input("u", shape)], "s")
    logit = _inverse_sigmoid(graph, sigmoid, eps, idle_clip=idle_clip)
    graph.op("Sigmoid", [graph.op("Add", [logit, graph.input("delta", shape)], "moved")], "y")
    if keep_sigmoid:
        graph.op("Relu", ["s"], "z")
    return graph


@settings(max_examples=30, deadline=None)
@given(
    shape=SHAPES,
    eps=st.sampled_from([1e-5, 1e-3, 1e-6]),
    idle_clip=st.booleans(),
    keep_sigmoid=st.booleans(),
    first=st.sampled_from([(), ("log-of-ratio",)]),
)
def test_an_inverse_sigmoid_becomes_a_clip(
    shape: list[int], eps: float, idle_clip: bool, keep_sigmoid: bool, first: tuple[str, ...]
) -> None:
    graph = _refined(shape, eps, idle_clip=idle_clip, keep_sigmoid=keep_sigmoid)
    model = graph.model("y", *(["z"] if keep_sigmoid else []))
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, None, [*first, "logit-of-sigmoid"], feeds)
    assert done.kept == (*first, "logit-of-sigmoid"), [step.reason for step in done.steps]
    assert not {"Div", "Log"} & {node.op_type for node in done.model.graph.node}
    for feed in feeds:
        assert difference_in_ulps(Session(model).run(feed), Session(done.model).run(feed)) < 64


def test_the_clip_is_cut_where_the_chain_saturates() -> None:
    model = _refined([3], 1e-5, idle_clip=False, keep_sigmoid=False).model("y")
    made = LOGIT.apply(model, None, LOGIT.match(model))
    assert made.ranges["logit"] == pytest.approx((-11.512925, 11.512925), abs=1e-5)
    feed = {"u": np.asarray([-40, 0, 40], np.float32), "delta": np.zeros(3, np.float32)}
    np.testing.assert_allclose(Session(model).run(feed)["y"], Session(made.model).run(feed)["y"], atol=1e-6)


def test_a_ratio_of_two_tensors_is_no_logit() -> None:
    graph = TinyGraph()
    one, low = graph.stored("one", 1.0), graph.stored("low", 1e-5)
    above = graph.op("Clip", [graph.op("Sigmoid", [graph.input("a", (2,))], "sa"), low, one], "pa")
    other = graph.op("Sub", [one, graph.op("Sigmoid", [graph.input("b", (2,))], "sb")], "nb")
    graph.op("Log", [graph.op("Div", [above, graph.op("Clip", [other, low, one], "pb")], "r")], "y")
    matched = LOGIT.match(graph.model("y"))
    assert not matched
    assert "not the same tensor" in matched.refusals[0].reason


def test_a_logit_of_something_else_is_refused() -> None:
    graph = TinyGraph()
    _inverse_sigmoid(graph, graph.input("p", (2,)), 1e-5, idle_clip=False)
    matched = LOGIT.match(graph.model("logit"))
    assert not matched
    assert "not a Sigmoid's output" in matched.refusals[0].reason


def test_clips_that_are_no_epsilon_are_refused() -> None:
    graph = TinyGraph()
    _inverse_sigmoid(graph, graph.op("Sigmoid", [graph.input("u", (2,))], "s"), 0.7, idle_clip=False)
    matched = LOGIT.match(graph.model("logit"))
    assert not matched
    assert "clipped to" in matched.refusals[0].reason


def _log_model(opset: int = 17) -> TinyGraph:
    graph = TinyGraph(opset)
    graph.op("Log", [graph.op("Sigmoid", [graph.input("x", (4,))], "s")], "logs")
    graph.op("Reshape", ["logs", graph.stored("shape", [2, 2], "int64")], "y")
    return graph


def _log_encodings(low: float, bits: int) -> EncodingSet:
    value = affine_for_range(low, 0, GridKind(bits=bits, signed=False))
    entries = {name: Encoding(name=name, value=value) for name in ("logs", "y")}
    return EncodingSet(version="2.0.0", entries=entries)


@pytest.mark.parametrize(("low", "bits", "widened"), [(-3.0, 16, True), (-4.5, 16, False), (-3.0, 8, False)])
def test_narrow_16_bit_logs_and_their_copies_are_widened(low: float, bits: int, widened: bool) -> None:
    model = _log_model().model("y")
    done = rewrite(model, _log_encodings(low, bits), ["log-range"], random_feeds(model))
    assert done.encodings is not None
    for name in ("logs", "y"):
        entry = done.encodings.get(name)
        assert entry is not None
        assert isinstance(entry.value, Affine)
        assert entry.value.bits == bits
        assert float(entry.value.maximum) == pytest.approx(0, abs=1e-9)
        assert float(entry.value.minimum) == pytest.approx(-4.01 if widened else low, abs=1e-6)


def test_the_graph_of_a_narrow_log_stays() -> None:
    model = _log_model().model("y")
    done = rewrite(model, _log_encodings(-3, 16), ["log-range"], random_feeds(model))
    assert [n.op_type for n in done.model.graph.node] == [n.op_type for n in GraphCopy(model).nodes]


@each_row(("factor", "added"), [(2.0**20, 1.0), (1e5, 0.0), (1e5, None)])
def test_the_log_of_a_huge_multiple_is_a_sum(factor: float, added: float | None) -> None:
    graph = TinyGraph()
    name = graph.op("Mul", [graph.op("Abs", [graph.input("x", (2, 5))], "size"), graph.stored("k", factor)], "product")
    if added is not None:
        name = graph.op("Add", [graph.stored("c", added), name], "sum")
    model = graph.model(graph.op("Log", [name], "y"))
    done = rewrite(model, None, ["log-of-scaled"], random_feeds(model))
    assert done.kept == ("log-of-scaled",), done.steps
    assert max(abs(numpy_helper.to_array(tensor)) for tensor in done.model.graph.initializer) < 20
