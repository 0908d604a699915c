"""A linear layer written as a 1x1 Conv gives the same numbers, and stays where that cannot be done."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from changes import applied
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit_ort_qnn.forms.lacking import older_forms

RNG = np.random.default_rng(5)


def grid(name: str, bits: int, scale: Any, axis: int | None = None) -> Encoding:
    values = np.asarray(scale, np.float64)
    zero = np.zeros(values.shape)
    value = Affine(bits=bits, signed=True, scale=values, zero_point=zero, symmetric=True, axis=axis)
    return Encoding(name=name, value=value, is_param=name == "w")


def layer(nodes: list[Any], shape: list[int], weight: list[int]) -> Any:
    out = [*shape[:-1], 4]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [
            numpy_helper.from_array(RNG.normal(size=weight).astype(np.float32), "w"),
            numpy_helper.from_array(RNG.normal(size=4).astype(np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def gemm(**settings: Any) -> Any:
    return helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc", **settings)


def matmul(*operands: str) -> list[Any]:
    product = helper.make_node("MatMul", ["x", "w"], ["p"], name="fc")
    return [product, helper.make_node("Add", list(operands), ["y"], name="add")]


LAYERS = {
    "Gemm": (layer([gemm()], [3, 6], [6, 4]), 1),
    "Gemm, transposed": (layer([gemm(transB=1)], [3, 6], [4, 6]), 0),
    "MatMul, rank 2": (layer(matmul("p", "b"), [3, 6], [6, 4]), 1),
    "MatMul, rank 4": (layer(matmul("b", "p"), [2, 3, 5, 6], [6, 4]), 1),
}


def entries(axis: int, *, x: bool = True, scales: int = 4) -> EncodingSet:
    weight = grid("w", 8, np.linspace(0.01, 0.03, scales) if scales > 1 else 0.02, axis if scales > 1 else None)
    found = {"w": weight, "y": grid("y", 16, 0.001), **({"x": grid("x", 16, 0.001)} if x else {})}
    return EncodingSet(version="2", entries=found)


def run(model: Any, x: Any) -> Any:
    """As the graph says: the optimizer of ONNX Runtime 1.32 computes a Gemm between pairs less exactly."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_is_the_same_with_and_without_its_grids(name: str) -> None:
    model, axis = LAYERS[name]
    made, encodings, done = applied(older_forms({"channel-bias"}), model, entries(axis))
    assert done["without-channel-bias"] == ("fc",)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds == ["Reshape", "Transpose", "Conv", "Transpose", "Reshape"]
    onnx.checker.check_model(made, full_check=True)
    x = RNG.normal(size=[item.dim_value for item in model.graph.input[0].type.tensor_type.shape.dim]).astype(np.float32)
    np.testing.assert_allclose(run(made, x), run(model, x), rtol=1e-5, atol=1e-6)
    quantized = [
        insert_qdq(given, values, bias="int32").model for given, values in ((model, entries(axis)), (made, encodings))
    ]
    if name.startswith("Gemm"):  # only there is the bias of the layer as it was known to be one
        np.testing.assert_allclose(run(quantized[1], x), run(quantized[0], x), atol=0.0011)
    conv = next(node for node in quantized[1].graph.node if node.op_type == "Conv")
    stored = {tensor.name: tensor for tensor in quantized[1].graph.initializer}
    (bias,) = [node for node in quantized[1].graph.node if conv.input[2] in node.output]
    assert stored[bias.input[0]].data_type == TensorProto.INT32 and list(stored[bias.input[1]].dims) == [4]


@pytest.mark.parametrize(
    ("node", "encodings"),
    [
        (gemm(alpha=0.5), entries(1)),
        (gemm(beta=2.0), entries(1)),
        (gemm(), entries(1, x=False)),
        (gemm(), entries(1, scales=1)),
        (helper.make_node("Gemm", ["x", "w"], ["y"], name="fc"), entries(1)),
    ],
    ids=["alpha", "beta", "float input", "one scale", "no bias"],
)
def test_what_is_no_plain_layer_with_scales_per_channel_stays(node: Any, encodings: EncodingSet) -> None:
    model = layer([node], [3, 6], [6, 4])
    made, kept, done = applied(older_forms({"channel-bias"}), model, encodings)
    assert made is model and kept is encodings and not done


def test_a_product_with_a_grid_of_its_own_is_no_layer_with_a_bias() -> None:
    encodings = entries(1)
    encodings = EncodingSet(version="2", entries={**encodings.entries, "p": grid("p", 16, 0.001)})
    assert not applied(older_forms({"channel-bias"}), LAYERS["MatMul, rank 2"][0], encodings)[2]


def test_a_shape_that_is_not_known_is_left_alone() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(LAYERS["Gemm"][0])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert not applied(older_forms({"channel-bias"}), model, entries(1))[2]
