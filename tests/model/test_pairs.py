"""Looking through Q/DQ pairs in facts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from deploykit.model.parameters import QUANTIZERS, integer_type, quantizer_of, stored_behind_pairs
from text_models import text_model


@pytest.fixture(scope="module")
def facts() -> GraphFacts:
    """x -> Relu -> Q -> DQ -> MatMul with a stored int8 weight behind DQ and Identity."""
    model = text_model(
        "float[1,2] x",
        "a = Relu (x)  a_q = QuantizeLinear (a, scale, zero)  a_dq = DequantizeLinear (a_q, scale, zero)"
        "  w_dq = DequantizeLinear (w_q, scale)  w = Identity (w_dq)  y = MatMul (a_dq, w)",
        opset=21,
        scale=0.1,
        zero=np.asarray(3, np.uint16),
        w_q=np.ones((2, 2), np.int8),
    )
    return collect_facts(wrap_proto(model, path=Path("m.onnx")))


def test_which_node_quantizes_a_tensor(facts: GraphFacts) -> None:
    found = {name: node.outputs[0] for name in facts.tensors if (node := quantizer_of(facts, name)) is not None}
    assert found == {"a": "a_q", "a_dq": "a_dq", "w_dq": "w_dq"}


def test_a_scale_is_not_quantized_by_its_reader(facts: GraphFacts) -> None:
    assert quantizer_of(facts, "scale") is None and quantizer_of(facts, "unknown") is None


def test_the_type_is_that_of_the_zero_point_or_of_the_integers(facts: GraphFacts) -> None:
    types = {node.outputs[0]: integer_type(facts, node) for node in facts.nodes if node.op_type.endswith("Linear")}
    assert types == {"a_q": "uint16", "a_dq": "uint16", "w_dq": "int8"}


def test_what_is_stored_behind_pairs(facts: GraphFacts) -> None:
    assert stored_behind_pairs(facts, "w") == "w_q" == stored_behind_pairs(facts, "w_q")
    assert stored_behind_pairs(facts, "a_dq") is None and stored_behind_pairs(facts, "unknown") is None


def test_who_made_what_is_quantized(facts: GraphFacts) -> None:
    maker = facts.maker_behind("a_dq", QUANTIZERS)
    assert maker is not None and maker.op_type == "Relu"
    assert facts.maker_behind("w_dq", QUANTIZERS) is None and facts.maker_behind("x", QUANTIZERS) is None
