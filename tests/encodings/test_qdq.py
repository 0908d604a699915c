"""QDQ models read back to the encodings they were made from: AIMET's own files are the truth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.conversion import OutcomeKind, convert
from deploykit.encodings.formats.differences import compare_values, diff
from deploykit.encodings.place import place
from deploykit.encodings.qdq import read_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float8, Lpbq
from deploykit.errors import InputError
from deploykit.model.facts import GraphFacts
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
MODELS = sorted(AIMET.rglob("*.qdq.onnx"))

# QDQ models hold scales in float32, the files hold doubles: half a unit in the last place.
SINGLE = 1.2e-7


def expected(path: Path, facts: GraphFacts) -> EncodingSet:
    stem = path.name.removesuffix(".qdq.onnx").removesuffix("-prequant-int32bias")
    return place(read_encodings(path.with_name(f"{stem}.v2.0.0.encodings")), facts)


@each_row("path", MODELS, ids=lambda p: p.relative_to(AIMET).as_posix())
def test_fixtures_read_back_to_the_same_scales(path: Path, graph_of: Callable[[str], GraphFacts]) -> None:
    facts = graph_of(path.parent.name)
    found = read_qdq(onnx.load(path), source=path.name)
    truth = expected(path, facts)
    with_biases = "int32bias" in path.name
    for difference in diff(truth, found, tolerance=SINGLE, grid_only=True):
        # Without prequantization no int32 goes into the model, since QuantizeLinear cannot make one.
        assert difference.kind == "only-first" and not with_biases, difference
        assert truth.entries[difference.name].dtype in ("int32", "uint32")
    for entry in found:
        theirs = truth.entries[entry.name]
        assert entry.is_param == theirs.is_param, entry.name
        if isinstance(entry.value, Affine) and isinstance(theirs.value, Affine) and entry.dtype == theirs.dtype:
            assert np.array_equal(entry.value.scale, theirs.value.scale.astype(np.float32))


def test_the_fixtures_hold_every_kind() -> None:
    kinds = {entry.value.granularity for path in MODELS for entry in read_qdq(onnx.load(path))}
    assert kinds == {"per-tensor", "per-channel", "per-block", "lpbq"}
    assert any(isinstance(e.value, Float8) for e in read_qdq(onnx.load(AIMET / "mlp/wfp8a8.qdq.onnx")))
    assert not len(read_qdq(onnx.load(AIMET / "detr/fp16.qdq.onnx")))


def test_lpbq_is_equal_to_aimets_file(graph_of: Callable[[str], GraphFacts]) -> None:
    found = read_qdq(onnx.load(AIMET / "mlp/lpbq-w4a16.qdq.onnx"))
    truth = place(read_encodings(AIMET / "mlp/lpbq-w4a16.v2.0.0.encodings"), graph_of("mlp"))
    for name in ("onnx::MatMul_57", "fc1.weight", "lm_head.weight"):
        value = found.entries[name].value
        assert isinstance(value, Lpbq) and value.block_scale.max() == 16
        assert not compare_values(value, truth.entries[name].value, tolerance=SINGLE)


def test_a_model_converts_to_a_file(graph_of: Callable[[str], GraphFacts]) -> None:
    result = convert(read_qdq(onnx.load(AIMET / "mlp/w8a8.qdq.onnx")), "2.0.0")
    assert not result.of(OutcomeKind.IMPOSSIBLE) and not result.of(OutcomeKind.LOSSY)


def stored(name: str, values: Any, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def build(
    nodes: list[onnx.NodeProto],
    weights: list[TensorProto],
    *,
    output: str = "y",
    input_type: int = TensorProto.FLOAT,
    opset: int = 21,
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info("x", input_type, (2, 4))]
    outs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", infos, outs, weights), opset_imports=imports)


def quantize(name: str, scale: str = "s", zero: str | None = "z", **more: Any) -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", [name, scale, *([zero] if zero else [])], [f"{name}_int"], **more)


def dequantize(name: str, out: str, scale: str = "s", zero: str | None = "z", **more: Any) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", [name, scale, *([zero] if zero else [])], [out], **more)


def only(encodings: EncodingSet) -> Encoding:
    """The one entry; a pair from an input straight to an output stands for the same grid on both."""
    first, *others = encodings
    assert [other.name for other in others] in ([], ["y"])
    assert not any(compare_values(other.value, first.value) for other in others)
    return first


def test_an_output_keeps_its_name() -> None:
    model = build(
        [helper.make_node("Relu", ["x"], ["h"]), quantize("h"), dequantize("h_int", "y")],
        [stored("s", 0.5), stored("z", 3, np.uint8)],
    )
    entry = only(read_qdq(model))
    assert (entry.name, entry.dtype, entry.is_param) == ("y", "uint8", False)


def test_the_contributed_domain_and_16_bits() -> None:
    domain = {"domain": "com.microsoft"}
    model = build(
        [quantize("x", **domain), dequantize("x_int", "h", **domain), helper.make_node("Relu", ["h"], ["y"])],
        [stored("s", 0.5), stored("z", 7, np.uint16)],
        opset=17,
    )
    assert (only(read_qdq(model)).name, only(read_qdq(model)).dtype) == ("x", "uint16")


def test_other_domains_are_other_ops() -> None:
    model = build([quantize("x", domain="com.example")], [stored("s", 0.5), stored("z", 7, np.uint8)], output="x_int")
    assert not len(read_qdq(model))


def test_types_without_a_zero_point() -> None:
    plain = build([quantize("x", zero=None), dequantize("x_int", "y", zero=None)], [stored("s", 0.5)])
    assert only(read_qdq(plain)).dtype == "uint8"
    typed = build([quantize("x", zero=None, output_dtype=TensorProto.INT16)], [stored("s", 0.5)], output="x_int")
    assert only(read_qdq(typed)).dtype == "int16"
    weight = build([dequantize("w", "y", zero=None)], [stored("w", [[1, 2]], np.int8), stored("s", 0.5)])
    assert (only(read_qdq(weight)).name, only(read_qdq(weight)).dtype) == ("y", "int8")
    integers = build([dequantize("x", "y", zero=None)], [stored("s", 0.5)], input_type=TensorProto.INT8)
    assert only(read_qdq(integers)).dtype == "int8"


def test_stored_integers_get_their_plain_name() -> None:
    weights = [stored("s", 0.5), stored("z", 0, np.int8)]
    nodes = [dequantize("w_quantized", "w_dq"), helper.make_node("MatMul", ["x", "w_dq"], ["y"])]
    entry = only(read_qdq(build(nodes, [stored("w_quantized", np.ones((4, 2)), np.int8), *weights])))
    assert (entry.name, entry.is_param) == ("w", True)
    taken = [stored("w_quantized", np.ones((4, 2)), np.int8), stored("w", 1.0), *weights]
    assert only(read_qdq(build(nodes, taken))).name == "w_dq"


def test_constants_of_elementwise_ops_are_no_parameters() -> None:
    nodes = [quantize("c"), dequantize("c_int", "cd"), helper.make_node("Add", ["x", "cd"], ["y"])]
    model = build(nodes, [stored("c", [1.0]), stored("s", 0.5), stored("z", 0, np.int8)])
    assert only(read_qdq(model)).is_param is False


def test_scales_of_constant_nodes() -> None:
    constant = helper.make_node("Constant", [], ["s"], value=stored("", 0.5))
    model = build([constant, quantize("x"), dequantize("x_int", "y")], [stored("z", 0, np.uint8)])
    assert only(read_qdq(model)).name == "x" or only(read_qdq(model)).name == "y"


def test_scales_outside_of_the_model() -> None:
    weights = [stored("s", 0.5), stored("z", 0, np.uint8)]
    model = build([quantize("x"), dequantize("x_int", "h"), helper.make_node("Relu", ["h"], ["y"])], weights)
    scale = model.graph.initializer[0]
    scale.ClearField("raw_data")
    scale.data_location = TensorProto.EXTERNAL
    with pytest.raises(InputError, match="stored outside of the model"):
        read_qdq(model)
    value = only(read_qdq(model, read_tensor=lambda name: np.array(0.25) if name == "s" else None)).value
    assert isinstance(value, Affine) and float(value.scale) == 0.25


def test_negative_axes_and_blocks() -> None:
    weights = [
        stored("w", np.ones((8, 4)), np.int8),
        stored("s", np.ones((2, 4))),
        stored("z", np.zeros((2, 4)), np.int8),
    ]
    value = only(read_qdq(build([dequantize("w", "y", axis=-2, block_size=4)], weights))).value
    assert isinstance(value, Affine)
    assert (value.axis, value.block_axis, value.block_size, value.scale.shape) == (1, 0, 4, (2, 4))
    channels = [stored("w", np.ones((8, 4)), np.int8), stored("s", np.ones(4)), stored("z", np.zeros(4), np.int8)]
    flat = only(read_qdq(build([dequantize("w", "y", axis=-1)], channels))).value
    assert isinstance(flat, Affine) and flat.axis == 1


def relu(name: str) -> onnx.NodeProto:
    return helper.make_node("Relu", [name], ["y"])


Z = stored("z", 0, np.uint8)
PAIR = [quantize("x"), dequantize("x_int", "h"), relu("h")]
BAD: dict[str, tuple[onnx.ModelProto, str]] = {
    "zero scale": (build(PAIR, [stored("s", 0.0), Z]), "'x': the scale is 0"),
    "nan scale": (build(PAIR, [stored("s", float("nan")), Z]), "'x': the scale is nan"),
    "negative scale": (build(PAIR, [stored("s", -1.0), Z]), "'x': the scale is -1"),
    "computed scale": (build([helper.make_node("ReduceMax", ["x"], ["s"]), *PAIR], [Z]), "'s', which is computed"),
    "unknown scale": (build(PAIR, [Z]), "'s', which is computed"),
    "zero points": (build(PAIR, [stored("s", 1.0), stored("z", [0, 0], np.uint8)]), "'x': 1 scales of shape"),
    "axis": (
        build(
            [quantize("x", axis=5), dequantize("x_int", "y", axis=5)],
            [stored("s", [1, 1]), stored("z", [0, 0], np.uint8)],
        ),
        "axis 5 is out of range",
    ),
    "matrix of scales": (
        build(PAIR, [stored("s", np.ones((2, 4))), stored("z", np.zeros((2, 4)), np.uint8)]),
        "scales of 2 dimensions, but no block size",
    ),
    "another grid": (
        build([quantize("x"), dequantize("x_int", "h", scale="t"), relu("h")], [stored("s", 1.0), stored("t", 2.0), Z]),
        "has another grid",
    ),
    "two grids": (
        build(
            [*PAIR, helper.make_node("QuantizeLinear", ["x", "t", "z"], ["again"])],
            [stored("s", 1.0), stored("t", 2.0), Z],
        ),
        "quantizes 'x' a second time",
    ),
    "no scale": (build([helper.make_node("QuantizeLinear", ["x"], ["y"])], []), "has no scale"),
    "unknown type": (build(PAIR, [stored("s", 1.0), stored("z", 0, np.int64)]), "makes int64"),
}


@each_row(("model", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_no_encoding_is_refused(model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_qdq(model, source="m.onnx")
    assert words in str(caught.value) and "m.onnx" in str(caught.value)
