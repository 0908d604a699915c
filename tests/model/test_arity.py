"""Standard operators with too few or too many inputs and outputs, against what the ONNX checker says of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, defs, helper

from deploykit.errors import InputError
from deploykit.model import wrap_proto
from deploykit.model.checks import check_graph
from tables import each_row


def model(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], *, opset: int = 17, domain: str = ""
) -> onnx.ModelProto:
    node = helper.make_node(op_type, inputs, outputs, name="n", domain=domain)
    named = dict.fromkeys(filter(None, inputs))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in named]
    results = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in dict.fromkeys(filter(None, outputs))
    ]
    graph = helper.make_graph([node], "g", infos, results)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@each_row(
    ("op_type", "inputs", "outputs", "says"),
    [
        ("Relu", [], ["y"], "has 0 inputs"),
        ("Relu", ["x", "z"], ["y"], "Relu takes 1"),
        ("Conv", ["x"], ["y"], "Conv takes 2 to 3"),
        ("Concat", [], ["y"], "Concat takes at least 1"),
        ("Relu", ["x"], ["y", "z"], "has 2 outputs"),
        ("Gemm", ["", "w"], ["y"], "leaves out its input 0"),
        ("Reshape", ["x", ""], ["y"], "leaves out its input 1"),
    ],
)
def test_what_an_operator_cannot_be(op_type: str, inputs: list[str], outputs: list[str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        wrap_proto(model(op_type, inputs, outputs), path=Path("m.onnx"))
    assert says in str(caught.value)
    assert "'n'" in caught.value.what


def test_operators_of_others_and_of_the_future_are_left_alone() -> None:
    wrap_proto(model("Relu", ["x", "z"], ["y"], domain="own"), path=Path("m.onnx"))
    wrap_proto(model("NotYetInvented", ["x", "z"], ["y"]), path=Path("m.onnx"))
    wrap_proto(model("Relu", ["x"], ["y"], opset=9000), path=Path("m.onnx"))


def test_the_version_decides() -> None:
    """Slice took its bounds as attributes before version 10."""
    wrap_proto(model("Slice", ["x"], ["y"], opset=9), path=Path("m.onnx"))
    with pytest.raises(InputError, match="Slice takes 3 to 5"):
        wrap_proto(model("Slice", ["x"], ["y"], opset=10), path=Path("m.onnx"))


def test_without_a_version_only_the_least_is_asked() -> None:
    unversioned = model("Slice", ["x"], ["y"])
    del unversioned.opset_import[:]
    wrap_proto(unversioned, path=Path("m.onnx"))
    nothing = model("Relu", [], ["y"])
    del nothing.opset_import[:]
    with pytest.raises(InputError, match="has 0 inputs"):
        wrap_proto(nothing, path=Path("m.onnx"))


def test_bodies_are_looked_into() -> None:
    body = helper.make_graph([helper.make_node("Relu", [], ["b"], name="inner")], "body", [], [])
    proto = model("If", ["c"], ["y"])
    proto.graph.node[0].attribute.append(helper.make_attribute("then_branch", body))
    with pytest.raises(InputError, match="'inner' has 0 inputs"):
        check_graph(Path("m.onnx"), proto)


# The checker says nothing about the counts of an operator that its newest version deprecates.
SCHEMAS = sorted({schema.name for schema in defs.get_all_schemas() if schema.domain == "" and not schema.deprecated})


@settings(deadline=None, max_examples=40)
@given(op_type=st.sampled_from(SCHEMAS), inputs=st.integers(0, 6), outputs=st.integers(1, 4))
def test_counts_that_the_onnx_checker_refuses_are_refused(op_type: str, inputs: int, outputs: int) -> None:
    """Attributes that are missing make the checker complain too: only its words about counts are compared.

    The sizes that a few operators allow within their range (BatchNormalization: 1 or 5 outputs) are left to it.
    """
    proto = model(op_type, [f"i{n}" for n in range(inputs)], [f"o{n}" for n in range(outputs)])
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        refused = "put size" in str(error) and "not in range" in str(error)
    else:
        refused = False
    try:
        check_graph(Path("m.onnx"), proto)
    except InputError:
        assert refused
    else:
        assert not refused
