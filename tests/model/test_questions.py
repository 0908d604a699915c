"""The small questions that rules ask of facts: shapes, ops, products, settings."""

from __future__ import annotations

from pathlib import Path

import onnx

from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import (
    GraphFacts,
    NodeFact,
    TensorFact,
    TensorRole,
    dynamic_inputs,
    dynamic_tensors,
    is_setting,
    setting_of,
    shape_text,
    tensor_bytes,
)
from sample_models.networks import dynamic_net

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def facts_of(proto: onnx.ModelProto) -> GraphFacts:
    return collect_facts(wrap_proto(proto, path=Path("m.onnx")))


def vit() -> GraphFacts:
    return collect_facts(load_model(AIMET / "vit" / "model.onnx"))


def tensor(shape: tuple[int | str | None, ...] | None, dtype: str = "float") -> TensorFact:
    return TensorFact(name="t", role=TensorRole.ACTIVATION, dtype=dtype, shape=shape)


def node(op_type: str, *inputs: str, domain: str = "") -> NodeFact:
    return NodeFact(index=0, name="n", op_type=op_type, domain=domain, inputs=inputs, outputs=("y",))


def test_what_is_dynamic() -> None:
    facts = facts_of(dynamic_net())
    assert [(dim.axis, dim.symbol) for dim in dynamic_inputs(facts)] == [(0, "batch"), (1, None)]
    assert dynamic_tensors(facts) == ("output",)
    assert dynamic_inputs(vit()) == ()


def test_ranks_sizes_and_words() -> None:
    assert tensor_bytes(tensor((2, 3))) == 24
    assert tensor_bytes(tensor((3, 5), "int4")) == 8
    assert tensor_bytes(tensor((2, "n"))) is None
    assert tensor_bytes(tensor(None)) is None
    assert tensor_bytes(tensor((2,), "string")) is None
    assert [shape_text(tensor(shape)) for shape in ((1, "n", None), (), None)] == ["1 x n x ?", "a scalar", "unknown"]


def test_settings_by_position() -> None:
    clip = node("Clip", "x", "low", "x")
    assert is_setting(clip, "low")
    assert not is_setting(clip, "x")
    assert not is_setting(clip, "absent")
    assert not is_setting(node("Clip", "x", "low", domain="own"), "low")
    facts = collect_facts(load_model(AIMET / "detr" / "model.onnx"))
    found = setting_of(facts, "/decoder/Constant_1_output_0")
    assert found is not None
    assert found.op_type == "Clip"
    assert setting_of(facts, "images") is None
    assert setting_of(facts, "detections") is None
