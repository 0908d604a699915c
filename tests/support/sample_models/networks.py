"""Small models with fixed random weights, each with one property that backends must handle.

They are built on call and never kept; nothing here runs a model.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, numpy_helper

from sample_models.tiny_graphs import TinyGraph

Floats = npt.NDArray[np.float32]


class _Weights:
    """Random values that are the same on every call of the same builder."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> Floats:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 10
        return self._random.normal(0.0, 1.0 / np.sqrt(fan_in), shape).astype(np.float32)


def conv_net() -> ModelProto:
    """Conv, BatchNormalization, Relu, a residual Add, pooling and Gemm: input [1, 3, 16, 16], output [1, 10]."""
    weights, graph = _Weights(1), TinyGraph()
    x = graph.op(
        "Conv",
        [graph.input("input", (1, 3, 16, 16)), graph.stored("conv1.weight", weights(8, 3, 3, 3))],
        "conv1",
        pads=[1, 1, 1, 1],
    )
    statistics = [
        graph.stored(f"bn1.{name}", value)
        for name, value in (("weight", np.ones(8)), ("bias", weights(8)), ("mean", weights(8)), ("var", np.ones(8)))
    ]
    x = graph.op("Relu", [graph.op("BatchNormalization", [x, *statistics], "bn1")], "relu1")
    names = [graph.stored("conv2.weight", weights(8, 8, 3, 3)), graph.stored("conv2.bias", weights(8))]
    y = graph.op("Conv", [x, *names], "conv2", pads=[1, 1, 1, 1])
    x = graph.op("Relu", [graph.op("Add", [y, x], "add")], "relu2")
    x = graph.op("Flatten", [graph.op("GlobalAveragePool", [x], "pool")], "flat")
    names = [graph.stored("fc.weight", weights(10, 8)), graph.stored("fc.bias", weights(10))]
    return graph.model(graph.op("Gemm", [x, *names], "output", transB=1))


def linear3d_net() -> ModelProto:
    """Two linear layers as exporters write them for rank-3 data, MatMul and Add: [1, 8, 16] to [1, 8, 16]."""
    weights, graph = _Weights(2), TinyGraph()
    x = graph.input("input", (1, 8, 16))
    x = graph.op("Relu", [_linear(graph, weights, x, "up", 16, 32)], "relu")
    return graph.model(_linear(graph, weights, x, "output", 32, 16))


def _linear(graph: TinyGraph, weights: _Weights, x: str, name: str, inner: int, outer: int) -> str:
    product = graph.op("MatMul", [x, graph.stored(f"{name}.weight", weights(outer, inner).T)], f"{name}.product")
    return graph.op("Add", [product, graph.stored(f"{name}.bias", weights(outer))], name)


def attention_net() -> ModelProto:
    """One head of self-attention: products of two computed tensors, Softmax, a rank-4 layout; [1, 8, 16] both ends."""
    weights, graph = _Weights(3), TinyGraph()
    x = graph.input("input", (1, 8, 16))
    split = graph.stored("heads", [1, 8, 2, 8], dtype="int64")
    query, key, value = (
        graph.op(
            "Transpose", [graph.op("Reshape", [_linear(graph, weights, x, n, 16, 16), split], f"{n}.4d")], out, perm=p
        )
        for n, out, p in (("q", "query", (0, 2, 1, 3)), ("k", "key", (0, 2, 3, 1)), ("v", "value", (0, 2, 1, 3)))
    )
    scores = graph.op("Mul", [graph.op("MatMul", [query, key], "scores"), graph.stored("scale", 8**-0.5)], "scaled")
    mixed = graph.op("MatMul", [graph.op("Softmax", [scores], "weights", axis=-1), value], "mixed")
    merged = graph.op("Transpose", [mixed], "merged", perm=(0, 2, 1, 3))
    merged = graph.op("Reshape", [merged, graph.stored("joined", [1, 8, 16], dtype="int64")], "merged.3d")
    return graph.model(_linear(graph, weights, merged, "output", 16, 16))


def save_with_external_data(model: ModelProto, path: Path, *, location: str = "weights.bin") -> Path:
    """Write the model and, in one file beside it, the data of its float initializers; the model given is not changed.

    Integers stay inside, as exporters leave them: ONNX Runtime reads shapes only from there.
    """
    copy, data = ModelProto(), bytearray()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype.kind != "f":
            continue
        raw = numpy_helper.from_array(values).raw_data
        for field in ("raw_data", "float_data", "double_data", "int32_data"):
            tensor.ClearField(field)
        tensor.data_location = 1  # EXTERNAL
        for key, value in (("location", location), ("offset", len(data)), ("length", len(raw))):
            tensor.external_data.add(key=key, value=str(value))
        data += raw
    (path.parent / location).write_bytes(bytes(data))
    path.write_bytes(copy.SerializeToString())
    return path
