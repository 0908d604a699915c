"""Graphs that are none: names made twice, read before they exist, or in circles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from deploykit.errors import InputError
from deploykit.model import Model, wrap_proto
from tables import each_row

PATH = Path("m.onnx")


def node(op_type: str, inputs: str, outputs: str, name: str = "") -> NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name)


def model(
    nodes: Sequence[NodeProto],
    *,
    inputs: str = "x",
    outputs: str = "y",
    stored: str = "",
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    infos = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in f"{inputs} {outputs}".split()
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [infos[name] for name in inputs.split()],
        [infos[name] for name in outputs.split()],
        [numpy_helper.from_array(np.zeros(4, np.float32), name) for name in stored.split()],
    )
    return helper.make_model(graph, functions=functions, opset_imports=[helper.make_opsetid("", 17)])


def load(proto: onnx.ModelProto) -> Model:
    return wrap_proto(proto, path=PATH)


BAD = {
    "initializer twice": (model([node("Add", "x w", "y")], stored="w w"), "'w' twice"),
    "input twice": (model([node("Relu", "x", "y")], inputs="x x"), "'x' twice"),
    "output twice": (model([node("Relu", "x", "y", "a"), node("Neg", "x", "y", "b")]), "'b' makes 'y'"),
    "output twice by one node": (model([node("Split", "x", "y y", "s")]), "'s' makes 'y'"),
    "input made again": (model([node("Relu", "y", "y", "a")], inputs="y"), "'a' makes 'y'"),
    "initializer made again": (model([node("Relu", "x", "w", "a"), node("Neg", "w", "y")], stored="w"), "makes 'w'"),
    "undefined": (model([node("Add", "x nothing", "y", "a")]), "reads 'nothing', which nothing makes"),
    "output without maker": (model([node("Relu", "x", "z")]), "nothing makes 'y'"),
    "reads itself": (model([node("Add", "x y", "y", "a")]), "cycle"),
    "unsorted": (model([node("Neg", "z", "y", "b"), node("Relu", "x", "z", "a")]), "not in execution order"),
    "cycle": (
        model(
            [
                node("Add", "x c", "a", "n1"),
                node("Relu", "a", "b", "n2"),
                node("Neg", "b", "c", "n3"),
                node("Neg", "b", "y"),
            ]
        ),
        "n1 -> n2 -> n3 -> n1",
    ),
    "nameless initializer": (model([node("Relu", "x", "y")], stored=""), ""),
    "no operator": (model([node("", "x", "y", "a")]), "'a' has no operator type"),
}
BAD["nameless initializer"][0].graph.initializer.add(data_type=1, dims=[0])
BAD["nameless initializer"] = (BAD["nameless initializer"][0], "an initializer of the graph has no name")


@each_row("case", BAD)
def test_what_is_no_graph(case: str) -> None:
    proto, says = BAD[case]
    with pytest.raises(InputError) as caught:
        load(proto)
    assert says in str(caught.value)
    assert caught.value.what.startswith("m.onnx: ")


def test_a_name_that_is_not_text() -> None:
    proto = model([node("Relu", "x", "mark", "a"), node("Relu", "mark", "y", "b")])
    broken = onnx.ModelProto.FromString(proto.SerializeToString().replace(b"mark", b"\xff\xfe\xff\xfe"))
    with pytest.raises(InputError, match="not UTF-8"):
        load(broken)


def test_no_outputs() -> None:
    proto = model([node("Relu", "x", "y")])
    del proto.graph.output[:]
    with pytest.raises(InputError, match="no outputs"):
        load(proto)


def test_initializers_listed_as_inputs_are_one_tensor() -> None:
    assert load(model([node("Add", "x w", "y")], inputs="x w", stored="w")).stored.keys() == {"w"}


def test_optional_inputs_and_outputs_may_be_nameless() -> None:
    clip = helper.make_node("Clip", ["x", "", ""], ["y"])
    dropout = helper.make_node("Dropout", ["y"], ["z", ""])
    load(model([clip, dropout], outputs="z"))


def body(nodes: Sequence[NodeProto], output: str) -> GraphProto:
    return helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, [4])])


def branch(then: GraphProto, name: str = "if") -> NodeProto:
    made = helper.make_node("If", ["c"], ["y"], name=name)
    made.attribute.append(helper.make_attribute("then_branch", then))
    return made


def test_bodies_see_what_exists_around_them_and_nothing_later() -> None:
    inner = node("Neg", "a", "b", "inner")
    load(model([node("Relu", "x", "a"), branch(body([inner], "b"))], inputs="x c"))
    with pytest.raises(InputError, match="'inner' reads 'a'"):
        load(model([branch(body([inner], "b")), node("Relu", "x", "a")], inputs="x c", outputs="y a"))
    with pytest.raises(InputError, match="reads 'b'"):
        load(model([branch(body([node("Neg", "x", "b")], "b")), node("Relu", "b", "z")], inputs="x c", outputs="z"))


def function(name: str, calls: Sequence[str]) -> onnx.FunctionProto:
    nodes = [helper.make_node(call, ["x"], [f"y{i}"], domain="own") for i, call in enumerate(calls)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["y0"], nodes, opsets)


def calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    return model([helper.make_node(functions[0].name, ["x"], ["y"], domain="own")], functions=functions)


def test_functions_must_not_recurse() -> None:
    with pytest.raises(InputError, match="calls itself"):
        load(calling(function("F", ["G"]), function("G", ["F"])))


def test_functions_that_expand_beyond_measure() -> None:
    chain = [function(f"F{i}", [f"F{i + 1}"] * 2) for i in range(40)]
    with pytest.raises(InputError, match="expand to more than"):
        load(calling(*chain, function("F40", ["Relu"])))
    load(calling(*chain[30:], function("F40", ["Relu"])))


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_sorted_graphs_load_and_their_shuffles_do_not(data: st.DataObject) -> None:
    """A chain in which every node reads its predecessor has exactly one valid order."""
    size = data.draw(st.integers(2, 8))
    names = ["x", *(f"t{i}" for i in range(1, size)), "y"]
    nodes = [node("Relu", names[i], names[i + 1], f"n{i}") for i in range(size)]
    order = data.draw(st.permutations(nodes))
    if [n.name for n in order] == [n.name for n in nodes]:
        load(model(order))
    else:
        with pytest.raises(InputError, match="not in execution order"):
            load(model(order))
