"""Outputs called like arguments of numpy.savez, run by the scripts of packages: each is saved under its own name."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import ModelProto

import deploykit
from deploykit.accuracy.samples.arrays import read_arrays, write_arrays
from sample_models.tiny_graphs import TinyGraph

OUTPUTS = ("file", "args", "allow_pickle", "a/b", "save\x1b[31m")
DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One convolution, and what five operators make of it."""
    graph = TinyGraph()
    weights = graph.stored("w", np.random.default_rng(0).normal(size=(3, 3, 3, 3)))
    made = graph.op("Conv", [graph.input("self", (1, 3, 8, 8)), weights], "made", pads=[1, 1, 1, 1])
    for op_type, name in zip(("Relu", "Sigmoid", "Tanh", "Neg", "Abs"), OUTPUTS, strict=True):
        graph.op(op_type, [made], name)
    onnx.save(graph.model(*OUTPUTS), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def sample() -> dict[str, npt.NDArray[Any]]:
    return {"self": np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)}


def run(package: Path, script: str, *words: str | Path) -> None:
    argv = [sys.executable, f"scripts/{script}", *map(str, words)]
    done = subprocess.run(argv, cwd=package, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_on_a_cpu_in_place_of_the_device(model: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_arrays(tmp_path / "data/one.npz", sample())
    deploykit.package(model, target="strix", precision="bf16", out=tmp_path / "out", compile=False)
    run(tmp_path / "out", "run.py", "--cpu", "--data", tmp_path / "data", "--out", tmp_path / "saved")
    assert set(read_arrays(tmp_path / "saved/one.npz")) == set(OUTPUTS)


def test_when_a_quantized_model_is_compared(model: Path, tmp_path: Path) -> None:
    """The part of the quantizer's script that runs both models; the quantizer is not asked."""
    written = Path(__file__).parents[1] / "data/golden/vitis-ai-bf16/scripts/quantize.py"
    script = SimpleNamespace(**runpy.run_path(str(written)))
    script.save_outputs(model, model, SimpleNamespace(given=[sample()], held_out=[sample()]), tmp_path / "saved")
    files = sorted(path.relative_to(tmp_path / "saved") for path in (tmp_path / "saved").rglob("*.npz"))
    assert [str(path) for path in files] == [
        f"{side}/{name}.npz" for side in ("baseline", "candidate") for name in ("held_out_000", "seen_000")
    ]
    assert all(set(read_arrays(tmp_path / "saved" / path)) == set(OUTPUTS) for path in files)


def renamed(proto: ModelProto, before: str, after: str) -> ModelProto:
    """The model with another name for one of its tensors."""
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [after if name == before else name for name in names]
    for value in (*proto.graph.output, *proto.graph.value_info):
        value.name = after if value.name == before else value.name
    return proto


def test_on_the_host_behind_the_device(tmp_path: Path) -> None:
    onnx.save(renamed(onnx.load(DETR / "model.onnx"), "detections", "file"), tmp_path / "m.onnx")
    (tmp_path / "e.json").write_bytes((DETR / "w8a8.v0.6.1.encodings").read_bytes().replace(b'"detections"', b'"file"'))
    out = tmp_path / "out"
    deploykit.package(tmp_path / "m.onnx", target="sm8650", sdk="2.33", encodings=tmp_path / "e.json", out=out)
    given = onnx.load(tmp_path / "m.onnx").graph.input
    shapes = {item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in given}
    write_arrays(tmp_path / "in.npz", {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    run(out, "run_host.py", tmp_path / "saved", tmp_path / "in.npz")
    assert "file" in read_arrays(tmp_path / "saved/in.npz")
