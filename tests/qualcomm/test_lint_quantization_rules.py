"""Lint rules about encodings, ranges and attention: each with a case that triggers it and one that does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.findings import Finding
from rule_cases import check_pairs
from tables import each_row
from text_models import text_model

Case = dict[str, Any]
Lint = Callable[[Case], dict[str, list[Finding]]]
U8, U16, S8, S16 = {"type": "uint8"}, {"type": "uint16"}, {"type": "int8"}, {"type": "int16"}


def conv(**extra: Any) -> Case:
    """A convolution with bias, everything stored in float."""
    stored = {"w": ("float", (4, 4, 1, 1), 0.1), "b": ("float", (4,), 0.0)}
    return {"graph": "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv (x, w, b) }", "stored": stored, **extra}


def with_bias(scale: float) -> Case:
    """A convolution whose bias should have the scale 0.5 * 0.2."""
    kinds = {"x": {**U8, "scale": 0.5}, "w": {**S8, "scale": 0.2}, "b": {"type": "int32", "scale": scale}}
    return conv(encodings=kinds)


def log(width: float, **extra: Any) -> Case:
    """A Log whose uint16 output spans a width."""
    spec = {"type": "uint16", "scale": width / 65535, "zero": 65535}
    return {"graph": "g (float[4] x) => (float[4] y) { y = Log (x) }", "encodings": {"y": spec}, **extra}


def block(quantized: tuple[str, ...], **extra: Any) -> Case:
    """Query and key projections on rank 3, their product, and a Softmax."""
    graph = """g (float[1,16,8] x) => (float[1,16,16] y) {
      q0 = MatMul (x, wq)  q = Add (q0, bq)  k0 = MatMul (x, wk)  k = Add (k0, bk)
      kt = Transpose <perm = [0,2,1]> (k)  s = MatMul (q, kt)  y = Softmax (s) }"""
    stored: dict[str, Any] = dict.fromkeys(("wq", "wk"), ("float", (8, 8), 0.1))
    stored |= dict.fromkeys(("bq", "bk"), ("float", (8,), 0.0))
    encodings = dict.fromkeys(quantized, U16)
    return {"graph": graph, "stored": stored, "encodings": encodings, "target": "sa8775p", "sdk": "2.41", **extra}


NORM = {
    "graph": "g (float[1,4,8] x) => (float[1,4,8] y) { y = LayerNormalization <axis = -1> (x, s, b) }",
    "stored": {"s": ("float", (8,), 1.0), "b": ("float", (8,), 0.0)},
}
BATCH_NORM = {
    "graph": "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { c = Conv (x, w)  y = BatchNormalization (c, s, b, m, v) }",
    "stored": {"w": ("float", (4, 4, 1, 1), 0.1), **dict.fromkeys(("s", "b", "m", "v"), ("float", (4,), 0.5))},
}
PRODUCT = {"graph": "g (float[1,4,8] a, float[1,8,4] b) => (float[1,4,4] y) { y = MatMul (a, b) }"}
CHAIN = {"graph": "g (float[4] x) => (float[4] y) { a = Relu (x)  b = Sigmoid (a)  c = Tanh (b)  y = Neg (c) }"}
CASES: dict[str, tuple[Case, Case]] = {
    "QNN215": (block(("q", "k", "s", "y", "x")), block(("q", "k", "s", "y", "x"), sdk="2.47")),
    "QNN231": (conv(encodings={"w": S16}, target="sm8450"), conv(encodings={"w": S16}, target="sm8550")),
    "QNN236": (
        conv(encodings={"w": {"type": "lpbq", "blocks": [[17.0, 1.0, 2.0, 3.0]]}}),
        conv(encodings={"w": {"type": "lpbq", "blocks": [[16.0, 1.0, 2.0, 3.0]]}}),
    ),
    "QNN237": (conv(precision="bf16", target="sm8650"), conv(precision="bf16", target="sm8850")),
    "QNN238": (
        conv(encodings={"w": {**S8, "scale": [0.1] * 4, "zero": 1, "axis": 0}}),
        conv(encodings={"w": {**S8, "scale": [0.1] * 4, "zero": 0, "axis": 0}}),
    ),
    "QNN240": ({**PRODUCT, "encodings": {"a": U16}}, {**PRODUCT, "encodings": {"a": U16, "b": U16}}),
    "QNN243": (with_bias(0.1002), with_bias(0.10009)),
    "QNN248": ({**NORM, "encodings": {"s": S8}}, {**NORM, "encodings": {"s": U8}}),
    "QNN250": (log(3.9999, sdk="2.51"), log(4.0001, sdk="2.51")),
    "QNN270": ({**CHAIN, "encodings": {"x": U8, "a": U8, "y": U8}}, {**CHAIN, "encodings": dict.fromkeys("xabcy", U8)}),
    "QNN271": (block(("q", "s", "y", "x")), block(("q", "k", "s", "y", "x"))),
    "QNN275": (conv(encodings={"x": {**U8, "scale": 3922}}), conv(encodings={"x": {**U8, "scale": 3921}})),
    "QNN280": (conv(encodings={"x": {**S8, "zero": -1}}), conv(encodings={"x": S8})),
    "QNN281": ({**BATCH_NORM, "encodings": {"x": U8, "c": U8}}, {**BATCH_NORM, "encodings": {"x": U8, "y": U8}}),
}


def test_triggering_and_clean(lint: Lint) -> None:
    check_pairs(CASES, run=lambda code, case: lint(case).get(code, []))


def scales(*blocks: float) -> Case:
    return conv(encodings={"w": {"type": "lpbq", "blocks": [[*blocks, 1.0, 2.0, 3.0]]}})


@each_row(
    ("code", "case", "severity"),
    # Another width than that of a bias is no bias.
    ("QNN243", {**with_bias(0.3), "encodings": {**with_bias(0.3)["encodings"], "b": {**S16, "scale": 0.3}}}, ""),
    # Block scales begin at one.
    ("QNN236", scales(0.0), "error"),
    ("QNN236", scales(1.0), ""),
    # SM8850 is v81 and has soc_model 87; the provider wants 88 for bfloat16.
    ("QNN237", conv(precision="bf16", target="sm8850", backend="ort-qnn"), "warning"),
    ("QNN237", conv(target="sm8650"), ""),
    # qualcomm/aimet#4086: SDK 2.41 on SA8775P. Unknown releases warn; other architectures have no row.
    ("QNN215", block(("q", "k", "s", "y", "x")), "error"),
    ("QNN215", block(("q", "k", "s", "y", "x"), sdk="2.33"), "warning"),
    ("QNN215", block(("q", "k", "s", "y", "x"), target="sm8650"), ""),
    ("QNN215", block(()), ""),
)
def test_how_far_each_goes(code: str, case: Case, severity: str, lint: Lint) -> None:
    assert [str(finding.severity) for finding in lint(case).get(code, [])] == ([severity] if severity else [])


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
def test_data_shows_where_float16_is_left_first(backend: str, tmp_path: Path) -> None:
    """The squares, not the mean of them; nothing where the same data is small, or where what is too large saturates."""
    body = "a = Mul (x, by)  b = Mul (a, a)  c = ReduceMean <axes = [1]> (b)  d = Sqrt (c)  y = Div (a, d)"
    saturating = "b = Mul (x, by)  y = Sigmoid (b)"
    for name, text, size, told in (("m", body, 3.0, ["b"]), ("m", body, 0.1, []), ("s", saturating, 500.0, [])):
        onnx.save(text_model("float[1,64] x", text, "float[1,64] y", by=200.0), tmp_path / f"{name}.onnx")
        np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(20, 1, 64)).astype(np.float32) * size)
        asked: dict[str, Any] = {"target": "sm8650", "backend": backend, "precision": "fp16"}
        found = deploykit.check(tmp_path / f"{name}.onnx", calibration=tmp_path / "x.npz", **asked)
        assert [finding.subject.name for finding in found if finding.code == "QNN127"] == told
