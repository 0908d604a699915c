"""A layer normalization in single operators, quantized: really compiled as one operator, and right on the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from deploykit.backend.backend import Request
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.pipeline import make_package


def grid(low: float, high: float) -> Affine:
    scale = (high - low) / 255
    return Affine(bits=8, signed=False, scale=np.asarray(scale), zero_point=np.asarray(float(round(-low / scale))))


def older_export(path: Path) -> Path:
    """What an export with operator set 13 looks like after quantization to 8 bits."""
    shape, stored = [1, 16, 64], dict[str, Any](two=np.float32(2), eps=np.float32(1e-5))
    stored["gamma"] = np.linspace(0.5, 1.5, 64, dtype=np.float32)
    stored["beta"] = np.linspace(-1, 1, 64, dtype=np.float32)
    steps = [
        ("ReduceMean", ["x"], "mean"),
        ("Sub", ["x", "mean"], "sub"),
        ("Pow", ["sub", "two"], "square"),
        ("ReduceMean", ["square"], "variance"),
        ("Add", ["variance", "eps"], "plus"),
        ("Sqrt", ["plus"], "root"),
        ("Div", ["sub", "root"], "div"),
        ("Mul", ["div", "gamma"], "scaled"),
        ("Add", ["scaled", "beta"], "y"),
    ]
    axes: dict[str, Any] = {"ReduceMean": {"axes": [-1]}}
    nodes = [helper.make_node(op, inputs, [out], name=out, **axes.get(op, {})) for op, inputs, out in steps]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    limits: dict[str, tuple[float, float]] = {
        "x": (-4, 4),
        "sub": (-4, 4),
        "square": (0, 16),
        "variance": (0, 2),
        "plus": (0, 2),
        "root": (0, 2),
    }
    limits |= {"mean": (-1, 1), "div": (-4, 4), "scaled": (-6, 6), "y": (-6, 6), "gamma": (0, 1.5)}
    entries = {name: Encoding(name=name, value=grid(*ends)) for name, ends in limits.items()}
    onnx.save(insert_qdq(model, EncodingSet(version="2", entries=entries)).model, path)
    return path


@pytest.mark.heavy
def test_an_older_layer_normalization_is_compiled_as_one_operator(tmp_path: Path) -> None:
    path = older_export(tmp_path / "m.onnx")
    packaged = make_package(Request(model=path, target="sm8550", backend="ort-qnn"), tmp_path / "p")
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    record = json.loads((tmp_path / "p/manifest.json").read_text())["record"]
    assert record["compile"]["nodes_on_cpu"] == 0
    numbers = json.loads((tmp_path / "p/artifacts/numbers.json").read_text())
    assert numbers["agreement_db"]["y"] > 30
    steps = json.loads((tmp_path / "p/config/intended_types.json").read_text())["steps"]
    assert [step["count"] for step in steps if step["id"] == "fuse-layernorm"] == [1]
