"""Settings that no reader comes to the end of, or that end the process, are refused where the model is read."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest
from hypothesis import example, given, settings
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


@settings(max_examples=25)
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


SHAPES: dict[str, tuple[int, ...]] = {
    "Q": (2, 3, 4, 8),
    "K": (2, 3, 6, 8),
    "V": (2, 3, 6, 8),
    "mask": (2, 3, 4, 18),
    "keys": (2, 3, 12, 8),
    "values": (2, 3, 12, 8),
}


@each_row(
    ("shapes", "inputs", "said"),
    [
        ({"values": ()}, [*SHAPES], "past_value 'values' has rank 0"),
        ({"keys": (3, 12, 8)}, [*SHAPES], "past_key 'keys' has rank 3"),
        ({"Q": (4, 8)}, [*SHAPES], "Q 'Q' has rank 2"),
        ({}, [*SHAPES][:5], "not both"),
        ({}, [*SHAPES], ""),
    ],
)
def test_operands_of_attention(shapes: dict[str, tuple[int, ...]], inputs: list[str], said: str) -> None:
    """ONNX Runtime ends the process over the first."""
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in {**SHAPES, **shapes}.items()]
    made = helper.make_tensor_value_info("Y", TensorProto.FLOAT, (2, 3, 4, 8))
    graph = helper.make_graph([helper.make_node("Attention", inputs, ["Y"], name="attention")], "g", given, [made])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    with pytest.raises(InputError, match=said) if said else nullcontext():
        collect_facts(wrap_proto(proto, path=Path("m.onnx")))
