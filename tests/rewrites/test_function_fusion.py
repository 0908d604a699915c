"""GELU and HardSwish in every form that exporters write: found by their values, and near misses left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

Store = Callable[[TinyGraph, str, float], str]
FEED = {"x": np.linspace(-6, 6, 100, dtype=np.float32).reshape(2, 50)}


def initializer(graph: TinyGraph, name: str, value: float) -> str:
    return graph.stored(name, value)


def constant_node(graph: TinyGraph, name: str, value: float) -> str:
    return graph.op("Constant", [], name, value=numpy_helper.from_array(np.asarray(value, np.float32), f"{name}_value"))


def erf_gate(graph: TinyGraph, store: Store, divide: bool) -> str:
    """1 + erf(x / sqrt(2))."""
    root = store(graph, "root", 2**0.5 if divide else 0.5**0.5)
    scaled = graph.op("Div" if divide else "Mul", ["x", root], "scaled")
    return graph.op("Add", [graph.op("Erf", [scaled], "erf"), store(graph, "one", 1.0)], "gate")


def tanh_gate(graph: TinyGraph, store: Store, power: bool) -> str:
    """1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))."""
    if power:
        cube = graph.op("Pow", ["x", store(graph, "three", 3.0)], "cube")
    else:
        cube = graph.op("Mul", [graph.op("Mul", ["x", "x"], "square"), "x"], "cube")
    total = graph.op("Add", ["x", graph.op("Mul", [cube, store(graph, "small", 0.044715)], "bent")], "total")
    bent = graph.op("Tanh", [graph.op("Mul", [total, store(graph, "root", (2 / np.pi) ** 0.5)], "inner")], "tanh")
    return graph.op("Add", [bent, store(graph, "one", 1.0)], "gate")


def halved_before(graph: TinyGraph, store: Store, gate: str) -> None:
    graph.op("Mul", [graph.op("Mul", ["x", store(graph, "half", 0.5)], "halved"), gate], "y")


def halved_behind(graph: TinyGraph, store: Store, gate: str) -> None:
    graph.op("Mul", [store(graph, "half", 0.5), graph.op("Mul", [gate, "x"], "product")], "y")


def halved_gate(graph: TinyGraph, store: Store, gate: str) -> None:
    graph.op("Mul", ["x", graph.op("Mul", [gate, store(graph, "half", 0.5)], "halved")], "y")


def over_two(graph: TinyGraph, store: Store, gate: str) -> None:
    graph.op("Div", [graph.op("Mul", ["x", gate], "product"), store(graph, "two", 2.0)], "y")


def not_halved(graph: TinyGraph, store: Store, gate: str) -> None:
    """What is left where the 0.5 was folded into the weights of a neighbour."""
    del store
    graph.op("Mul", ["x", gate], "y")


ENDS = {halved_before: 1.0, halved_behind: 1.0, halved_gate: 1.0, over_two: 1.0, not_halved: 2.0}


def check(model: onnx.ModelProto, name: str, op_types: list[str]) -> onnx.ModelProto:
    done = rewrite(model, None, [name], [FEED])
    assert done.kept == (name,), done.steps
    assert [node.op_type for node in done.model.graph.node if node.op_type != "Constant"] == op_types
    return done.model


@pytest.mark.parametrize("store", [initializer, constant_node])
@pytest.mark.parametrize("divide", [True, False])
@each_row(("end", "factor"), ENDS.items())
def test_a_gelu_with_erf(end: Callable[..., None], factor: float, divide: bool, store: Store) -> None:
    graph = TinyGraph()
    graph.input("x", (2, 50))
    end(graph, store, erf_gate(graph, store, divide))
    done = check(graph.model("y"), "fuse-gelu", ["Gelu"] if factor == 1.0 else ["Gelu", "Mul"])
    assert done.graph.node[0].domain == "com.microsoft"
    if factor != 1.0:
        assert numpy_helper.to_array(done.graph.initializer[-1]) == factor


@pytest.mark.parametrize("power", [True, False])
@each_row(("end", "factor"), ENDS.items())
def test_a_gelu_with_tanh(end: Callable[..., None], factor: float, power: bool) -> None:
    graph = TinyGraph()
    graph.input("x", (2, 50))
    end(graph, initializer, tanh_gate(graph, initializer, power))
    done = check(graph.model("y"), "fuse-gelu", ["Gelu"] if factor == 1.0 else ["Gelu", "Mul"])
    assert done.graph.node[0].attribute[0].s == b"tanh" and done.opset_import[0].version == 20


def test_the_approximation_needs_an_operator_set_that_changes_nothing_else() -> None:
    graph = TinyGraph(opset=13)
    graph.input("x", (2, 50))
    halved_gate(graph, initializer, tanh_gate(graph, initializer, True))
    graph.op("ReduceMean", ["y"], "mean", axes=[1])
    found = load_transform("fuse-gelu").match(graph.model("mean"))
    assert not found and "ReduceMean" in found.refusals[0].reason


def hard_sigmoid(graph: TinyGraph) -> str:
    return graph.op("HardSigmoid", ["x"], "gate", alpha=1 / 6, beta=0.5)


def clipped(graph: TinyGraph) -> str:
    total = graph.op("Add", ["x", graph.stored("three", 3.0)], "total")
    ends = [graph.stored("zero", 0.0), graph.stored("six", 6.0)]
    return graph.op("Clip", [total, *ends], "gate")


@pytest.mark.parametrize(("gate", "factor"), [(hard_sigmoid, 1.0), (clipped, 6.0)])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_hardswish(gate: Callable[[TinyGraph], str], factor: float, swapped: bool) -> None:
    graph = TinyGraph()
    graph.input("x", (2, 50))
    operands = ["x", gate(graph)]
    graph.op("Mul", operands[::-1] if swapped else operands, "y")
    check(graph.model("y"), "fuse-hardswish", ["HardSwish"] if factor == 1.0 else ["HardSwish", "Mul"])


def test_a_hardswish_that_is_divided_by_six_has_no_factor() -> None:
    graph = TinyGraph()
    graph.input("x", (2, 50))
    product = graph.op("Mul", ["x", clipped(graph)], "product")
    graph.op("Div", [product, graph.stored("divisor", 6.0)], "y")
    check(graph.model("y"), "fuse-hardswish", ["HardSwish"])


def near_miss(change: str) -> onnx.ModelProto:
    graph = TinyGraph()
    graph.input("x", (2, 50))
    graph.input("z", (2, 50))
    scaled = graph.op("Div", ["x", graph.stored("root", 1.4 if change == "root" else 2**0.5)], "scaled")
    one = graph.stored("one", 1.01 if change == "one" else 1.0)
    gate = graph.op("Add", [graph.op("Erf", [scaled], "erf"), one], "gate")
    graph.op("Mul", ["z" if change == "other operand" else "x", gate], "y")
    return graph.model("y", "gate") if change == "read elsewhere" else graph.model("y")


@pytest.mark.parametrize("change", ["root", "one", "other operand", "read elsewhere"])
def test_what_is_only_close_is_left_alone_with_the_reason(change: str) -> None:
    found = load_transform("fuse-gelu").match(near_miss(change))
    assert not found and found.refusals[0].reason
    assert load_transform("fuse-gelu").match(near_miss(""))


def test_a_scalar_that_adds_a_dimension_is_not_dropped() -> None:
    graph = TinyGraph()
    graph.input("x", (50,))
    root = graph.stored("root", [[2**0.5]])
    gate = graph.op("Add", [graph.op("Erf", [graph.op("Div", ["x", root], "d")], "e"), graph.stored("one", 1.0)], "g")
    graph.op("Mul", ["x", gate], "y")
    assert not load_transform("fuse-gelu").match(graph.model("y"))


def test_the_grid_before_a_factor_holds_the_same_integers() -> None:
    graph = TinyGraph()
    graph.input("x", (2, 50))
    not_halved(graph, initializer, erf_gate(graph, initializer, True))
    grid = Affine(bits=16, signed=False, scale=np.asarray(0.004), zero_point=np.asarray(80.0))
    names = ("x", "scaled", "erf", "gate", "root", "one", "y")
    entries = EncodingSet(version="2.0.0", entries={name: Encoding(name=name, value=grid) for name in names})
    done = rewrite(graph.model("y"), entries, ["fuse-gelu"], [FEED])
    assert done.encodings is not None and done.encodings.entries.keys() == {"x", "y", "y_plain", "y_factor"}
    plain = done.encodings.entries["y_plain"].value
    assert isinstance(plain, Affine) and (float(plain.scale), float(plain.zero_point)) == (0.002, 80.0)
    assert not done.open
