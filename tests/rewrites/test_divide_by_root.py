"""divide-by-root: the quotient in either order of the factors, and nothing where the Reciprocal is needed."""

from __future__ import annotations

import pytest

from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph


def inverse(graph: TinyGraph, base: str = "Sqrt") -> str:
    square = graph.op("Mul", [graph.input("x", (2, 8)), "x"], "square")
    plus = graph.op("Add", [square, graph.stored("epsilon", 0.1)], "plus")
    return graph.op("Reciprocal", [graph.op(base, [plus], "root")], "inverse")


@pytest.mark.parametrize("swapped", [True, False])
def test_a_product_with_the_reciprocal_of_a_root_is_a_quotient(swapped: bool) -> None:
    graph = TinyGraph()
    operands = ["x", inverse(graph)] if not swapped else [inverse(graph), "x"]
    model = graph.model(graph.op("Mul", operands, "y"))
    done = rewrite(model, None, ["divide-by-root"], random_feeds(model))
    assert done.kept == ("divide-by-root",)
    assert [node.op_type for node in done.model.graph.node] == ["Mul", "Add", "Sqrt", "Div"]
    assert list(done.model.graph.node[-1].input) == ["x", "root"]


@pytest.mark.parametrize("reader", ["Relu", "square"])
def test_a_reciprocal_that_is_needed_stays(reader: str) -> None:
    graph = TinyGraph()
    made = inverse(graph)
    model = graph.model(graph.op("Relu", [made], "y") if reader == "Relu" else graph.op("Mul", [made, made], "y"))
    found = load_transform("divide-by-root").match(model)
    assert not found and "inverse" in found.refusals[0].reason


def test_other_reciprocals_are_not_looked_at() -> None:
    graph = TinyGraph()
    model = graph.model(graph.op("Mul", [inverse(graph, "Exp"), "x"], "y"))
    assert load_transform("divide-by-root").match(model).reason == "the graph has no Reciprocal of a Sqrt"
