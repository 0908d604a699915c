"""The editable copy: who reads what, bodies of control flow included, and what editing must leave."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, captured_names, label
from tables import each_row
from text_models import text_model


def branching() -> onnx.ModelProto:
    """Each branch reads from outside: one through a node, the other by giving the outer tensor out itself."""
    then = "then_branch = t () => (float[2] own) { own = Add (x, shift) }, else_branch = e () => (float[2] given) { }"
    body, vectors = f"dead = Relu (x)  y = If (flag) <{then}>", {"shift": 1, "given": 0, "unread": 7, "default": 5}
    stored = {name: np.full(2, value, np.float32) for name, value in vectors.items()}
    model = text_model("float[2] x, float[2] default", body, "float[2] y", flag=np.asarray(True))
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    model.graph.node[0].name, model.graph.node[1].name = "dead", "choice"
    return model


def test_control_flow_reads_what_its_bodies_do_not_make() -> None:
    given = branching()
    assert captured_names(given.graph.node[1]) == ("given", "shift", "x") and captured_names(given.graph.node[0]) == ()
    graph = GraphCopy(given)
    assert [label(node) for node in graph.readers("given")] == ["choice"]
    assert [label(node) for node in graph.readers("x")] == ["dead", "choice"]
    assert [(label(node), position) for node, position in graph.uses("x")] == [("dead", 0)]
    assert graph.only_reader("shift") is graph.makers["y"] and graph.only_reader("x") is None
    shown = GraphCopy(text_model("float[2] x", "a = Relu (x)  y = Neg (a)", "y, a"))
    assert shown.only_reader("a") is None, "whoever runs the model reads it too"


def test_nodes_are_replaced_by_some_of_their_own() -> None:
    given = branching()
    given.graph.node[0].output[0] = "also y"
    graph = GraphCopy(given)
    choice, dead = graph.nodes[1], graph.nodes[0]
    graph.set_nodes([choice, dead, choice])
    assert [node.name for node in graph.nodes] == ["choice", "dead", "choice"]
    assert list(graph.model.graph.node[0].attribute) == list(given.graph.node[1].attribute)
    assert [node.name for node in given.graph.node] == ["dead", "choice"]


@each_row("as_node", [False, True])
def test_dropping_what_nothing_reads_leaves_an_index_that_is_right(as_node: bool) -> None:
    given = branching()
    if as_node:
        value = numpy_helper.from_array(np.full(2, 3, np.float32))
        given.graph.node.insert(0, helper.make_node("Constant", [], ["two"], name="constant", value=value))
    graph = GraphCopy(given)
    graph.drop_unused(["unread", "shift", "default", *(["two"] if as_node else [])])
    again = GraphCopy(graph.model)
    assert graph.stored.keys() == again.stored.keys() == {"flag", "shift", "given", "default"}
    assert graph.makers.keys() == again.makers.keys() == {"dead", "y"} and graph.fresh("unread") == "unread"


def test_pruning_keeps_what_bodies_and_inputs_need() -> None:
    given = branching()
    graph = GraphCopy(given)
    graph.prune()
    assert [node.name for node in graph.nodes] == ["choice"]
    assert {tensor.name for tensor in graph.model.graph.initializer} == {"flag", "shift", "given", "default"}
    assert len(given.graph.node) == 2


def test_fresh_names_are_those_of_no_tensor_and_no_node() -> None:
    graph = GraphCopy(branching())
    assert [graph.fresh(name) for name in ("y", "y", "choice", "new")] == ["y_1", "y_2", "choice_1", "new"]


def test_what_is_stored_small_or_standard() -> None:
    model = branching()
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([3.0], np.float32), "three"))
    for op_type, read, made in (("Neg", "unread", "turned"), ("Bernoulli", "unread", "random")):
        model.graph.node.append(helper.make_node(op_type, [read], [made]))
    model.graph.node.append(helper.make_node("Identity", ["three"], ["copy"]))
    model.graph.node.append(helper.make_node("Relu", ["x"], ["own"], domain="own"))
    graph = GraphCopy(model)
    assert "turned" in graph.static() and not {"random", "y", "dead"} & graph.static()
    assert [graph.scalar(name) for name in ("copy", "shift", "x", "")] == [3.0, None, None, None]
    assert graph.maker("dead", "Relu") is not None and graph.maker("dead", "Neg") is None
    assert graph.maker("own", "Relu") is None and graph.maker("own") is not None


@each_row(
    ("value", "expected"),
    [(3, 3), (0.5, 0.5), ("text", "text"), ([1, 2], [1, 2]), (b"a\xffb", "a\\xffb")],  # the last is no text
)
def test_attributes_are_plain_values(value: object, expected: object) -> None:
    node = helper.make_node("Own", ["x"], ["y"], domain="own", key=value)
    assert attribute(node, "key") == expected and attribute(node, "other", "none") == "none"
