"""mask-constant: exact zeros stay, the range shrinks, rows that are masked wholly are refused."""

from __future__ import annotations

import numpy as np
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

TRANSFORM = load_transform("mask-constant")


def _added(mask: np.ndarray, *, heads: int = 2) -> TinyGraph:
    graph = TinyGraph()
    graph.op("Add", [graph.input("x", (1, heads, *mask.shape)), graph.stored("mask", mask)], "sum")
    graph.op("Softmax", ["sum"], "y", axis=-1)
    return graph


def _causal(size: int, huge: float) -> np.ndarray:
    return np.where(np.tril(np.ones((size, size))) > 0, 0.0, huge)


HUGE = st.sampled_from([-1e4, -1e9, -1e30, -3.4e38, -np.inf])


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2, 7), huge=HUGE, seed=st.integers(0, 1000))
def test_an_added_mask_keeps_its_zeros(size: int, huge: float, seed: int) -> None:
    model = _added(_causal(size, huge)).model("y")
    feeds = random_feeds(model, samples=2, seed=seed)
    done = rewrite(model, None, ["mask-constant"], feeds)
    assert done.kept == ("mask-constant",), done.steps[0].reason
    assert float(GraphCopy(done.model).array("mask").min()) > -300  # type: ignore[union-attr]
    for feed in feeds:
        wanted, got = Session(model).run(feed)["y"], Session(done.model).run(feed)["y"]
        assert (got[wanted == 0] == 0).all()
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(size=st.integers(2, 6), huge=st.sampled_from([-1e9, -3.4e38]), seed=st.integers(0, 1000))
def test_a_selected_mask_keeps_its_result(size: int, huge: float, seed: int) -> None:
    graph = TinyGraph()
    condition = graph.input("keep", (1, 1, size), "bool")
    graph.op("Where", [condition, graph.input("x", (1, size, size)), graph.stored("mask", huge)], "picked")
    graph.op("Softmax", ["picked"], "y", axis=-1)
    model = graph.model("y")
    rng = np.random.default_rng(seed)
    feeds = [
        {"keep": rng.random((1, 1, size)) < 0.6, "x": rng.normal(size=(1, size, size)).astype(np.float32)},
        {"keep": np.zeros((1, 1, size), bool), "x": rng.normal(size=(1, size, size)).astype(np.float32)},
    ]
    done = rewrite(model, None, ["mask-constant"], feeds)
    assert done.kept == ("mask-constant",), done.steps[0].reason
    for feed in feeds:
        np.testing.assert_allclose(Session(model).run(feed)["y"], Session(done.model).run(feed)["y"], rtol=1e-6)


def test_the_bound_follows_the_encoding_of_the_scores() -> None:
    model = _added(_causal(3, -3.4e38)).model("y")
    entry = Encoding(name="x", value=affine_for_range(-6, 10, GridKind(bits=16, signed=False)))
    made = TRANSFORM.apply(model, EncodingSet(version="1.0.0", entries={"x": entry}), TRANSFORM.match(model))
    bounded = GraphCopy(made.model).array("mask")
    assert bounded is not None
    assert abs(float(bounded.min()) + 104 + 16) < 0.01
    assert made.touched == {"mask", "sum"}


def _refused(graph: TinyGraph, *outputs: str) -> str:
    matched = TRANSFORM.match(graph.model(*outputs))
    assert not matched
    return matched.refusals[0].reason


def test_a_row_that_is_masked_wholly_is_refused() -> None:
    mask = _causal(3, -1e30)
    mask[1] = -1e30
    assert "masked wholly" in _refused(_added(mask), "y")


def test_a_mask_that_something_else_reads_is_refused() -> None:
    graph = _added(_causal(3, -1e30))
    graph.op("Relu", ["sum"], "z")
    assert "Relu" in _refused(graph, "y", "z")


def test_a_softmax_along_another_axis_is_refused() -> None:
    graph = TinyGraph()
    graph.op("Add", [graph.input("x", (3, 3)), graph.stored("mask", _causal(3, -1e30))], "sum")
    graph.op("Softmax", ["sum"], "y", axis=0)
    assert "axis 0" in _refused(graph, "y")


def test_the_summed_scores_as_an_output_are_refused() -> None:
    assert "output of the model" in _refused(_added(_causal(3, -1e30)), "y", "sum")
