"""Settings that no reader comes to the end of, or that end the process, are refused where the model is read."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from deploykit.errors import InputError
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from tables import each_row

GOOD = ("ij->i", "ij", "...j->...", "a b -> a", "ij,jk->ik", "i...j,k->ik...j", "->", "", "Ab->bA", "ij->")
ENDLESS = ("%s%n", "ij-", "ij>", "i.j", "....", "ab%")
"""Seen: onnx 1.22 and ONNX Runtime 1.32 compute on these until they are ended."""


def einsum(equation: str | bytes, *, operands: int = 1, nested: bool = False) -> onnx.ModelProto:
    names = [f"x{number}" for number in range(operands)]
    node = helper.make_node("Einsum", names, ["y"], name="n", equation=equation)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in names]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    if nested:
        body = helper.make_graph([node], "body", [], [made])
        condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
        node = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
        made, infos = helper.make_tensor_value_info("z", TensorProto.FLOAT, None), [*infos, condition]
    graph = helper.make_graph([node], "g", infos, [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@each_row("equation", GOOD)
def test_equations(equation: str) -> None:
    wrap_proto(einsum(equation, operands=equation.count(",") + 1), path=Path("m.onnx"))


@pytest.mark.parametrize("nested", [False, True])
@each_row("equation", [*ENDLESS, "ij->i->", b"\xff", "i\n", "i......"])
def test_what_is_no_equation(equation: str | bytes, nested: bool) -> None:
    with pytest.raises(InputError, match="'n' has the equation"):
        wrap_proto(einsum(equation, nested=nested), path=Path("m.onnx"))


@given(equation=st.text("ij.,-> ", max_size=12))
@example(equation="i...,->")
def test_what_is_let_through_comes_to_an_end(equation: str) -> None:
    """With a reader that loops this test itself would not end."""
    proto = einsum(equation, operands=equation.count(",") + 1)
    try:
        model = wrap_proto(proto, path=Path("m.onnx"))
    except InputError:
        return
    collect_facts(model)


@pytest.mark.parametrize("axis", [1 << 31, -(1 << 40), (1 << 16) + 1])
def test_an_axis_that_no_tensor_has_is_refused(axis: int) -> None:
    """onnx keeps LayerNormalization's in 32 bits, and reads beyond its tables at the first."""
    node = helper.make_node("LayerNormalization", ["x", "w"], ["y"], name="n", axis=axis)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in ("x", "w")]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])
    model = helper.make_model(helper.make_graph([node], "g", infos, [made]), ir_version=8)
    with pytest.raises(InputError, match=f"node 'n' has the axis {axis}"):
        wrap_proto(model, path=Path("m.onnx"))
