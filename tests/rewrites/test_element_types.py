"""Integers and doubles written in float: near what they gave, or left alone."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from deploykit.flow.cure import rewrite
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from text_models import text_model

FIND = load_transform("dequantize-layers")


def run(model: onnx.ModelProto, x: Any) -> Any:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def quantized(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    onnx.save(model, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "integer.onnx", weight_type=QuantType.QUInt8)
    return onnx.load(folder / "integer.onnx")


def stored(seed: int, size: float = 1.0, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Noise in float32."""
    random = np.random.default_rng(seed)
    return {name: random.normal(0, size, shape).astype(np.float32) for name, shape in shapes.items()}


KERNEL = stored(0, kernel=(6, 3, 3, 3), bias=(6,))
LAYERS = text_model(
    "float[1,3,8,8] x",
    "c = Conv <kernel_shape = [3, 3]> (x, kernel, bias)  r = Reshape (c, rows)  y = MatMul (r, w)",
    **KERNEL,
    **stored(1, w=(36, 4)),
    rows=[6, 36],
)
RECURRENT = text_model(
    "float[7,1,4] x", "y = LSTM <hidden_size=5> (x, w, r)", **stored(1, 0.3, w=(1, 20, 4), r=(1, 20, 5))
)
LOOKED_UP = text_model(
    "float[1,6] x",
    "place = Cast <to = 7> (x)  row = Gather (words, place)  t = Tanh (row)  y = MatMul (t, w)",
    **stored(2, words=(9, 8), w=(8, 4)),
)


@pytest.mark.parametrize("graph", [LAYERS, RECURRENT, LOOKED_UP], ids=["layers", "lstm", "rows"])
def test_float_layers_give_nearly_the_same(graph: onnx.ModelProto, tmp_path: Path) -> None:
    model = quantized(graph, tmp_path)
    found = FIND.match(model)
    assert found and not found.refusals
    done = FIND.apply(model, None, found).model
    onnx.checker.check_model(done)
    assert not any("Integer" in node.op_type or "Quantize" in node.op_type for node in done.graph.node)
    (feed,) = random_feeds(graph)
    wanted = run(model, feed["x"])
    np.testing.assert_allclose(run(done, feed["x"]), wanted, atol=0.05 * np.abs(wanted).max())


SCALED = "f = Mul (s, ws)  c = Cast <to = 1> (i)  y = Mul (c, f)"
MATRIX = "q, s, z = DynamicQuantizeLinear (x)  i = MatMulInteger (q, w, z, wz)  " + SCALED
ADDED = "d = Div (b, f)  e = Floor (d)  k = Cast <to = 6> (e)  a = Add (i, k)  c = Cast <to = 1> (a)"
BIASED = MATRIX.replace("c = Cast <to = 1> (i)", ADDED)
WEIGHT: dict[str, Any] = {"w": np.arange(24, dtype=np.uint8).reshape(6, 4), "wz": np.uint8(9), "ws": 0.01}
WEIGHT |= {"b": [1.0, -2.0, 3.0, 9.0]}


def on_integers(body: str, given: str = "float[3,6] x", **stored: Any) -> onnx.ModelProto:
    model = text_model(given, body, **stored)
    model.opset_import.add(domain="com.microsoft", version=1)
    return model


def test_a_bias_in_steps_of_the_sums_is_added_in_float() -> None:
    kernel = {"w": np.arange(24, dtype=np.uint8).reshape(4, 6, 1, 1)}
    row, image = BIASED.replace("MatMulInteger", "ConvInteger"), "float[3,6,1,1] x"
    row = row.replace("(e)  a = Add (i, k)", "(e)  h = Reshape (k, channels)  a = Add (i, h)")
    for body, given, more in ((BIASED, "float[3,6] x", {}), (row, image, {**kernel, "channels": [1, 4, 1, 1]})):
        model = on_integers(body, given, **{**WEIGHT, **more})
        done = FIND.apply(model, None, FIND.match(model)).model
        (feed,) = random_feeds(model)
        assert not {"Div", "Cast"} & {node.op_type for node in done.graph.node}
        np.testing.assert_allclose(run(done, feed["x"]), run(model, feed["x"]), atol=0.05)


