"""QDQ models by AIMET: taken apart and put together again, they compute the same, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.insert_qdq import dequantized, insert_qdq, quantize_constant
from deploykit.encodings.place import place
from deploykit.encodings.qdq import extract_qdq, read_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Lpbq
from deploykit.errors import InputError
from deploykit.model import load_model
from deploykit.model.nodes import changed_operators, raise_opset
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
QDQ_FILES = sorted(path.relative_to(AIMET).as_posix() for path in AIMET.glob("*/*.qdq.onnx"))


def run(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def feed_of(file: str) -> dict[str, Any]:
    path = AIMET / file.replace("-prequant-int32bias", "").replace(".qdq.onnx", ".io.npz")
    with np.load(path) as data:
        return {key.split(":", 1)[1]: data[key] for key in data.files if key.startswith("input.0:")}


def test_the_fixtures_are_there() -> None:
    assert len(QDQ_FILES) == 27


@each_row("file", QDQ_FILES)
def test_taken_apart_and_put_together_it_computes_the_same(file: str) -> None:
    model = onnx.load(AIMET / file)
    extracted = extract_qdq(model)
    assert not extracted.kept
    assert not {node.op_type for node in extracted.model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    made = insert_qdq(extracted.model, extracted.encodings, bias="encoded", unsigned_activations=False)
    onnx.checker.check_model(made.model)
    feed = feed_of(file)
    for theirs, ours in zip(run(model, feed), run(made.model, feed), strict=True):
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("file", [f for f in QDQ_FILES if "prequant" not in f and "fp8" not in f])
@each_row("version", ["1.0.0", "2.0.0"])
def test_encodings_of_a_file_make_the_model_that_aimet_makes(file: str, version: str) -> None:
    from deploykit.model.collect import collect_facts

    folder, variant = (AIMET / file).parent, Path(file).name.removesuffix(".qdq.onnx")
    model = load_model(folder / "model.onnx")
    encodings = place(read_encodings(folder / f"{variant}.v{version}.encodings"), collect_facts(model))
    made = insert_qdq(model.proto, encodings, bias="float")
    theirs = onnx.load(AIMET / file)
    feed = feed_of(file)
    for wanted, got in zip(run(theirs, feed), run(made.model, feed), strict=True):
        # Where the file has entries for data movement the models differ by pairs that change nothing; one 16-bit
        # step of the output is what the fixtures' notes allow.
        np.testing.assert_allclose(got, wanted, atol=float(np.abs(wanted).max()) * 2.0**-15)


def test_a_signed_activation_grid_is_written_unsigned() -> None:
    model = _scaled_identity()
    value = Affine(bits=8, signed=True, scale=np.asarray(0.5), zero_point=np.asarray(-3.0))
    entries = {name: Encoding(name=name, value=value) for name in ("x", "y")}
    made = insert_qdq(model, EncodingSet(version="2.0.0", entries=entries))
    assert made.placed == {"x": "uint8", "y": "uint8"}
    feed = {"x": np.array([[-70.0, -1.24, 0.25, 3.3, 90.0]], np.float32)}
    (got,) = run(made.model, feed)
    np.testing.assert_array_equal(got, np.clip(np.rint(feed["x"] / 0.5) - 3, -128, 127) * 0.5 + 1.5)


def test_what_cannot_be_stored_is_named_with_the_reason() -> None:
    model = _linear(np.ones((4, 2), np.float32))
    shifted = Affine(bits=8, signed=True, scale=np.asarray(1.0), zero_point=np.asarray(-0.5))
    made = insert_qdq(model, EncodingSet(version="2.0.0", entries={"w": Encoding(name="w", value=shifted)}))
    assert made.placed == {}
    assert [(entry.tensor, "zero point" in entry.reason) for entry in made.skipped] == [("w", True)]


def test_float16_entries_insert_nothing() -> None:
    entries = {"x": Encoding(name="x", value=Float(dtype="float16"))}
    made = insert_qdq(_scaled_identity(), EncodingSet(version="1.0.0", entries=entries))
    assert [node.op_type for node in made.model.graph.node] == ["Identity"]


def test_16_bits_below_opset_21_use_the_microsoft_domain() -> None:
    value = Affine(bits=16, signed=False, scale=np.asarray(0.5), zero_point=np.asarray(7.0))
    made = insert_qdq(
        _scaled_identity(opset=17), EncodingSet(version="2", entries={"x": Encoding(name="x", value=value)})
    )
    assert {node.domain for node in made.model.graph.node if node.op_type != "Identity"} == {"com.microsoft"}
    assert {entry.domain: entry.version for entry in made.model.opset_import} == {"": 17, "com.microsoft": 1}


def test_blocks_raise_the_operator_set() -> None:
    blocks = Lpbq(
        bits=4,
        decompressed_bits=8,
        channel_scale=np.full((1, 2), 0.01),
        block_scale=np.array([[16.0, 3.0], [5.0, 16.0]]),
        axis=1,
        block_axis=0,
        block_size=2,
    )
    weights = np.array([[1.1, -0.2], [0.3, 0.1], [-0.3, 0.9], [0.2, -1.2]], np.float32)
    made = insert_qdq(_linear(weights), EncodingSet(version="2", entries={"w": Encoding(name="w", value=blocks)}))
    assert max(entry.version for entry in made.model.opset_import) == 21
    onnx.checker.check_model(made.model)
    (got,) = run(made.model, {"x": np.eye(4, dtype=np.float32)})
    grid = np.repeat(blocks.scale, 2, axis=0)
    np.testing.assert_allclose(got, np.clip(np.floor(weights / grid + 0.5), -8, 7) * grid, rtol=1e-6)


def test_an_operator_that_changed_its_meaning_is_converted() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], axes=[1])
    graph = helper.make_graph([node], "g", [_value("x", [2, 3])], [_value("y", [2, 1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
    model.ir_version = 7
    assert changed_operators(model, 21) == ("ReduceSum",)
    raised = raise_opset(model, 21)
    (got,) = run(raised, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    np.testing.assert_array_equal(got, [[3.0], [12.0]])


def test_an_operator_that_cannot_be_raised_is_an_input_error() -> None:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [_value("x", [2])], [_value("y", [2])])
    with pytest.raises(InputError, match="cannot be raised"):
        raise_opset(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]), 21)


@settings(max_examples=40, deadline=None)
@given(
    bits=st.sampled_from([4, 8, 16]),
    signed=st.booleans(),
    scale=st.floats(1e-4, 1e3),
    axis=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 2**16),
)
def test_quantizing_what_was_dequantized_changes_nothing(
    bits: int, signed: bool, scale: float, axis: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    count = () if axis is None else ((3, 5)[axis],)
    scales = np.asarray(scale * rng.uniform(0.5, 2.0, count))
    lowest = -(1 << (bits - 1)) if signed else 0
    zeros = np.asarray(rng.integers(lowest, lowest + (1 << bits), count), np.float64)
    value = Affine(bits=bits, signed=signed, scale=scales, zero_point=zeros, axis=axis)
    once = quantize_constant(rng.normal(0, scale * 2**bits / 4, (3, 5)).astype(np.float32), value)
    assert once.values.min() >= value.lowest and once.values.max() <= value.highest
    again = quantize_constant(dequantized(once.values, value), value)
    np.testing.assert_array_equal(once.values, again.values)


def _value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def _scaled_identity(opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"], name="i")], "g", [_value("x", [1, 5])], [_value("y", [1, 5])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def _linear(weights: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")],
        "g",
        [_value("x", [4, weights.shape[0]])],
        [_value("y", [4, weights.shape[1]])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@each_row("file", QDQ_FILES)
def test_taking_out_and_reading_find_the_same_entries(file: str) -> None:
    model = onnx.load(AIMET / file)
    extracted, read = extract_qdq(model), read_qdq(model)
    assert not extracted.kept
    assert not diff(extracted.encodings, read)
    assert {e.name: e.is_param for e in extracted.encodings} == {e.name: e.is_param for e in read}


def requantizing() -> onnx.ModelProto:
    """A pair whose halves have different scales: it changes values and is no encoding."""
    stored = [
        numpy_helper.from_array(np.asarray(scale, np.float32), name) for name, scale in (("fine", 0.1), ("coarse", 0.2))
    ]
    stored.append(numpy_helper.from_array(np.asarray(0, np.uint8), "zero"))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "fine", "zero"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "coarse", "zero"], ["d"], name="dequantize"),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_pair_that_changes_values_stays() -> None:
    model = requantizing()
    extracted = extract_qdq(model)
    assert list(extracted.kept) == ["dequantize"]
    assert "has another grid than the QuantizeLinear 'quantize'" in extracted.kept["dequantize"]
    assert [node.op_type for node in extracted.model.graph.node] == ["QuantizeLinear", "DequantizeLinear", "Relu"]
    assert not extracted.encodings.entries
    with pytest.raises(InputError, match="has another grid"):
        read_qdq(model)


def test_a_scale_that_is_computed_stays() -> None:
    model = requantizing()
    model.graph.node.insert(0, helper.make_node("Abs", ["fine"], ["computed"]))
    for node in model.graph.node[1:3]:
        node.input[1] = "computed"
    extracted = extract_qdq(model)
    assert "reads 'computed', which is computed at run time" in extracted.kept["dequantize"]


def test_an_input_that_is_an_output_as_well_stays_as_it_is() -> None:
    """It has no producer that could write another name: the model read a tensor that nothing made."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], [values[1], values[0]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    grid = Affine(
        bits=8, signed=False, symmetric=False, scale=np.array([0.5], np.float32), zero_point=np.array([0], np.int64)
    )
    made = insert_qdq(model, EncodingSet(version="1.0.0", entries={"x": Encoding(name="x", value=grid)}))
    given = np.array([[0.3, -1.0, 0.9, 4.0]], np.float32)
    y, x = run(made.model, {"x": given})
    np.testing.assert_array_equal(x, given)
    np.testing.assert_array_equal(y, [[0.5, 0.0, 1.0, 4.0]])


