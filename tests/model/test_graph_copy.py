"""The editable copy: who reads what, bodies of control flow included, and what editing must leave."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, captured_names, label

FLOAT = TensorProto.FLOAT


def info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, [2])


def branching() -> onnx.ModelProto:
    """Each branch reads from outside: one through a node, the other by giving the outer tensor out itself."""
    inner = helper.make_node("Add", ["x", "shift"], ["own"])
    then_branch = helper.make_graph([inner], "then", [], [info("own")])
    else_branch = helper.make_graph([], "else", [], [info("given")])
    nodes = [
        helper.make_node("Relu", ["x"], ["dead"], name="dead"),
        helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=then_branch, else_branch=else_branch),
    ]
    stored = [
        numpy_helper.from_array(np.asarray(True), "flag"),
        numpy_helper.from_array(np.ones(2, np.float32), "shift"),
        numpy_helper.from_array(np.zeros(2, np.float32), "given"),
        numpy_helper.from_array(np.full(2, 7, np.float32), "unread"),
        numpy_helper.from_array(np.full(2, 5, np.float32), "default"),
    ]
    graph = helper.make_graph(nodes, "g", [info("x"), info("default")], [info("y")], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_bodies_read_what_they_do_not_make() -> None:
    assert captured_names(branching().graph.node[1]) == ("given", "shift", "x")
    assert captured_names(branching().graph.node[0]) == ()


def test_control_flow_reads_what_its_bodies_read() -> None:
    graph = GraphCopy(branching())
    assert [label(node) for node in graph.readers("given")] == ["choice"]
    assert [label(node) for node in graph.readers("x")] == ["dead", "choice"]
    assert [(label(node), position) for node, position in graph.uses("x")] == [("dead", 0)]
    assert graph.only_reader("shift") is graph.makers["y"]
    assert graph.only_reader("x") is None


def test_nodes_are_replaced_by_some_of_their_own() -> None:
    given = branching()
    given.graph.node[0].output[0] = "also y"
    graph = GraphCopy(given)
    choice, dead = graph.nodes[1], graph.nodes[0]
    graph.set_nodes([choice, dead, choice])
    assert [node.name for node in graph.nodes] == ["choice", "dead", "choice"]
    assert list(graph.model.graph.node[0].attribute) == list(given.graph.node[1].attribute)
    assert [node.name for node in given.graph.node] == ["dead", "choice"]


@pytest.mark.parametrize("as_node", [False, True])
def test_dropping_what_nothing_reads_leaves_an_index_that_is_right(as_node: bool) -> None:
    given = branching()
    if as_node:
        value = numpy_helper.from_array(np.full(2, 3, np.float32))
        given.graph.node.insert(0, helper.make_node("Constant", [], ["two"], name="constant", value=value))
    graph = GraphCopy(given)
    graph.drop_unused(["unread", "shift", "default", *(["two"] if as_node else [])])
    again = GraphCopy(graph.model)
    assert graph.stored.keys() == again.stored.keys() == {"flag", "shift", "given", "default"}
    assert graph.makers.keys() == again.makers.keys() == {"dead", "y"}
    assert graph.fresh("unread") == "unread"


def test_pruning_keeps_what_bodies_and_inputs_need() -> None:
    given = branching()
    graph = GraphCopy(given)
    graph.prune()
    assert [node.name for node in graph.nodes] == ["choice"]
    assert {tensor.name for tensor in graph.model.graph.initializer} == {"flag", "shift", "given", "default"}
    assert len(given.graph.node) == 2


def test_fresh_names_are_those_of_no_tensor_and_no_node() -> None:
    graph = GraphCopy(branching())
    assert graph.fresh("y") == "y_1"
    assert graph.fresh("y") == "y_2"
    assert graph.fresh("choice") == "choice_1"
    assert graph.fresh("new") == "new"


def test_what_is_computed_from_stored_values_only() -> None:
    model = branching()
    model.graph.node.append(helper.make_node("Neg", ["unread"], ["turned"]))
    model.graph.node.append(helper.make_node("Bernoulli", ["unread"], ["random"]))
    static = GraphCopy(model).static()
    assert "turned" in static
    assert not {"random", "y", "dead"} & static


def test_only_small_values_are_read_as_a_number() -> None:
    model = branching()
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([3.0], np.float32), "three"))
    model.graph.node.append(helper.make_node("Identity", ["three"], ["copy"]))
    graph = GraphCopy(model)
    assert graph.scalar("copy") == 3.0
    assert graph.scalar("shift") is None and graph.scalar("x") is None and graph.scalar("") is None


def test_makers_of_a_type_are_standard_operators() -> None:
    model = branching()
    model.graph.node.append(helper.make_node("Relu", ["x"], ["own"], domain="own"))
    graph = GraphCopy(model)
    assert graph.maker("dead", "Relu") is not None and graph.maker("dead", "Neg") is None
    assert graph.maker("own", "Relu") is None and graph.maker("own") is not None


@pytest.mark.parametrize(("value", "expected"), [(3, 3), (0.5, 0.5), ("text", "text"), ([1, 2], [1, 2])])
def test_attributes_are_plain_values(value: object, expected: object) -> None:
    node = helper.make_node("Own", ["x"], ["y"], domain="own", key=value)
    assert attribute(node, "key") == expected
    assert attribute(node, "other", "none") == "none"