@pytest.mark.parametrize("bias", ["", ", b"])
def test_a_product_of_floats_with_integers_becomes_one_of_floats(bias: str) -> None:
    random = np.random.default_rng(5)
    model = on_integers(f"y = com.microsoft.DynamicQuantizeMatMul (x, w, ws, wz{bias})", **WEIGHT)
    done = FIND.apply(model, None, FIND.match(model)).model
    assert [node.op_type for node in done.graph.node] == ["MatMul", *(["Add"] if bias else [])]
    x = random.uniform(-1, 1, (3, 6)).astype(np.float32)
    np.testing.assert_allclose(run(done, x), run(model, x), atol=0.05)


def test_doubles_become_floats() -> None:
    """Halves and their exponentials in double, the halves by a stored number and by a Constant."""
    body = "wide = Cast <to = 11> (x)  h = Mul (wide, half)  one = Constant <value = double {1.0}> ()"
    body += "  m = Mul (h, one)  f = Reshape (m, flat)  y = Exp (f)"
    model = text_model("float[2,3] x", body, "double[6] y", half=np.asarray(0.5), flat=[6])
    done = rewrite(model, None, ["double-to-float"], random_feeds(model))
    assert done.kept == ("double-to-float",), done.steps
    kinds = {kind for kind, _ in infer(done.model).types.values()}
    assert kinds == {"float"} and done.model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Four pictures of noise."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self.left = [{"x": random.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


ORDINARY = "c = Conv <kernel_shape = [3, 3]> (x, kernel, bias)  s = Sigmoid (c)  j = Concat <axis = 1> (s, c)"
ORDINARY += "  a = AveragePool <kernel_shape = [6, 6]> (j)  r = Flatten (a)"
ORDINARY += "  y = Gemm <transB = 1, alpha = 0.25> (r, w, d)"
VISION = text_model("float[1,3,8,8] x", ORDINARY, **KERNEL, **stored(7, w=(5, 12), d=(5,)))


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("graph", "count"), [(LAYERS, 3), (VISION, 6)], ids=["layers", "vision"])
def test_work_on_integers_becomes_pairs(graph: onnx.ModelProto, count: int, per_channel: bool, tmp_path: Path) -> None:
    onnx.save(graph, tmp_path / "float.onnx")
    how = {"quant_format": QuantFormat.QOperator, "per_channel": per_channel}
    quantize_static(tmp_path / "float.onnx", tmp_path / "integer.onnx", Samples(), **how)
    model, find = onnx.load(tmp_path / "integer.onnx"), load_transform("integers-to-pairs")
    found = find.match(model)
    assert len(found.sites) == count and not found.refusals, "moved integers as well"
    done = find.apply(model, None, found).model
    onnx.checker.check_model(done)
    kinds = {node.op_type for node in done.graph.node}
    assert kinds == {node.op_type for node in graph.graph.node} | {"QuantizeLinear", "DequantizeLinear"}
    x = np.random.default_rng(4).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    wanted = run(model, x)
    np.testing.assert_allclose(run(done, x), wanted, atol=0.02 * np.abs(wanted).max())


def test_every_part_of_split_integers_gets_a_pair() -> None:
    body = "q = QuantizeLinear (x, s, z)  a, b = Split <axis = 1, num_outputs = 2> (q)"
    body += "  c = DequantizeLinear (a, s, z)  y = DequantizeLinear (b, s, z)"
    model = text_model("float[1,4] x", body, "y, c", opset=18, s=0.1, z=np.uint8(3))
    find = load_transform("integers-to-pairs")
    done = find.apply(model, None, find.match(model)).model
    x = np.asarray([[0.1, 0.2, 0.3, 0.4]], np.float32)
    np.testing.assert_array_equal(run(done, x), run(model, x))


def test_integers_that_were_only_moved_become_the_moved_floats() -> None:
    body = "q, s, z = DynamicQuantizeLinear (x)  t = Transpose <perm = [1, 0]> (q)  y = DequantizeLinear (t, s, z)"
    model = text_model("float[2,3] x", body)
    done = FIND.apply(model, None, FIND.match(model)).model
    assert [node.op_type for node in done.graph.node] == ["Transpose", "Identity"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(done, x), x.T)
    other = "  p, other, naught = DynamicQuantizeLinear (x)  w = DequantizeLinear (q, other, z)"
    (left,) = FIND.match(text_model("float[2,3] x", body + other, "y, w")).refusals
    assert left.reason == "other is not the scale of q"
