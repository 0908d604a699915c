"""A rewrite asked for by name is done, on quantized models too, or refused with the reason; nothing is a defect."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Request, SharedWork
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.cure import rewrite_quantized
from deploykit.flow.pipeline import make_package, make_plan
from deploykit.flow.plan import decide
from deploykit.flow.read import read_situation
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from tables import each_row


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
    assert "no Erf or Tanh belongs to a Gelu" in refused.message
    assert not plan.feasible


AIMET = Path(__file__).parents[1] / "data" / "aimet"
BACKENDS = [("qnn-htp", "sm8650"), ("ort-qnn", "sm8650"), ("vitis-ai", "strix")]


@pytest.mark.parametrize(("backend", "target"), BACKENDS)
@each_row(("model", "name", "made"), [("mlp", "linear-to-conv", "Conv"), ("vit", "fuse-gelu", "Gelu")])
def test_it_is_done_on_a_quantized_model(backend: str, target: str, model: str, name: str, made: str) -> None:
    given = AIMET / model / "w8a16.qdq.onnx"
    request = Request(model=given, target=target, backend=backend, rewrite=(name,), compile=False)
    found, situation = read_situation(request)
    decision = decide(found, situation, SharedWork(), lambda line: None)
    assert not [finding for finding in decision.plan.findings if finding.code == "DK208"]
    (said,) = [finding for finding in decision.plan.findings if finding.code == "DK201"]
    assert said.evidence["rewrites"] == [name]
    rewritten = decision.situation.model.proto
    assert made in {node.op_type for node in rewritten.graph.node}
    before, after = (extract_qdq(proto) for proto in (onnx.load(given), rewritten))
    assert not after.kept and len(after.encodings) >= len(before.encodings) - 8
    feed = random_feeds(rewritten)[0]
    for name, wanted in Session(onnx.load(given)).run(feed).items():
        assert sqnr_db(wanted, Session(rewritten).run(feed)[name]) > 40


@pytest.mark.parametrize(("backend", "target"), BACKENDS)
@each_row("model", ["mlp/w8a8.qdq.onnx", "mlp/model.onnx"])
def test_it_finds_no_site_and_says_why(backend: str, target: str, model: str) -> None:
    request = Request(model=AIMET / model, target=target, backend=backend, rewrite=("fuse-gelu",), compile=False)
    (said,) = [finding for finding in make_plan(request).findings if finding.code == "DK208"]
    assert "no Erf or Tanh belongs to a Gelu" in said.message


def test_it_is_undone_where_the_grids_would_be_lost() -> None:
    """A tail that moves to the host is no longer in the model that was quantized."""
    graph = TinyGraph()
    graph.op("Mul", [graph.op("Relu", [graph.input("x", (1, 4))], "r"), graph.stored("k", 640.0)], "y")
    model = graph.model("y")
    grid = Affine(bits=8, signed=False, scale=np.asarray(0.1), zero_point=np.asarray(0.0))
    wide = replace(grid, scale=np.asarray(64.0))
    entries = {n: Encoding(name=n, value=wide if n == "y" else grid) for n in ("x", "r", "y")}
    quantized = insert_qdq(model, EncodingSet(version="2.0.0", entries=entries)).model
    done = rewrite_quantized(quantized, ["scale-last"], random_feeds(quantized))
    assert done.model is quantized and not done.kept
    assert "its outputs change" in done.steps[0].reason or done.steps[0].refusals


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
