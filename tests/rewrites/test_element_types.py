"""What ONNX Runtime quantized, written in float: near what it gave."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from text_models import text_model

FIND = load_transform("dequantize-layers")


def run(model: onnx.ModelProto, x: Any) -> Any:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def quantized(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    onnx.save(model, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "integer.onnx", weight_type=QuantType.QUInt8, reduce_range=True)
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
    # Weights of seven bits: processors without VNNI add products of eight in 16 bits, and cut them off.
    how = {"quant_format": QuantFormat.QOperator, "per_channel": per_channel, "reduce_range": True}
    quantize_static(tmp_path / "float.onnx", tmp_path / "integer.onnx", Samples(), **how)
    model, find = onnx.load(tmp_path / "integer.onnx"), load_transform("integers-to-pairs")
    found = find.match(model)
    assert len(found.sites) == count and not found.refusals, "moved integers as well"
    done = find.apply(model, None, found).model
    onnx.checker.check_model(done)
    kinds = {node.op_type for node in done.graph.node}
    assert kinds == {node.op_type for node in graph.graph.node} | {"QuantizeLinear", "DequantizeLinear"}
    x = np.random.default_rng(4).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(run(done, x), wanted := run(model, x), atol=0.02 * np.abs(wanted).max())
