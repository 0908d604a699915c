"""Which activations stay in float: against the real models of Quark, and small graphs with the observed behaviour."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit_vitis_ai.exclusions import activation_types, resolve_exclusions
from deploykit_vitis_ai.inspection import actual_types, inspect_quantized
from text_models import text_model

DATA = Path(__file__).parents[1] / "data" / "quark"
POST = "/post/Slice,/post/Slice_1,/post/Sigmoid:/post/Concat_1"


def test_what_is_worked_out_is_what_quark_made() -> None:
    facts = collect_facts(load_model(DATA / "fp32.onnx"))
    for name, subgraphs in (("vint8", ()), ("vint8_mixed", (POST,))):
        excluded = resolve_exclusions(facts, (), subgraphs).indices
        made = inspect_quantized(DATA / f"{name}.onnx", precision="vint8")
        actual = actual_types(made.facts, made.grids)
        wanted = activation_types(facts, excluded, "int8")
        assert {tensor: actual[tensor] for tensor in wanted} == wanted


def graph(body: str) -> GraphFacts:
    """Operators one after the other; Conv has a weight of its own."""
    w = np.ones((3, 3, 1, 1), np.float32)
    model = text_model("float[1,3,8,8] x", body, body.replace("[", " ").split("= ")[-2].split()[-1], w=w)
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return collect_facts(wrap_proto(model, path=Path("g.onnx")))


def test_passive_operators_follow_what_they_read() -> None:
    facts = graph("a = Conv (x, w) b = Relu (a) c = Identity (b) d = Conv (c, w)")
    assert dict(activation_types(facts, {0}, "int8")) == {"a": "float32", "b": "float32", "c": "int8", "d": "int8"}
    assert set(activation_types(facts, (), "int8").values()) == {"int8"}


def test_a_float_value_is_quantized_for_operators_that_quantize() -> None:
    facts = graph("a = Conv (x, w) b = Sigmoid (a)")
    assert dict(activation_types(facts, {0}, "int8")) == {"a": "int8", "b": "int8"}


def test_a_value_that_is_read_in_both_forms_is_not_spoken_about() -> None:
    facts = graph("a = Conv (x, w) b = Sigmoid (a) c = Relu (a)")
    assert "a" not in activation_types(facts, {0}, "int8")
