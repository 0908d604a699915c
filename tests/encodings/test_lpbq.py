"""LPBQ: the formulas, the loss, what is left as it is and why, and files with external data."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.lpbq_files import WeightReport, convert_file
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.values import Lpbq
from deploykit.errors import PackageError
from deploykit.model.load import load_model
from deploykit.model.weights import numpy_type
from tables import each_row
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def sqnr(before: Any, after: Any) -> float:
    noise = float(((before - after) ** 2).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(float((before**2).sum()) / noise))


def block_model(**changes: Any) -> onnx.ModelProto:
    """x -> Q -> DQ -> layer(w) -> Q -> DQ -> y, the layer with a block-quantized weight."""
    given = {"op": "MatMul", "shape": (32, 6), "axis": 0, "attributes": {}, **changes}
    rng = np.random.default_rng(5)
    shape, axis = given["shape"], given["axis"]
    scale_shape = tuple(d // 16 if i == axis else d for i, d in enumerate(shape))
    model = text_model(
        "float x",
        "x_q = QuantizeLinear (x, s, z)  a = DequantizeLinear (x_q, s, z)"
        f"  w = DequantizeLinear <block_size = 16{'' if axis == 1 else f', axis = {axis}'}> (w_q, w_s, w_z)"
        f"  b = {given['op']} (a, w)  b_q = QuantizeLinear (b, s, z)  y = DequantizeLinear (b_q, s, z)",
        opset=21,
        s=0.01,
        z=np.uint8(128),
        w_s=rng.uniform(0.01, 0.1, scale_shape).astype(np.float32),
    )
    model.graph.input[0].type.tensor_type.ClearField("shape")
    stored = {"w_q": rng.integers(-8, 8, shape), "w_z": np.zeros(scale_shape)}
    whole = ((name, value.astype(numpy_type("int4"))) for name, value in stored.items())
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in whole)
    for name, value in given["attributes"].items():
        model.graph.node[3].attribute.append(helper.make_attribute(name, value))
    return model


def convert(tmp_path: Path, model: onnx.ModelProto, **options: Any) -> WeightReport:
    onnx.save(model, tmp_path / "m.onnx")
    (report,) = convert_file(tmp_path / "m.onnx", tmp_path / "out.onnx", **options).weights
    return report


@each_row(
    "changes",
    {},
    {"op": "Gemm"},
    {"op": "Gemm", "shape": (6, 32), "axis": 1, "attributes": {"transB": 1}},
    {"op": "Gemm", "attributes": {"transA": 1}},
    {"op": "Conv", "shape": (6, 32, 1, 1), "axis": 1},
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
    assert channel.shape == (6,) and blocks.shape[axis] == 6 and "w_s" not in stored
    for node in made.graph.node:  # 1 is what ONNX takes for an axis that is not stated
        given = [item for item in node.attribute if (item.name, item.i) != ("axis", 1)]
        del node.attribute[:]
        node.attribute.extend(given)
    (value,) = (one.value for one in extract_qdq(made).encodings if isinstance(one.value, Lpbq))
    assert (value.axis, value.block_axis) == (axis, 1 - axis)


@each_row("refined", False, True)
def test_aimet_models_are_converted_with_the_stated_loss(tmp_path: Path, refined: bool) -> None:
    report = convert_file(AIMET / "mlp/bq-w4a16.qdq.onnx", tmp_path / "out.onnx", refined=refined)
    assert report.converted == 5
    made = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(made)
    original = {t.name: numpy_helper.to_array(t) for t in onnx.load(AIMET / "mlp/bq-w4a16.qdq.onnx").graph.initializer}
    dequantize = _dequantized_weights(made)
    for weight in report.weights:
        assert weight.loss is not None
        before = original[weight.weight.removesuffix("_q")]
        stated = weight.loss.refined_sqnr_db if refined else weight.loss.sqnr_db
        assert sqnr(before, dequantize[f"{weight.weight.removesuffix('_q')}_qdq"]) == pytest.approx(stated, abs=0.05)


def _dequantized_weights(model: onnx.ModelProto) -> dict[str, Any]:
    names = [n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear" and n.output[0].endswith("_qdq")]
    weights = [name for name in names if not name.startswith("/")]
    return Session(model, capture=tuple(weights)).run({"hidden_states": np.zeros((1, 8, 64), np.float32)})


def test_external_data_is_streamed_and_memory_stays_small(tmp_path: Path) -> None:
    model = block_model(shape=(2048, 1024))
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.bin", size_threshold=0)
    tracemalloc.start()
    report = convert_file(tmp_path / "big.onnx", tmp_path / "out.onnx", refined=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.converted == 1
    # As much as two layers in float32; the bound of the specification adds 200 MB.
    assert peak < 2 * 2048 * 1024 * 4
    with pytest.raises(PackageError, match="exists and was kept"):
        (tmp_path / "out.onnx").unlink()
        convert_file(tmp_path / "big.onnx", tmp_path / "out.onnx")
    assert convert_file(tmp_path / "big.onnx", tmp_path / "out.onnx", refined=True, force=True).converted == 1
    assert (tmp_path / "out.onnx.data").exists() and (tmp_path / "out.onnx").stat().st_size < 2_000_000
    (file,) = load_model(tmp_path / "out.onnx").external
    assert all(claim.offset % 4096 == 0 for claim in file.claims), "maps begin where a page does"
    (tmp_path / "sub").mkdir()
    assert convert(tmp_path / "sub", block_model(shape=(2048, 1024)), refined=True).loss == report.weights[0].loss
