"""Operators that the provider refuses, rewritten by themselves: really compiled, and right on the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.backend.backend import Request
from deploykit.flow.pipeline import make_package
from sample_models.tiny_graphs import TinyGraph

pytest.importorskip("onnxruntime_qnn", reason="the wheel is for Linux x86-64 only")
pytestmark = pytest.mark.heavy


def one(op_type: str, shape: tuple[int, ...], opset: int = 18, **attributes: Any) -> onnx.ModelProto:
    graph = TinyGraph(opset)
    graph.op(op_type, [graph.input("x", shape)], "y", **attributes)
    return graph.model("y")


def reversed_sum() -> onnx.ModelProto:
    graph = TinyGraph()
    axis = graph.stored("axis", 1, "int64")
    graph.op("CumSum", [graph.input("x", (3, 8)), axis], "y", reverse=1, exclusive=1)
    return graph.model("y")


def normalized() -> onnx.ModelProto:
    graph, random = TinyGraph(), np.random.default_rng(2)
    stored = [graph.stored(name, random.uniform(0.5, 1.5, 4)) for name in ("scale", "shift", "mean", "var")]
    return graph.model(graph.op("BatchNormalization", [graph.input("x", (1, 4, 3, 5, 6)), *stored], "y"))


def unbound() -> onnx.ModelProto:
    graph = TinyGraph()
    graph.op("SplitToSequence", [graph.input("x", (3, 8))], "parts", axis=0, keepdims=0)
    graph.op("SequenceAt", ["parts", graph.stored("last", -1, "int64")], "one")
    graph.op("Sigmoid", ["one"], "y")
    return graph.model("y")


MODELS = {
    "pool-by-taps": one("MaxPool", (1, 4, 6, 8, 8), kernel_shape=[2, 3, 3], strides=[2, 2, 2], pads=[0, 1, 1] * 2),
    "cumulate-forward": reversed_sum(),
    "product-by-halves": one("ReduceProd", (3, 5), opset=17, axes=[1]),
    "batchnorm-rank": normalized(),
    "resolve-sequences": unbound(),
    "write-out-functions": one("Softsign", (3, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_compiled_wholly_and_right(name: str, tmp_path: Path) -> None:
    onnx.save(MODELS[name], tmp_path / "model.onnx")
    request = Request(model=tmp_path / "model.onnx", target="sm8650", backend="ort-qnn", inputs=("x=-2..2",))
    packaged = make_package(request, tmp_path / "package")
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    said = [finding.message for finding in packaged.findings if finding.code == "DK210"]
    assert any(message.startswith(f"{name}: ") for message in said)
    record = json.loads((tmp_path / "package/manifest.json").read_text())["record"]
    assert record["compile"]["nodes_on_cpu"] == 0
    assert all(value is None or value >= 50 for value in record["numbers"]["outputs"].values())
