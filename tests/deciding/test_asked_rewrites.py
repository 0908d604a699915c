"""A rewrite asked for by name on a float model is done, or refused with the reason; nothing ends in a defect."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.contract.backend import Request
from deploykit.deciding.pipeline import make_package, make_plan
from sample_models.tiny_graphs import TinyGraph


def linear(folder: Path) -> Path:
    graph = TinyGraph()
    weight = graph.stored("w", np.random.default_rng(0).normal(size=(16, 12)))
    graph.op("Relu", [graph.op("MatMul", [graph.input("x", (1, 8, 16)), weight], "m")], "y")
    path = folder / "linear.onnx"
    onnx.save(graph.model("y"), path)
    return path


def request(model: Path, backend: str, *rewrites: str) -> Request:
    return Request(model=model, target="sm8650", backend=backend, precision="fp16", rewrite=rewrites, compile=False)


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
def test_it_is_done_on_a_float_model(backend: str, tmp_path: Path) -> None:
    made = make_package(request(linear(tmp_path), backend, "linear-to-conv"), tmp_path / "package")
    assert made.package is not None, [finding.message for finding in made.findings if finding.blocks]
    (done,) = [finding for finding in made.findings if finding.code == "DK201"]
    assert done.evidence["rewrites"] == ["linear-to-conv"]
    written = next((tmp_path / "package" / "model").rglob("*.onnx"))
    assert [node.op_type for node in onnx.load(written).graph.node].count("Conv") == 1


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
def test_it_is_refused_with_the_reason(backend: str, tmp_path: Path) -> None:
    plan = make_plan(request(linear(tmp_path), backend, "fuse-gelu"))
    (refused,) = [finding for finding in plan.findings if finding.code == "DK208"]
    assert "the graph has no Erf and no Tanh" in refused.message
    assert not plan.feasible


def odd(folder: Path) -> Path:
    """Minus infinity and NaN as constants, a division by zero, and the logarithm of what comes out."""
    graph = TinyGraph()
    ratio = graph.op("Div", [graph.input("x", (1, 16)), graph.stored("zero", np.zeros(16))], "q")
    low = graph.op("Add", [ratio, graph.stored("inf", np.full(16, -np.inf))], "a")
    graph.op("Log", [graph.op("Sub", [low, graph.stored("nan", np.full(16, np.nan))], "s")], "y")
    path = folder / "odd.onnx"
    onnx.save(graph.model("y", "a"), path)
    return path


def entries(folder: Path) -> Path:
    def entry(name: str) -> dict[str, object]:
        kind = {"enc_type": "PER_TENSOR", "dtype": "INT", "bw": 16, "is_sym": False}
        return {"name": name, **kind, "scale": [1 / 65535], "offset": [0]}

    path = folder / "odd.encodings"
    rows = [entry(name) for name in ("x", "q", "a", "s", "y")]
    path.write_text(json.dumps({"version": "1.0.0", "activation_encodings": rows, "param_encodings": []}))
    return path


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
@pytest.mark.parametrize("encoded", [False, True])
def test_what_is_not_finite_is_no_defect(
    backend: str, encoded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--encodings", str(entries(tmp_path))] if encoded else []
    rest = ["--target", "sm8650", "--backend", backend, "--input", "x=-1..1", "--no-compile", "--json"]
    status = run(cli, ["package", str(odd(tmp_path)), *given, *rest, "-o", str(tmp_path / "package"), "--force"])
    assert status in (0, 1)
    answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert "DK008" in {finding["code"] for finding in answer["findings"]}
