"""A small convolution net with what such nets have."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def classifier() -> onnx.ModelProto:
    """A small convolution net with what such nets have: BatchNormalization, Relu, Clip, pooling, a residual, Gemm."""
    rng = np.random.default_rng(3)
    values: dict[str, np.ndarray] = {
        "w0": rng.normal(size=(8, 3, 3, 3)) * 0.3,
        "w1": rng.normal(size=(8, 8, 3, 3)) * 0.2,
        "w2": rng.normal(size=(10, 8)) * 0.5,
        "b2": rng.normal(size=10) * 0.1,
        "gamma": rng.random(8) + 0.5,
        "beta": rng.normal(size=8) * 0.1,
        "mean": rng.normal(size=8) * 0.1,
        "var": rng.random(8) + 0.5,
        "low": np.array(0.0),
        "high": np.array(6.0),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w0"], ["a"], name="conv0", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "gamma", "beta", "mean", "var"], ["b"], name="norm"),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("MaxPool", ["c"], ["d"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["d", "w1"], ["e"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["e", "low", "high"], ["f"], name="clip"),
        helper.make_node("Add", ["d", "f"], ["g"], name="add"),
        helper.make_node("GlobalAveragePool", ["g"], ["h"], name="gap"),
        helper.make_node("Flatten", ["h"], ["i"], name="flatten"),
        helper.make_node("Gemm", ["i", "w2", "b2"], ["logits"], name="fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 64, 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
