"""LPBQ: the formulas, the loss, what is left as it is and why, and files with external data."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.lpbq import BlockWeight, lpbq_encodings, lpbq_scales, measure_loss, refine
from deploykit.encodings.lpbq_files import WeightReport, convert_file
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Lpbq
from deploykit.errors import InputError, PackageError, UsageError
from deploykit.model.weights import integer_tensor
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def pack(values: Any) -> Any:
    flat = np.append(values.reshape(-1), np.zeros(values.size % 2, np.int64)).astype(np.int64) & 15
    return (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8)


def unpack(packed: Any, shape: tuple[int, ...]) -> Any:
    pairs = np.stack([(packed & 15).astype(np.int64), (packed >> 4).astype(np.int64)], axis=1).reshape(-1)
    return (((pairs ^ 8) - 8)[: int(np.prod(shape))]).reshape(shape)


def reference(scale: Any, channel_axis: int) -> tuple[Any, Any]:
    """The formulas of the issue, one channel at a time."""
    channels, blocks = [], np.empty(scale.shape)
    for c in range(scale.shape[channel_axis]):
        at = tuple(c if i == channel_axis else slice(None) for i in range(scale.ndim))
        s = scale[at].max() / 16
        channels.append(s)
        blocks[at] = np.clip(np.round(scale[at] / s), 1, 16) if s else 1
    return np.array(channels), blocks


@settings(max_examples=40, deadline=None)
@given(
    layout=st.sampled_from([((32, 6), 0, 1), ((5, 48), 1, 0), ((4, 32, 1, 1), 1, 0), ((3, 32), 1, 0)]),
    seed=st.integers(0, 9999),
    zero_channel=st.booleans(),
)
def test_scales_and_loss_are_those_of_the_formulas(
    layout: tuple[tuple[int, ...], int, int], seed: int, zero_channel: bool
) -> None:
    shape, block_axis, channel_axis = layout
    rng = np.random.default_rng(seed)
    integers = rng.integers(-8, 8, shape)
    scale = rng.uniform(0.01, 1, tuple(d // 16 if i == block_axis else d for i, d in enumerate(shape))).astype(
        np.float32
    )
    if zero_channel:
        scale[tuple(0 if i == channel_axis else slice(None) for i in range(scale.ndim))] = 0
    channel, blocks = lpbq_scales(scale, channel_axis)
    wanted_channel, wanted_blocks = reference(scale.astype(np.float64), channel_axis)
    np.testing.assert_allclose(channel, wanted_channel)
    np.testing.assert_array_equal(blocks, wanted_blocks)
    assert blocks.min() >= 1 and blocks.max() <= 16
    new = blocks * channel.reshape(tuple(-1 if i == channel_axis else 1 for i in range(scale.ndim)))
    old_full, new_full = (np.repeat(s, 16, axis=block_axis).astype(np.float64) for s in (scale, new.astype(np.float32)))
    weight = BlockWeight(
        packed=pack(integers),
        shape=shape,
        scale=scale,
        block_axis=block_axis,
        channel_axis=channel_axis,
        block_size=16,
    )
    assert measure_loss(weight).sqnr_db == pytest.approx(sqnr(integers * old_full, integers * new_full), abs=1e-3)
    packed, loss = refine(weight)
    rounded = unpack(packed, shape)
    best = np.clip(
        np.rint(np.divide(integers * old_full, new_full, out=integers.astype(float), where=new_full > 0)), -8, 7
    )
    assert np.mean(rounded != best) < 0.01  # halves may fall either way in float32
    assert loss.refined_sqnr_db is not None
    assert loss.refined_sqnr_db == pytest.approx(sqnr(integers * old_full, rounded * new_full), abs=1e-2)
    assert loss.refined_sqnr_db >= loss.sqnr_db - 1e-6


def sqnr(before: Any, after: Any) -> float:
    noise = float(((before - after) ** 2).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(float((before**2).sum()) / noise))


def block_model(**changes: Any) -> onnx.ModelProto:
    """x -> Q -> DQ -> layer(w) -> Q -> DQ -> y, the layer with a block-quantized weight."""
    given = {"op": "MatMul", "shape": (32, 6), "axis": 0, "dtype": "int4", "zero": 0, "attributes": {}, **changes}
    rng = np.random.default_rng(5)
    shape, axis = given["shape"], given["axis"]
    low, high = (0, 16) if given["dtype"].startswith("u") else (-8, 8)
    integers = rng.integers(low, high, shape)
    scale_shape = given.get("scale_shape", tuple(d // 16 if i == axis else d for i, d in enumerate(shape)))
    scale = rng.uniform(0.01, 0.1, scale_shape).astype(np.float32)
    stored = [
        integer_tensor("w_q", integers, given["dtype"]),
        numpy_helper.from_array(scale, "w_s"),
        integer_tensor("w_z", np.full(scale_shape, given["zero"]), given["dtype"]),
        numpy_helper.from_array(np.asarray(0.01, np.float32), "s"),
        integer_tensor("z", np.asarray(128), "uint8"),
    ]
    weight_node = helper.make_node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w"], name="w_dq", block_size=16)
    if axis != 1:
        weight_node.attribute.append(helper.make_attribute("axis", axis))
    layer = helper.make_node(given["op"], ["a", "w"], ["b"], name="layer", **given["attributes"])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "s", "z"], ["a"]),
        weight_node,
        layer,
        helper.make_node("QuantizeLinear", ["b", "s", "z"], ["b_q"]),
        helper.make_node("DequantizeLinear", ["b_q", "s", "z"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, None)], [value("y", TensorProto.FLOAT, None)], stored
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return model


def convert(tmp_path: Path, model: onnx.ModelProto, **options: Any) -> WeightReport:
    onnx.save(model, tmp_path / "m.onnx")
    (report,) = convert_file(tmp_path / "m.onnx", tmp_path / "out.onnx", **options).weights
    return report


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"op": "Gemm"},
        {"op": "Gemm", "shape": (6, 32), "axis": 1, "attributes": {"transB": 1}},
        {"op": "Gemm", "attributes": {"transA": 1}},
        {"op": "Conv", "shape": (6, 32, 1, 1), "axis": 1},
    ],
)
def test_layers_that_qualify_are_converted(tmp_path: Path, changes: dict[str, Any]) -> None:
    report = convert(tmp_path, block_model(**changes))
    assert report.converted and report.loss is not None and report.loss.sqnr_db > 20
    made = onnx.load(tmp_path / "out.onnx")
    scale_node = next(node for node in made.graph.node if node.output[0] == "w_q_block_scale")
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    blocks, channel = (numpy_helper.to_array(stored[name]) for name in scale_node.input[:2])
    assert blocks.dtype == np.uint8 and blocks.min() >= 1 and blocks.max() == 16
    axis = next(a.i for a in scale_node.attribute if a.name == "axis")
    assert channel.shape == (6,) and blocks.shape[axis] == 6
    assert "w_s" not in stored


@pytest.mark.parametrize(
    ("op", "after", "has_bias"),
    [("MatMul", "Add", True), ("MatMul", "Sub", False), ("Gemm", "Add", False), ("Gemm", "its own", True)],
)
def test_a_bias_is_an_input_or_an_add_behind_a_matmul(tmp_path: Path, op: str, after: str, has_bias: bool) -> None:
    model = block_model(op=op)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(6, np.float32), "bias"))
    place = next(index for index, node in enumerate(model.graph.node) if node.name == "layer")
    layer = model.graph.node[place]
    if after == "its own":
        layer.input.append("bias")
    else:
        layer.output[0] = "before"
        model.graph.node.insert(place + 1, helper.make_node(after, ["before", "bias"], ["b"]))
    assert convert(tmp_path, model).has_bias is has_bias


@each_row(
    ("changes", "reason"),
    [
        ({"dtype": "int8"}, "int8; LPBQ expands int4"),
        ({"dtype": "uint4", "zero": 8}, "uint4"),
        ({"zero": 1}, "zero point is not 0"),
        ({"scale_shape": (1, 1)}, "one scale and a block size"),
        ({"scale_shape": (3, 6)}, "do not fit"),
        ({"shape": (6, 32), "axis": 1}, "the layer sums along axis 0"),
        ({"shape": (2, 32, 6), "axis": 1}, "rank 3"),
        ({"op": "ConvTranspose", "shape": (32, 6, 1, 1)}, "not the weight of one MatMul"),
    ],
)
def test_what_does_not_qualify_is_left_with_the_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    report = convert(tmp_path, block_model(**changes))
    assert not report.converted and reason in report.reason
    assert any(tensor.name == "w_s" for tensor in onnx.load(tmp_path / "out.onnx").graph.initializer)


@pytest.mark.parametrize("side", ["input", "result"])
def test_a_float_side_leaves_the_weight(tmp_path: Path, side: str) -> None:
    model = block_model()
    layer = next(node for node in model.graph.node if node.name == "layer")
    if side == "input":
        layer.input[0] = "x"
    else:
        model.graph.output[0].name = "b"
        del model.graph.node[4:]
    assert f"the layer's {side} is float" in convert(tmp_path, model).reason


def test_scales_made_at_run_time_leave_the_weight(tmp_path: Path) -> None:
    model = block_model()
    model.graph.node.insert(0, helper.make_node("Identity", ["w_s"], ["made"]))
    next(node for node in model.graph.node if node.name == "w_dq").input[1] = "made"
    assert "computed at run time" in convert(tmp_path, model).reason


@pytest.mark.parametrize("refined", [False, True])
def test_aimet_models_are_converted_with_the_stated_loss(tmp_path: Path, refined: bool) -> None:
    report = convert_file(AIMET / "mlp/bq-w4a16.qdq.onnx", tmp_path / "out.onnx", refined=refined)
    assert report.converted == 5
    made = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(made)
    original = {t.name: numpy_helper.to_array(t) for t in onnx.load(AIMET / "mlp/bq-w4a16.qdq.onnx").graph.initializer}
    dequantize = _dequantized_weights(made)
    for weight in report.weights:
        assert weight.loss is not None
        before = original[weight.name.removesuffix("_q")]
        stated = weight.loss.refined_sqnr_db if refined else weight.loss.sqnr_db
        assert sqnr(before, dequantize[f"{weight.name.removesuffix('_q')}_qdq"]) == pytest.approx(stated, abs=0.05)


def _dequantized_weights(model: onnx.ModelProto) -> dict[str, Any]:
    import onnxruntime as ort

    names = [n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear" and n.output[0].endswith("_qdq")]
    weights = [name for name in names if not name.startswith("/")]
    for name in weights:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"hidden_states": np.zeros((1, 8, 64), np.float32)}
    return dict(zip(weights, session.run(weights, feed), strict=True))


def test_external_data_is_streamed_and_memory_stays_small(tmp_path: Path) -> None:
    model = block_model(shape=(4096, 1024))
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.bin", size_threshold=1024)
    tracemalloc.start()
    report = convert_file(tmp_path / "big.onnx", tmp_path / "out.onnx", refined=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.converted == 1
    # Two layers as float32 are 32 MiB; the bound of the specification adds 200 MB.
    assert peak < 2 * 4096 * 1024 * 4
    assert (tmp_path / "out.onnx.data").exists() and (tmp_path / "out.onnx").stat().st_size < 2_000_000
    (tmp_path / "sub").mkdir()
    inside = convert(tmp_path / "sub", block_model(shape=(4096, 1024)), refined=True)
    assert inside.loss == report.weights[0].loss


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    onnx.save(block_model(), tmp_path / "m.onnx")
    (tmp_path / "out.onnx").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        convert_file(tmp_path / "m.onnx", tmp_path / "out.onnx")
    with pytest.raises(UsageError, match="is the model itself"):
        convert_file(tmp_path / "m.onnx", tmp_path / "m.onnx", force=True)
    assert convert_file(tmp_path / "m.onnx", tmp_path / "out.onnx", force=True).converted == 1


def test_a_model_without_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="block size"):
        convert_file(AIMET / "mlp/w8a8.qdq.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="no such folder"):
        convert_file(AIMET / "mlp/w8a8.qdq.onnx", tmp_path / "missing" / "out.onnx")


def test_encodings_are_turned_too() -> None:
    value = Affine(
        bits=4,
        signed=True,
        scale=np.array([[0.16, 0.02], [0.01, 0.32]]),
        zero_point=np.zeros((2, 2)),
        axis=1,
        block_axis=0,
        block_size=16,
    )
    wide = Affine(
        bits=8, signed=True, scale=value.scale, zero_point=value.zero_point, axis=1, block_axis=0, block_size=16
    )
    entries = {"w": Encoding(name="w", value=value), "v": Encoding(name="v", value=wide)}
    done, left = lpbq_encodings(EncodingSet(version="2", entries=entries))
    made = done.entries["w"].value
    assert isinstance(made, Lpbq)
    np.testing.assert_array_equal(made.block_scale, [[16, 1], [1, 16]])
    assert set(left) == {"v"} and "8-bit" in left["v"]


@each_row(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"bits": 8}, "8-bit blocks; LPBQ expands 4-bit ones"),
        ({"zero_point": np.full((2, 6), 1.0)}, "its zero point is not that of a symmetric grid"),
        ({"signed": False, "zero_point": np.full((2, 6), 8.0)}, ""),
        ({"signed": False}, "its zero point is not that of a symmetric grid"),
        ({"axis": None}, "its channel axis is not known"),
        ({"block_axis": None}, "its channel axis is not known"),
        ({"scale": np.full((2, 6), -0.1)}, "a scale is negative"),
    ],
)
def test_an_entry_becomes_lpbq_or_says_why_not(changes: dict[str, Any], reason: str) -> None:
    grid = {"bits": 4, "signed": True, "scale": np.full((2, 6), 0.1), "zero_point": np.zeros((2, 6))}
    blocks = {"axis": 1, "block_axis": 0, "block_size": 16}
    value = Affine(**{**grid, **blocks, **changes})
    made, left = lpbq_encodings(EncodingSet(version="2.0.0", entries={"w": Encoding(name="w", value=value)}))
    assert left == ({"w": reason} if reason else {})
    assert isinstance(made.entries["w"].value, Affine if reason else Lpbq)