def between_ends(*, inner: bool, second: bool) -> onnx.ModelProto:
    """A pair from an input (or a Relu) straight to an output that an operator reads too; a second output of it."""
    graph = TinyGraph()
    x = graph.input("x", (1, 4))
    x = graph.op("Relu", [x], "made") if inner else x
    grid = [graph.stored("scale", 0.5), graph.stored("zero", 0, "uint8")]
    out = graph.op("DequantizeLinear", [graph.op("QuantizeLinear", [x, *grid], "q"), *grid], "out")
    other = graph.op("DequantizeLinear", [graph.op("QuantizeLinear", [x, *grid], "q2"), *grid], "other")
    again = graph.op("DequantizeLinear", [graph.op("QuantizeLinear", [out, *grid], "q3"), *grid], "again")
    ends = [graph.op("Neg", [out], "neg"), graph.op("Abs", [other], "abs"), graph.op("Floor", [again], "floor")]
    return graph.model(out, *([other] if second else []), *ends)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_outputs_behind_a_pair_keep_their_names_and_values(*, inner: bool, second: bool) -> None:
    model = between_ends(inner=inner, second=second)
    extracted = extract_qdq(model)
    onnx.checker.check_model(extracted.model, full_check=True)
    assert not extracted.kept and not diff(extracted.encodings, read_qdq(model))
    assert [item.name for item in extracted.model.graph.output] == [item.name for item in model.graph.output]
    made = insert_qdq(extracted.model, extracted.encodings)
    given = {"x": np.array([[0.3, -1.0, 0.9, 4.0]], np.float32)}
    for theirs, ours in zip(run(model, given), run(made.model, given), strict=True):
        np.testing.assert_array_equal(theirs, ours)
