"""Integers and doubles written in float: near what they gave, or left alone."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from deploykit.flow.cure import rewrite
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from text_models import text_model

FIND = load_transform("dequantize-layers")


def run(model: onnx.ModelProto, x: Any) -> Any:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def quantized(graph: TinyGraph, folder: Path, **how: Any) -> onnx.ModelProto:
    onnx.save(graph.model("y"), folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "integer.onnx", weight_type=QuantType.QUInt8, **how)
    return onnx.load(folder / "integer.onnx")


def layers() -> TinyGraph:
    random, graph = np.random.default_rng(0), TinyGraph()
    kernel = graph.stored("kernel", random.normal(size=(6, 3, 3, 3)))
    image = graph.op("Conv", [graph.input("x", (1, 3, 8, 8)), kernel, graph.stored("bias", random.normal(size=6))], "c")
    rows = graph.op("Reshape", [image, graph.stored("rows", [6, 36], "int64")], "r")
    graph.op("MatMul", [rows, graph.stored("w", random.normal(size=(36, 4)))], "y")
    return graph


def recurrent() -> TinyGraph:
    random, graph = np.random.default_rng(1), TinyGraph()
    weights = [graph.stored(name, random.normal(0, 0.3, (1, 20, size))) for name, size in (("w", 4), ("r", 5))]
    graph.op("LSTM", [graph.input("x", (7, 1, 4)), *weights], ["y"], hidden_size=5)
    return graph


def looked_up() -> TinyGraph:
    random, graph = np.random.default_rng(2), TinyGraph()
    place = graph.op("Cast", [graph.input("x", (1, 6))], "place", to=onnx.TensorProto.INT64)
    rows = graph.op(
        "Tanh", [graph.op("Gather", [graph.stored("words", random.normal(size=(9, 8))), place], "row")], "t"
    )
    graph.op("MatMul", [rows, graph.stored("w", random.normal(size=(8, 4)))], ["y"])
    return graph


@pytest.mark.parametrize(
    ("graph", "shape"), [(layers(), (1, 3, 8, 8)), (recurrent(), (7, 1, 4)), (looked_up(), (1, 6))]
)
def test_float_layers_give_nearly_the_same(graph: TinyGraph, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = quantized(graph, tmp_path)
    found = FIND.match(model)
    assert found and not found.refusals
    done = FIND.apply(model, None, found).model
    onnx.checker.check_model(done)
    assert not any("Integer" in node.op_type or "Quantize" in node.op_type for node in done.graph.node)
    x = np.random.default_rng(2).uniform(-1, 1, shape).astype(np.float32)
    wanted = run(model, x)
    np.testing.assert_allclose(run(done, x), wanted, atol=0.05 * np.abs(wanted).max())


@pytest.mark.parametrize("bias", ["", ", bias"])
def test_a_product_of_floats_with_integers_becomes_one_of_floats(bias: str) -> None:
    random = np.random.default_rng(5)
    stored: dict[str, Any] = {
        "w": random.integers(0, 255, (6, 4)).astype(np.uint8),
        "zero": np.uint8(120),
        "scale": 0.01,
        "bias": [1.0, -2.0, 3.0, 9.0],
    }
    body = f"y = com.microsoft.DynamicQuantizeMatMul (x, w, scale, zero{bias})"
    model = text_model("float[3,6] x", body, "float[3,4] y", **stored)
    model.opset_import.add(domain="com.microsoft", version=1)
    done = FIND.apply(model, None, FIND.match(model)).model
    assert [node.op_type for node in done.graph.node] == ["MatMul", *(["Add"] if bias else [])]
    x = random.uniform(-1, 1, (3, 6)).astype(np.float32)
    np.testing.assert_allclose(run(done, x), run(model, x), atol=0.05)


def test_integers_that_are_no_quantized_floats_stay() -> None:
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="n")]
    stored = [numpy_helper.from_array(np.ones((4, 2), np.int8), "w")]
    ends = [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, (1, 4))]
    graph = helper.make_graph(
        nodes, "g", ends, [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (1, 2))], stored
    )
    found = FIND.match(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert not found and "not quantized at run time" in found.reason


def double(*, fed: bool = False) -> onnx.ModelProto:
    graph = TinyGraph()
    name = graph.input("x", (2, 3), "float64" if fed else "float32")
    wide = graph.op("Cast", [name], "wide", to=onnx.TensorProto.DOUBLE)
    graph.op("Exp", [graph.op("Mul", [wide, graph.stored("half", 0.5, "float64")], "m")], "y")
    model = graph.model("y")
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return model


def test_doubles_become_floats() -> None:
    model = double()
    done = rewrite(model, None, ["double-to-float"], random_feeds(model))
    assert done.kept == ("double-to-float",), done.steps
    kinds = {kind for kind, _ in infer(done.model).types.values()}
    assert kinds == {"float"} and done.model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT


def test_an_input_that_is_a_double_stays() -> None:
    assert "whoever feeds it" in load_transform("double-to-float").match(double(fed=True)).reason


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Four pictures of noise."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self.left = [{"x": random.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("per_channel", [False, True])
def test_operators_on_integers_become_pairs(per_channel: bool, tmp_path: Path) -> None:
    onnx.save(layers().model("y"), tmp_path / "float.onnx")
    how = {"quant_format": QuantFormat.QOperator, "per_channel": per_channel}
    quantize_static(tmp_path / "float.onnx", tmp_path / "integer.onnx", Samples(), **how)
    model, find = onnx.load(tmp_path / "integer.onnx"), load_transform("integers-to-pairs")
    found = find.match(model)
    assert len(found.sites) == 3 and not found.refusals, "a Conv, a Reshape of integers, a MatMul"
    done = find.apply(model, None, found).model
    onnx.checker.check_model(done)
    kinds = {node.op_type for node in done.graph.node}
    assert kinds == {"Conv", "MatMul", "Reshape", "QuantizeLinear", "DequantizeLinear"}
    x = np.random.default_rng(4).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    wanted = run(model, x)
    np.testing.assert_allclose(run(done, x), wanted, atol=0.02 * np.abs(wanted).max())


def test_integers_that_were_only_moved_become_the_moved_floats() -> None:
    graph = TinyGraph()
    graph.op("DynamicQuantizeLinear", [graph.input("x", (2, 3))], ["q", "scale", "zero"])
    turned = graph.op("Transpose", ["q"], "turned", perm=[1, 0])
    graph.op("DequantizeLinear", [turned, "scale", "zero"], "y")
    model = graph.model("y")
    done = FIND.apply(model, None, FIND.match(model)).model
    assert [node.op_type for node in done.graph.node] == ["Transpose", "Identity"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(done, x), x.T)
    graph.op("DynamicQuantizeLinear", [graph.input("z", (2, 3))], ["p", "other", "naught"])
    graph.op("DequantizeLinear", ["q", "other", "zero"], "w")
    (left,) = FIND.match(graph.model("w")).refusals
    assert left.reason == "other is not the scale of q"
