"""The facts of graphs, against what onnxruntime really computes and against a plain reading of random graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts, constant_range, constant_value
from deploykit.model.facts import GraphFacts, TensorRole
from sample_models.networks import attention_net, dynamic_net, save_with_external_data
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"
PATH = Path("m.onnx")


def facts_of(proto: onnx.ModelProto) -> GraphFacts:
    return collect_facts(wrap_proto(proto, path=PATH))


@pytest.mark.parametrize("name", ["cnn", "cnn_bnfold", "vit", "detr", "mlp"])
def test_shapes_and_types_are_those_that_onnxruntime_computes(name: str) -> None:
    proto = onnx.load(AIMET / name / "model.onnx")
    del proto.graph.value_info[:]
    facts = facts_of(proto)
    made = [fact for fact in facts.tensors.values() if fact.producer is not None]
    exposed = onnx.ModelProto.FromString(proto.SerializeToString())
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=fact.name) for fact in made)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(exposed.SerializeToString(), options)
    feed = {item.name: np.ones(item.shape, np.float32) for item in session.get_inputs()}
    for fact, value in zip(made, session.run(None, feed), strict=True):
        assert (fact.shape, fact.dtype) == (value.shape, "float" if value.dtype == np.float32 else str(value.dtype))


def test_what_a_model_says_about_itself() -> None:
    facts = facts_of(onnx.load(AIMET / "detr" / "model.onnx"))
    assert facts.model_name == "m.onnx"
    assert facts.producer == "pytorch 2.4.0"
    assert facts.opset == 16
    assert facts.inputs == ("images", "orig_target_sizes")
    assert facts.outputs == ("detections",)
    assert facts.tensors["detections"].is_output
    assert facts.tensors["onnx::Add_4934"].role is TensorRole.INITIALIZER
    assert facts.tensors["/decoder/Constant_1_output_0"].role is TensorRole.CONSTANT
    assert facts.tensors["/decoder/Constant_1_output_0"].is_weight
    assert facts.nodes[0].attributes["pads"] == (1, 1, 1, 1)
    assert facts.inference_problem == ""
    graph = onnx.load(AIMET / "detr" / "model.onnx").graph
    constants = [attribute.t for node in graph.node for attribute in node.attribute if attribute.name == "value"]
    assert facts.weight_bytes == sum(numpy_helper.to_array(t).nbytes for t in (*graph.initializer, *constants))


def test_symbols_are_the_models_own() -> None:
    facts = facts_of(dynamic_net())
    assert facts.tensors["input"].shape == ("batch", None, 4)
    facts = facts_of(text_model("float[n,3] x", "where = NonZero (x)  y = Transpose (where)", "int64[] y"))
    assert facts.tensors["y"].shape == (None, 2)
    assert not facts.tensors["y"].is_static


def test_negative_dimensions_are_unknown() -> None:
    model = text_model("float[2,3] x", "y = Relu (x)")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert facts_of(model).tensors["x"].shape == (None, 3)


def test_initializers_that_are_listed_as_inputs() -> None:
    facts = facts_of(text_model("float[2] x, float[2] w", "y = Add (x, w)", w=[1.0, 1.0]))
    assert facts.inputs == ("x",)
    assert facts.tensors["w"].role is TensorRole.INITIALIZER


def test_bodies_count_as_readers_of_what_they_take_from_outside() -> None:
    branches = "then_branch = t () => (float[2] p) { p = Relu (a) }, else_branch = e () => (float[2] q) { q = Neg (a) }"
    facts = facts_of(text_model("float[2] x, bool c", f"a = Abs (x)  y = If (c) <{branches}>"))
    assert facts.tensors["a"].consumers == (1,)
    assert facts.subgraph_ops == {"Relu", "Neg"}
    assert "p" not in facts.tensors
    assert facts.nodes[1].inputs == ("c",)


def test_domains_and_functions() -> None:
    model = text_model("float[2] x", "z = own.F (x)  y = Relu (z)")
    model.graph.node[1].domain = "ai.onnx"
    body = [helper.make_node("Relu", ["a"], ["b"])]
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("ai.onnx", 17), helper.make_opsetid("own", 3)])
    facts = facts_of(model)
    assert facts.opsets == {"": 17, "own": 3}
    assert [node.domain for node in facts.nodes] == ["own", ""]
    assert facts.functions == {"F"}


def test_without_an_operator_set_declared_shapes_remain() -> None:
    proto = text_model("float[2] x", "y = Relu (x)")
    del proto.opset_import[:]
    facts = facts_of(proto)
    assert "opset" in facts.inference_problem
    assert facts.tensors["x"].shape == (2,)
    assert facts.tensors["y"].shape is None
    assert facts.opset == 0


def test_sparse_initializers() -> None:
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64), "w indices")
    proto = text_model("float[5] x", "y = Add (x, w)")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [5]))
    fact = facts_of(proto).tensors["w"]
    assert (fact.role, fact.shape, fact.dtype) == (TensorRole.INITIALIZER, (5,), "float")


def test_shapes_do_not_need_the_files_beside_the_model(tmp_path: Path) -> None:
    """After loading, the file is gone: what inference finds is the same, so that nobody read it."""
    loaded = load_model(save_with_external_data(attention_net(), tmp_path / "m.onnx"))
    with_file = collect_facts(loaded)
    (tmp_path / "weights.bin").unlink()
    assert collect_facts(loaded) == with_file


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    names, body = ["x", "w"], ""
    for index in range(draw(st.integers(1, 12))):
        inputs = [draw(st.sampled_from(names)) for _ in range(draw(st.integers(1, 3)))]
        body += f"t{index} = {'Sum' if len(inputs) > 1 else 'Relu'} ({', '.join(inputs)})  "
        names.append(f"t{index}")
    outputs = draw(st.lists(st.sampled_from(names[2:]), unique=True, min_size=1))
    return text_model("float[2,3] x", body, ", ".join(outputs), w=[[1.0] * 3] * 2)


@settings(deadline=None, max_examples=15)
@given(proto=graphs())
def test_producers_and_consumers_of_random_graphs(proto: onnx.ModelProto) -> None:
    facts = facts_of(proto)
    assert set(facts.tensors) == {"x", "w", *(node.outputs[0] for node in facts.nodes)}
    for fact in facts.tensors.values():
        assert fact.consumers == tuple(n.index for n in facts.nodes if fact.name in n.inputs)
        assert fact.shape == (2, 3)
        assert fact.is_output == (fact.name in facts.outputs)
        maker = facts.producer_of(fact.name)
        assert (maker is None) == (fact.name in ("x", "w"))
        assert maker is None or fact.name in maker.outputs
        assert all(fact.producer is None or reader > fact.producer for reader in fact.consumers)
    assert all(dataclasses.replace(node) == node for node in facts.nodes)


def test_what_small_constants_hold_besides_numbers() -> None:
    mask = [0.0, -np.inf, np.nan]
    facts = facts_of(text_model("float[3] x", "y = Sum (x, mask, good)", mask=mask, good=[1.0] * 3))
    assert facts.non_finite == {"mask": "NaN and -infinity"}


def test_constants_on_demand() -> None:
    proto = text_model(
        "float[2] x",
        "c = Constant <value_floats = [1.0, -2.0]> ()  y = Sum (x, c)",
        odd=[np.nan, -np.inf, 3.0],
        nothing=np.zeros((0, 2), np.float32),
        text=np.array(["a"], dtype=object),
        nan=[np.nan],
        flags=np.array([False, True]),
    )
    loaded = wrap_proto(proto, path=PATH)
    value = constant_value(loaded, "c")
    assert value is not None
    assert value.tolist() == [1.0, -2.0]
    assert constant_value(loaded, "c", limit=1) is None
    assert constant_value(loaded, "x") is None
    assert constant_range(loaded, "c") == (-2.0, 1.0)
    assert constant_range(loaded, "odd") == (-np.inf, 3.0)
    assert constant_range(loaded, "flags") == (0.0, 1.0)
    for name in ("nothing", "text", "nan", "x", "unknown"):
        assert constant_range(loaded, name) is None
    assert facts_of(proto).tensors["c"].shape == (2,)


def test_ranges_of_types_that_numpy_does_not_know() -> None:
    proto = text_model("float[2] x", "y = Relu (x)")
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.BFLOAT16, [2], [0.5, -3.0]))
    proto.graph.initializer.append(helper.make_tensor("v", TensorProto.INT4, [2], [-8, 7]))
    loaded = wrap_proto(proto, path=PATH)
    assert constant_range(loaded, "w") == (-3.0, 0.5)
    assert constant_range(loaded, "v") == (-8.0, 7.0)
