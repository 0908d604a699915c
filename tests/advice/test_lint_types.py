"""Advice of the lint rules about encodings, weights and options, followed on their triggering cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deploykit.errors import UsageError

PROVIDER, TYPES = "qualcomm/test_lint_provider_rules.py", "qualcomm/test_lint_quantization_rules.py"
ATLAS = "qualcomm/test_atlas_rule.py"
U8, U16, S8 = {"type": "uint8"}, {"type": "uint16"}, {"type": "int8"}
Way = Callable[[Any], Any]


def changed(code: str, **values: Any) -> Way:
    """The triggering case with other values."""
    return lambda bench: {**bench.trigger(code), **values}


def encoded(code: str, **entries: Any) -> Way:
    """The triggering case with other entries; None takes one out."""

    def make(bench: Any) -> Any:
        case = bench.trigger(code)
        merged = {**case["encodings"], **entries}
        return {**case, "encodings": {name: entry for name, entry in merged.items() if entry is not None}}

    return make


def plain_weight(bench: Any, kind: str = "int8", **more: Any) -> Any:
    """A weight with a scale per channel in place of blocks."""
    stored = {"wq": (kind, (48, 4), 1), "ws": ("float", (4,), 0.1), "wz": (kind, (4,), 0)}
    weight = "w = DequantizeLinear <axis = 1> (wq, ws, wz)"
    return {**bench.module(PROVIDER).layer("MatMul (xd, w)", "1,48", weight, stored, "1,4"), **more}


def as_conv(bench: Any) -> Any:
    """``vit`` on the device and the release of the report, as it is and with the rewrite asked for by name."""
    vit = bench.aimet / "vit"
    given = {"sdk": "2.41", "encodings": vit / "w8a16.v1.0.0.encodings"}
    (before,) = (f for f in bench.ask(vit / "model.onnx", "sa8775p", **given) if f.code == "QNN215")
    assert before.blocks
    (as_qdq,) = (f for f in bench.ask(vit / "w8a16.qdq.onnx", "sa8775p", sdk="2.41") if f.code == "QNN215")
    assert as_qdq.hint.startswith("give the float model with --encodings and --rewrite linear-to-conv")
    after = bench.ask(vit / "model.onnx", "sa8775p", rewrite=("linear-to-conv",), **given)
    assert "DK201" in {finding.code for finding in after}
    assert not [finding for finding in after if finding.blocks]
    return after


def as_log_range(bench: Any) -> Any:
    """A Log whose input has a grid too; without one the tools leave it in float, and that is said."""
    case = bench.trigger("QNN250")
    case = {**case, "encodings": {**case["encodings"], "x": {"type": "uint16", "scale": 1e-5}}}
    return whole_run(bench, case, rewrite=("log-range",))


def whole_run(bench: Any, case: Any, **more: Any) -> Any:
    """The case as a model with its encodings, through the whole path."""
    from deploykit.encodings.formats.aimet import write_encodings

    situation = bench.module("qualcomm/conftest.py").build(case)
    path = bench.folder / "case.encodings"
    path.write_text(write_encodings(situation.encodings, "1.0.0"), "utf-8")
    return bench.ask(situation.model.proto, sdk=case.get("sdk"), encodings=path, **more)


def clamped_by_itself(bench: Any) -> Any:
    """The mask of a model as it is exported: done without being asked for; the other rewrite says why it does not."""
    zoo = bench.zoo / "distilbert"
    given = {"encodings": zoo / "w8a16.v1.0.0.encodings", "sdk": "2.33"}
    left_out = {**given, "no_rewrite": ("mask-constant",)}
    assert any(f.code == "QNN275" and f.handled is None for f in bench.ask(zoo / "model.onnx", **left_out))
    other = bench.ask(zoo / "model.onnx", rewrite=("saturating-constant",), **left_out)
    assert any(f.code == "DK208" and "saturating-constant" in f.message for f in other)
    by_itself = bench.ask(zoo / "model.onnx", **given)
    assert all(f.handled for f in by_itself if f.code in ("QNN275", "DK104"))
    assert any(f.code == "DK210" and "mask-constant" in f.message for f in by_itself)
    return bench.ask(zoo / "model.onnx", rewrite=("mask-constant",), **given)


def by_lpbq(bench: Any) -> Any:
    """What ``encodings convert --to lpbq`` writes of float scales is taken."""
    out = bench.folder / "lpbq.onnx"
    bench.run("encodings", "convert", str(bench.aimet / "mlp/bq-w4a16.qdq.onnx"), "--to", "lpbq", "-o", str(out))
    return bench.ask(out, backend="ort-qnn")


def refused_and_left_out(key: str, value: str, told: str) -> Way:
    """The whole path refuses the value with the same words; without the option nothing is found."""

    def ask(bench: Any) -> Any:
        cnn = bench.aimet / "cnn/model.onnx"
        with pytest.raises(UsageError, match=told):
            bench.ask(cnn, options=((key, value),))
        return bench.ask(cnn)

    return ask


def option(bench: Any, code: str, **more: str) -> Any:
    made = bench.module(PROVIDER)
    return made.options(bench.trigger(code)["backend"], **more)


def both_int32(bench: Any) -> Any:
    cnn = bench.aimet / "cnn"
    return bench.ask(cnn / "model.onnx", encodings=cnn / "w8a8-int32bias.v1.0.0.encodings")


def folded(bench: Any) -> Any:
    """AIMET's own fold: the network whose BatchNormalization was folded before it was quantized."""
    net = bench.aimet / "cnn_bnfold"
    return bench.ask(net / "model.onnx", encodings=net / "w8a8.v1.0.0.encodings")


