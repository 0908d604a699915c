"""Models for the provider's compiler: the AIMET fixtures, and small ones that show one trap each."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def grid(low: float, high: float, bits: int = 16) -> Affine:
    """The unsigned grid of a range, with 0 on it."""
    scale = (high - low) / (2**bits - 1)
    return Affine(bits=bits, signed=False, scale=np.asarray(scale), zero_point=np.asarray(float(round(-low / scale))))


def value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], stored: dict[str, Any]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.fixture
def log_model(tmp_path: Path) -> Path:
    """Log with a 16-bit output range of 3: every value becomes the minimum on the emulator."""
    node = helper.make_node("Log", ["x"], ["y"], name="the_log")
    model = model_of([node], [value("x", [1, 64])], [value("y", [1, 64])], {})
    entries = {"x": Encoding(name="x", value=grid(0.0, 1.0)), "y": Encoding(name="y", value=grid(-3.0, 0.0))}
    path = tmp_path / "log.onnx"
    onnx.save(insert_qdq(model, EncodingSet(version="2", entries=entries)).model, path)
    return path
