"""saturating-constant: clamps what only saturates, leaves float results alone, says why elsewhere it does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.cure import rewrite
from deploykit.model.graph import GraphCopy
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

TRANSFORM = load_transform("saturating-constant")
SATURATING = {"Sigmoid": {}, "Tanh": {}, "HardSigmoid": {"alpha": 0.25, "beta": 0.5}}


def _anchors(rng: np.random.Generator, rows: int, huge: float) -> np.ndarray:
    anchors = rng.normal(size=(1, rows, 4))
    anchors[0, rng.random(rows) < 0.5] = huge
    anchors[0, 0] = huge
    return anchors


def _detector(op: str, anchors: np.ndarray, *, moves: bool) -> TinyGraph:
    graph = TinyGraph()
    name = graph.input("x", anchors.shape)
    constant = graph.stored("anchors", anchors)
    if moves:
        constant = graph.op("Transpose", [constant], "turned", perm=[0, 2, 1])
        name = graph.op("Transpose", [name], "x_turned", perm=[0, 2, 1])
    graph.op("Add", [name, constant], "sum")
    graph.op(op, ["sum"], "y", **SATURATING[op])
    return graph


@settings(max_examples=30, deadline=None)
@given(
    op=st.sampled_from(sorted(SATURATING)),
    rows=st.integers(1, 6),
    huge=st.sampled_from([1e30, 3.4e38, -1e30, 1e5, np.inf, -np.inf]),
    moves=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_results_stay_and_ranges_shrink(op: str, rows: int, huge: float, moves: bool, seed: int) -> None:
    model = _detector(op, _anchors(np.random.default_rng(seed), rows, huge), moves=moves).model("y")
    feeds = random_feeds(model, samples=2, seed=seed)
    done = rewrite(model, None, ["saturating-constant"], feeds)
    assert done.kept == ("saturating-constant",), done.steps[0].reason
    clamped = GraphCopy(done.model).array("anchors")
    assert clamped is not None
    assert float(np.abs(clamped).max()) < 130
    for feed in feeds:
        np.testing.assert_array_equal(Session(model).run(feed)["y"], Session(done.model).run(feed)["y"])


def test_the_bound_follows_the_encoding_of_the_summand() -> None:
    model = _detector("Sigmoid", _anchors(np.random.default_rng(0), 3, 1e30), moves=False).model("y")
    entry = Encoding(name="x", value=affine_for_range(-5, 2, GridKind(bits=16, signed=False)))
    encodings = EncodingSet(version="2.0.0", entries={"x": entry})
    made = TRANSFORM.apply(model, encodings, TRANSFORM.match(model))
    clamped = GraphCopy(made.model).array("anchors")
    assert clamped is not None
    assert float(clamped.max()) == pytest.approx(18 + 5, abs=1e-3)
    assert made.ranges["sum"][1] == pytest.approx(18 + 5 + 2, abs=1e-2)
    assert made.touched == {"anchors", "sum"}


def test_the_given_model_is_not_changed() -> None:
    model = _detector("Sigmoid", _anchors(np.random.default_rng(0), 3, 1e30), moves=False).model("y")
    before = model.SerializeToString(deterministic=True)
    TRANSFORM.apply(model, None, TRANSFORM.match(model))
    assert model.SerializeToString(deterministic=True) == before


def _refused(graph: TinyGraph, *outputs: str) -> str:
    matched = TRANSFORM.match(graph.model(*outputs))
    assert not matched
    return matched.refusals[0].reason


def test_refused_where_the_value_reaches_an_output() -> None:
    graph = _detector("Sigmoid", np.full((1, 2, 4), 1e30), moves=False)
    assert "output of the model" in _refused(graph, "y", "sum")


def test_refused_where_something_computes_with_it() -> None:
    graph = _detector("Sigmoid", np.full((1, 2, 4), 1e30), moves=False)
    graph.op("Mul", ["sum", "sum"], "z")
    assert "Mul" in _refused(graph, "y", "z")


def test_refused_where_the_order_of_clamped_values_matters() -> None:
    graph = _detector("Sigmoid", np.full((1, 2, 4), 1e30), moves=False)
    graph.op("TopK", ["sum", graph.stored("k", [2], "int64")], ["values", "indices"])
    graph.op("Sigmoid", ["values"], "z")
    assert "TopK" in _refused(graph, "y", "z", "indices")


def test_values_of_topk_are_followed() -> None:
    graph = TinyGraph()
    anchors = _anchors(np.random.default_rng(3), 6, 1e30)
    graph.op("Add", [graph.input("x", anchors.shape), graph.stored("anchors", anchors)], "sum")
    graph.op("TopK", ["sum", graph.stored("k", [3], "int64")], ["values", "indices"], axis=1)
    graph.op("Sigmoid", ["values"], "y")
    model = graph.model("y")
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, None, ["saturating-constant"], feeds)
    assert done.kept == ("saturating-constant",)


def test_softmax_is_left_to_the_mask_rewrite() -> None:
    graph = TinyGraph()
    graph.op("Add", [graph.input("x", (1, 4)), graph.stored("mask", [[0, 0, -1e30, 0]])], "sum")
    graph.op("Softmax", ["sum"], "y")
    assert "mask-constant" in _refused(graph, "y")


def test_ordinary_constants_are_no_sites() -> None:
    graph = _detector("Sigmoid", np.full((1, 2, 4), 20.0), moves=False)
    matched = TRANSFORM.match(graph.model("y"))
    assert not matched
    assert not matched.refusals
    assert matched.reason


def test_a_wrong_guess_is_undone() -> None:
    """Without encodings the summand's range is unknown; the samples show that the margin was too small."""
    graph = _detector("Sigmoid", np.full((1, 2, 4), 1e30), moves=False)
    model = graph.model("y")
    feeds = [{"x": np.full((1, 2, 4), -30, dtype=np.float32)}]
    done = rewrite(model, None, ["saturating-constant"], feeds)
    assert done.kept == ()
    assert "undone" in done.steps[0].reason
    assert done.model is model
