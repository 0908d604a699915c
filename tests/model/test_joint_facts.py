"""What interval arithmetic forgets and joint facts remember: bounds that are tight where plain ones are useless."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
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


def test_another_tensor_over_that_root_is_not_bounded() -> None:
    graph = start()
    graph.input("z", (2, 3, 16))
    square = graph.op("Mul", ["x", "x"], "sq")
    root = graph.op("Sqrt", [graph.op("ReduceMean", [square], "var", axes=[-1])], "root")
    graph.op("Div", ["z", root], "n")
    assert bounds(graph, "n")["n"] == (-math.inf, math.inf)


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


def test_another_tensor_may_lie_on_either_side_of_an_extreme() -> None:
    graph = start()
    graph.input("y", (16,))
    graph.op("Sub", ["x", graph.op("Max", ["y", "two"], "chosen")], "d")
    assert bounds(graph, "d")["d"] == (-math.inf, math.inf)


def test_a_reduction_that_drops_its_axis_proves_nothing() -> None:
    """Its result stands beside other rows than those it was made of."""
    graph = TinyGraph()
    graph.input("x", (3, 3))
    graph.op("Div", ["x", graph.op("ReduceL2", ["x"], "l", axes=[1], keepdims=0)], "n")
    assert bounds(graph, "n")["n"] == (-math.inf, math.inf)


@pytest.mark.parametrize("length", ["ReduceL1", "ReduceL2"])
def test_a_unit_vector_has_no_element_beyond_one(length: str) -> None:
    graph = start()
    graph.stored("floor", 1e-6)
    norm = graph.op("Clip", [graph.op(length, ["x"], "l", axes=[-1]), "floor"], "c")
    graph.stored("shape", [2, 3, 16], "int64")
    graph.op("Div", ["x", graph.op("Expand", [norm, "shape"], "e")], "n")
    assert bounds(graph, "n")["n"] == (-1, 1)
    assert bounds(graph, "n", x=(0, 5))["n"] == (0, 1)


def test_attention_stays_inside_what_it_weighs() -> None:
    graph = start()
    graph.input("v", (2, 3, 3))
    graph.op("MatMul", [graph.op("Softmax", ["v"], "p", axis=-1), "x"], "y")
    graph.op("MatMul", [graph.op("Softmax", ["v"], "q", axis=1), "x"], "z")
    found = bounds(graph, "y", "z", x=(-3, 2))
    assert found["y"] == (-3, 2)
    assert found["z"] == (-9, 6), "rows of another axis do not add up to 1"


@pytest.mark.parametrize(("kind", "lowest"), [("Erf", -0.17), ("Tanh", -0.175), ("Sigmoid", -0.17)])
def test_gated_activations_hardly_fall_below_zero(kind: str, lowest: float) -> None:
    graph = start()
    for name, value in (
        ("a", {"Erf": 2**-0.5, "Tanh": 0.7978845608, "Sigmoid": 1.702}[kind]),
        ("one", 1),
        ("half", 0.5),
    ):
        graph.stored(name, value)
    gate = graph.op(kind, [graph.op("Mul", ["x", "a"], "ax")], "g")
    if kind != "Sigmoid":
        gate = graph.op("Mul", [graph.op("Add", ["one", gate], "plus"), "half"], "h")
    graph.op("Mul", ["x", gate], "y")
    low, high = bounds(graph, "y", x=(-50, 7))["y"]
    assert lowest < low < -0.16
    assert high == pytest.approx(7, abs=0.01)


def test_gates_of_other_tensors_prove_nothing() -> None:
    graph = start()
    graph.input("z", (2, 3, 16))
    graph.op("Mul", ["x", graph.op("Sigmoid", ["z"], "s")], "y")
    assert bounds(graph, "y", x=(-50, 7))["y"] == (-50, 7)


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


def test_indices_are_not_values() -> None:
    graph = start()
    graph.stored("k", [2], "int64")
    graph.op("TopK", ["x", "k"], ["values", "places"])
    found = bounds(graph, "values", "places", x=(-0.5, 0.5))
    assert found["values"] == (-0.5, 0.5)
    assert found["places"][1] > 15


def test_weights_bound_what_linear_operators_make() -> None:
    graph = start()
    weights = np.zeros((16, 2))
    weights[:, 0], weights[0, 1] = 0.5, -3
    graph.op("MatMul", ["x", graph.stored("w", weights)], "y")
    assert bounds(graph, "y", x=(-1, 2))["y"] == (-8, 16)


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
