"""The small questions that rules ask of facts: shapes, ops, products, settings."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from deploykit.contract.sample_models import attention_net, conv_net, dynamic_net, linear3d_net
from deploykit.graph import load_model, wrap_proto
from deploykit.graph.collect import collect_facts
from deploykit.graph.facts import GraphFacts, NodeFact, TensorFact, TensorRole
from deploykit.graph.inventory import control_flow_nodes, float_tensors, op_inventory
from deploykit.graph.matmuls import dynamic_matmuls, linear3d
from deploykit.graph.settings import is_setting, setting_of
from deploykit.graph.shapes import dynamic_inputs, dynamic_tensors, high_rank_tensors, shape_text, tensor_bytes

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def facts_of(proto: onnx.ModelProto) -> GraphFacts:
    return collect_facts(wrap_proto(proto, path=Path("m.onnx")))


def vit() -> GraphFacts:
    return collect_facts(load_model(AIMET / "vit" / "model.onnx"))


def tensor(shape: tuple[int | str | None, ...] | None, dtype: str = "float") -> TensorFact:
    return TensorFact(name="t", role=TensorRole.ACTIVATION, dtype=dtype, shape=shape)


def node(op_type: str, *inputs: str, domain: str = "") -> NodeFact:
    return NodeFact(index=0, name="n", op_type=op_type, domain=domain, inputs=inputs, outputs=("y",))


def test_the_linear_layers_of_a_transformer() -> None:
    """generate.py builds them with linear(): qkv, proj, fc1 and fc2, each a MatMul and an Add."""
    found = linear3d(vit())
    assert [layer.bias for layer in found] == [
        f"blocks.0.{name}.bias" for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    ]
    assert [layer.add.op_type for layer in found if layer.add] == ["Add"] * 4
    assert found[0].output == "/blocks/0/attn/qkv/Add_output_0"


def test_the_products_of_attention() -> None:
    assert [n.name for n in dynamic_matmuls(vit())] == [
        "/blocks/blocks.0/attn/MatMul",
        "/blocks/blocks.0/attn/MatMul_1",
    ]
    assert len(dynamic_matmuls(facts_of(attention_net()))) == 2
    assert dynamic_matmuls(facts_of(linear3d_net())) == ()
    assert len(linear3d(facts_of(linear3d_net()))) == 2


def test_a_linear_layer_without_bias() -> None:
    """In mlp, down_proj is added to the residual, which is no bias."""
    found = linear3d(collect_facts(load_model(AIMET / "mlp" / "model.onnx")))
    assert [(layer.weight, layer.bias) for layer in found] == [
        ("onnx::MatMul_57", "up_proj.bias"),
        ("onnx::MatMul_58", None),
    ]
    assert found[1].output == "/down_proj/MatMul_output_0"


def test_what_is_dynamic() -> None:
    facts = facts_of(dynamic_net())
    assert [(dim.axis, dim.symbol) for dim in dynamic_inputs(facts)] == [(0, "batch"), (1, None)]
    assert dynamic_tensors(facts) == ("output",)
    assert dynamic_inputs(vit()) == ()


def test_ranks_sizes_and_words() -> None:
    assert {fact.name for fact in high_rank_tensors(vit(), 4)} == {
        "/blocks/blocks.0/attn/Reshape_output_0",
        "/blocks/blocks.0/attn/Transpose_output_0",
    }
    assert high_rank_tensors(vit(), 5) == ()
    assert tensor_bytes(tensor((2, 3))) == 24
    assert tensor_bytes(tensor((2, "n"))) is None
    assert tensor_bytes(tensor(None)) is None
    assert tensor_bytes(tensor((2,), "string")) is None
    assert [shape_text(tensor(shape)) for shape in ((1, "n", None), (), None)] == ["1 x n x ?", "a scalar", "unknown"]


def test_the_inventory_counts_what_the_file_holds() -> None:
    proto = onnx.load(AIMET / "vit" / "model.onnx")
    counts = op_inventory(vit())
    assert sum(counts.values()) == len(proto.graph.node)
    assert counts["Constant"] == sum(n.op_type == "Constant" for n in proto.graph.node)
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    own = helper.make_node("Odd", ["x"], ["y"], domain="own")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    assert op_inventory(facts_of(helper.make_model(helper.make_graph([own], "g", info[:1], info[1:])))) == {
        "own.Odd": 1
    }


def test_float_tensors_leave_out_shapes_and_settings() -> None:
    found = float_tensors(collect_facts(load_model(AIMET / "detr" / "model.onnx")))
    assert "onnx::Add_4934" in found
    assert "detections" in found
    assert "/decoder/Constant_output_0" not in found  # the shape of a Reshape
    assert "/decoder/Constant_1_output_0" not in found  # the bound of a Clip


def test_control_flow() -> None:
    assert control_flow_nodes(vit()) == ()
    facts = facts_of(conv_net())
    assert control_flow_nodes(facts) == ()


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
