"""Looking through Q/DQ pairs in facts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from deploykit.model.parameters import QUANTIZERS, integer_type, quantizer_of, stored_behind_pairs


@pytest.fixture(scope="module")
def facts() -> GraphFacts:
    """x -> Relu -> Q -> DQ -> MatMul with a stored int8 weight behind DQ and Identity."""
    stored = [
        numpy_helper.from_array(np.asarray(0.1, np.float32), "scale"),
        numpy_helper.from_array(np.asarray(3, np.uint16), "zero"),
        numpy_helper.from_array(np.ones((2, 2), np.int8), "w_q"),
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["a_q"], name="q"),
        helper.make_node("DequantizeLinear", ["a_q", "scale", "zero"], ["a_dq"], name="dq"),
        helper.make_node("DequantizeLinear", ["w_q", "scale"], ["w_dq"], name="dqw"),
        helper.make_node("Identity", ["w_dq"], ["w"]),
        helper.make_node("MatMul", ["a_dq", "w"], ["y"], name="product"),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return collect_facts(wrap_proto(model, path=Path("m.onnx")))


def test_which_node_quantizes_a_tensor(facts: GraphFacts) -> None:
    found = {name: node.name for name in facts.tensors if (node := quantizer_of(facts, name)) is not None}
    assert found == {"a": "q", "a_dq": "dq", "w_dq": "dqw"}


def test_a_scale_is_not_quantized_by_its_reader(facts: GraphFacts) -> None:
    assert quantizer_of(facts, "scale") is None and quantizer_of(facts, "unknown") is None


def test_the_type_is_that_of_the_zero_point_or_of_the_integers(facts: GraphFacts) -> None:
    types = {node.name: integer_type(facts, node) for node in facts.nodes if node.op_type.endswith("Linear")}
    assert types == {"q": "uint16", "dq": "uint16", "dqw": "int8"}


def test_what_is_stored_behind_pairs(facts: GraphFacts) -> None:
    assert stored_behind_pairs(facts, "w") == "w_q" == stored_behind_pairs(facts, "w_q")
    assert stored_behind_pairs(facts, "a_dq") is None and stored_behind_pairs(facts, "unknown") is None


def test_who_made_what_is_quantized(facts: GraphFacts) -> None:
    maker = facts.maker_behind("a_dq", QUANTIZERS)
    assert maker is not None and maker.name == "relu"
    assert facts.maker_behind("w_dq", QUANTIZERS) is None and facts.maker_behind("x", QUANTIZERS) is None
