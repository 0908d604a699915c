"""simplify, of what depends on stored values only: the same results, fewer nodes, and only entries of what is left."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.cure import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

TRANSFORM = load_transform("simplify")


@st.composite
def _graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A DAG over an input and two stored tensors: some of it depends on nothing but these."""
    graph = TinyGraph()
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    names = [graph.input("x", (2, 3)), *(graph.stored(n, rng.normal(size=(2, 3))) for n in ("a", "b"))]
    for index in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(["Sigmoid", "Identity", "Add", "Mul"]))
        sources = [draw(st.sampled_from(names)) for _ in range(1 if op in ("Sigmoid", "Identity") else 2)]
        names.append(graph.op(op, sources, f"t{index}"))
    graph.op("Add", ["x", names[-1]], "y")
    return graph.model("y", *draw(st.lists(st.sampled_from(names[3:]), max_size=2, unique=True)))


@settings(max_examples=40, deadline=None)
@given(model=_graphs())
def test_results_stay(model: onnx.ModelProto) -> None:
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, None, ["simplify"], feeds)
    onnx.checker.check_model(done.model)
    assert [item.name for item in done.model.graph.output] == [item.name for item in model.graph.output]
    for feed in feeds:
        before, after = Session(model).run(feed), Session(done.model).run(feed)
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
    if done.kept:
        assert len(done.model.graph.node) < len(model.graph.node)


def _grid() -> TinyGraph:
    graph = TinyGraph()
    angles = graph.op(
        "Einsum",
        [graph.stored("places", np.arange(4.0)), graph.stored("rates", np.ones(3))],
        "angles",
        equation="i,j->ij",
    )
    graph.op("Add", [graph.input("x", (4, 3)), graph.op("Sin", [angles], "waves")], "y")
    return graph


def test_a_position_embedding_is_stored_with_its_entry() -> None:
    model = _grid().model("y")
    value = affine_for_range(-1, 1, GridKind(bits=16, signed=False))
    entries = {name: Encoding(name=name, value=value) for name in ("x", "angles", "waves", "y")}
    done = rewrite(model, EncodingSet(version="1.0.0", entries=entries), ["simplify"], random_feeds(model))
    assert done.kept == ("simplify",)
    assert [node.op_type for node in done.model.graph.node] == ["Add"]
    assert [tensor.name for tensor in done.model.graph.initializer] == ["waves"]
    assert done.encodings is not None
    assert set(done.encodings.entries) == {"x", "waves", "y"}


def test_an_output_that_is_constant_keeps_its_node() -> None:
    model = _grid().model("y", "angles")
    done = rewrite(model, None, ["simplify"], random_feeds(model))
    assert "angles" in {name for node in done.model.graph.node for name in node.output}


def test_a_graph_of_activations_has_no_site() -> None:
    graph = TinyGraph()
    graph.op("Add", [graph.input("x", (2,)), graph.stored("a", [1.0, 2.0])], "y")
    matched = TRANSFORM.match(graph.model("y"))
    assert not matched
    assert matched.reason
