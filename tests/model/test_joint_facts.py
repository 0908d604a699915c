"""What interval arithmetic forgets and joint facts remember: bounds that are tight where plain ones are useless."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploykit.model import load_model
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import Interval, graph_bounds
from sample_models.tiny_graphs import TinyGraph

ZOO = Path(__file__).parents[1] / "data" / "zoo"


def bounds(graph: TinyGraph, *outputs: str, **known: Interval) -> Mapping[str, Interval]:
    return graph_bounds(GraphCopy(graph.model(*outputs)), known)


def start() -> TinyGraph:
    graph = TinyGraph()
    graph.input("x", (2, 3, 16))
    graph.stored("two", 2.0)
    graph.stored("eps", 1e-12)
    return graph


def test_a_written_out_norm_reaches_no_further_than_the_root_of_its_length() -> None:
    """Even where exports compute x - mean twice, under two names, and nothing is known of x."""
    graph = start()
    mean = graph.op("ReduceMean", ["x"], "mean", axes=[-1])
    first, second = (graph.op("Sub", ["x", mean], name) for name in ("c1", "c2"))
    variance = graph.op("ReduceMean", [graph.op("Pow", [first, "two"], "sq")], "var", axes=[-1])
    root = graph.op("Sqrt", [graph.op("Add", [variance, "eps"], "plus")], "root")
    graph.op("Div", [second, root], "n")
    assert bounds(graph, "n")["n"] == pytest.approx((-4, 4))


@pytest.mark.parametrize(
    ("extreme", "left", "ends"),
    [
        ("Max", "x", (-math.inf, 0)),
        ("Max", "", (0, math.inf)),
        ("Min", "x", (0, math.inf)),
        ("Min", "", (-math.inf, 0)),
    ],
)
def test_what_an_extreme_was_chosen_from_lies_on_one_side_of_it(extreme: str, left: str, ends: Interval) -> None:
    """As in the steps of RWKV, whose exponents are differences to the larger of two."""
    graph = start()
    graph.input("y", (16,))
    chosen = graph.op(extreme, ["y", "x"], "chosen")
    graph.op("Sub", ["x", chosen] if left else [chosen, "x"], "d")
    assert bounds(graph, "d")["d"] == ends


def test_a_written_out_softmax_is_one() -> None:
    graph = start()
    exponential = graph.op("Exp", [graph.op("Sub", ["x", graph.op("ReduceMax", ["x"], "m", axes=[-1])], "s")], "e")
    graph.stored("last", [-1], "int64")
    graph.op("Div", [exponential, graph.op("ReduceSum", [exponential, "last"], "t")], "p")
    graph.op("MatMul", ["p", graph.input("v", (2, 16, 5))], "y")
    found = bounds(graph, "y", v=(-3, 2))
    assert found["e"] == (0, 1)
    assert found["p"] == (0, 1)
    assert found["y"] == (-3, 2)


@pytest.mark.parametrize(("name", "most"), [("distilbert", 100.0), ("segformer", 1e4)])
def test_every_norm_of_true_exports_is_bounded(name: str, most: float) -> None:
    model = load_model(ZOO / name / "model.onnx")
    found = graph_bounds(GraphCopy(model.proto, copy=False))
    norms = [node.output[0] for node in model.proto.graph.node if node.op_type == "Div" and "norm" in node.name.lower()]
    assert len(norms) >= 5
    assert all(max(map(abs, found[norm])) <= most for norm in norms)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_gated_product_with_a_constant_is_no_gated_product(value: float) -> None:
    graph = start()
    gate = graph.op("Sigmoid", ["x"], "gate")
    graph.op("Mul", [graph.stored("constant", value), gate], "y")
    low, high = bounds(graph, "y")["y"]
    assert low <= 0
    assert high >= value