def pruned(bench: Any) -> Any:
    case = bench.trigger("QNN279")
    weight = {**S8, "scale": [0.1] * 3, "axis": 0}
    graph = "g (float[1,4,8,8] x) => (float[1,3,8,8] y) { y = Conv (x, w, b) }"
    stored = {"w": ("float", (3, 4, 1, 1), 0.1), "b": ("float", (3,), 0.0)}
    return {**case, "graph": graph, "stored": stored, "encodings": {"w": weight}}


def larger(bench: Any) -> Any:
    """The tensors that the message names become float too; fewer borders are left."""
    (before,) = bench.found("QNN270")
    (after,) = bench.look("QNN270", encoded("QNN270", y=None)(bench)) or [None]
    assert after is None or after.evidence["borders"] < before.evidence["borders"]


WAYS: dict[str, Way] = {
    "QNN215 --rewrite linear-to-conv": as_conv,
    "QNN231 8 bits": encoded("QNN231", w=S8),
    "QNN232 8 bits": plain_weight,
    "QNN233 per channel": lambda bench: plain_weight(bench, target="qcs6490"),
    "QNN236 deploykit encodings convert --to lpbq": by_lpbq,
    "QNN237 float16": changed("QNN237", precision="fp16"),
    "QNN243 int32 biases": both_int32,
    "QNN243 left out": encoded("QNN243", b=None),
    "QNN247 bias": lambda bench: bench.module(PROVIDER).norm("int8", "uint8"),
    "QNN249 Gemm": lambda bench: bench.module(PROVIDER).layer(
        "Gemm (xd, w, c)",
        "1,4",
        "w = DequantizeLinear <axis = 1> (wq, ws, wz)  c = DequantizeLinear (cq, cs, cz)",
        {
            "wq": ("int8", (4, 4), 1),
            "ws": ("float", (4,), 0.1),
            "wz": ("int8", (4,), 0),
            "cq": ("int32", (4,), 1),
            "cs": ("float", (), 0.1),
            "cz": ("int32", (), 0),
        },
        "1,4",
    ),
    "QNN250 --rewrite log-range": as_log_range,
    "QNN252 per block": lambda bench: bench.module(PROVIDER).blocked(16, "Conv (xd, w)"),
    "QNN260 --precision": changed("QNN260", options={}, precision="fp16"),
    "QNN261 left out": refused_and_left_out("soc_model", "618", "not the Android SoC id|is 69"),
    "QNN262 left out": refused_and_left_out("vtcm_mb", "9", "has 8 MB"),
    "QNN264 left out": changed("QNN264", options={}),
    "QNN266 left out": changed("QNN266", options={}),
    "QNN267 left out": changed("QNN267", options={}),
    "QNN267 target": changed("QNN267", target="sm8550"),
    "QNN268 1 or 3": lambda bench: [
        *bench.look("QNN268", option(bench, "QNN268", O="1")),
        *bench.look("QNN268", option(bench, "QNN268", O="3")),
    ],
    "QNN269 left out": changed("QNN269", options={}),
    "QNN270 larger": larger,
    "QNN271 all float": changed("QNN271", encodings={"x": U16}),
    "QNN272 left out": changed("QNN272", options={}),
    "QNN274 split": changed("QNN274", described={"w": (25_000, 35_001)}),
    "QNN274 8 bits": changed("QNN274", encodings={"w": S8}),
    "QNN275 --calibration": clamped_by_itself,
    "QNN279 pruned": pruned,
    "QNN280 unsigned": encoded("QNN280", x={**U16, "zero": 3}),
    "QNN281 folded": folded,
    "QNN320 gate left out": lambda bench: bench.module(ATLAS).gate(U16, s=None),
    "QNN320 clip at its bounds": lambda bench: bench.module(ATLAS).clip(6.0),
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
