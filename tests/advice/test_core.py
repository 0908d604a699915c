"""Advice of the core's and the shared rules that names a command or an option, followed on their triggering cases."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from deploykit.errors import UsageError
from sample_models.networks import conv_net, save_with_external_data

Way = Callable[[Any], Any]


def copied(bench: Any) -> None:
    (bench.folder / "from").mkdir()
    path = save_with_external_data(conv_net(), bench.folder / "from/model.onnx")
    shutil.copytree(path.parent, bench.folder / "to")
    shutil.rmtree(path.parent)
    found = bench.ask(bench.folder / "to/model.onnx")
    assert [finding.severity for finding in found if finding.code == "DK013"] == ["info"]


def mix(bench: Any, version: str, **more: Any) -> Any:
    encodings = bench.aimet / f"detr/w8a16-fp16mix-omit.v{version}.encodings"
    return bench.ask(bench.aimet / "detr/model.onnx", sdk="2.37", encodings=encodings, **more)


def float_tensors(bench: Any) -> Any:
    assert "DK103" in {finding.code for finding in mix(bench, "2.0.0")}
    names = bench.folder / "float.txt"
    names.write_text("/decoder/Div_output_0\n")
    return mix(bench, "2.0.0", float_tensors=names)


def asked(*rewrites: str) -> Way:
    """The whole run of the triggering case, as it is and with rewrites asked for by name."""

    def ask(bench: Any) -> Any:
        case = bench.trigger("QNN216")
        model = bench.module("qualcomm/conftest.py").build(case).model.proto
        assert "QNN216" in {finding.code for finding in bench.ask(model)}
        return [*bench.ask(model, rewrite=rewrites), *bench.ask(model, backend="ort-qnn", rewrite=rewrites)]

    return ask


def float_model(bench: Any) -> Any:
    """The QDQ model is advised to come as float model with encodings, and that helps."""
    vit = bench.aimet / "vit"
    (told,) = (f for f in bench.ask(vit / "w8a8.qdq.onnx", backend="ort-qnn") if f.code == "QNN216")
    assert told.hint == "give the float model with --encodings and --rewrite linear-to-conv"
    encodings = vit / "w8a8.v1.0.0.encodings"
    return bench.ask(vit / "model.onnx", backend="ort-qnn", encodings=encodings, rewrite=("linear-to-conv",))


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


WAYS: dict[str, Way] = {
    "DK013 copied": copied,
    "DK103 --float-tensors": float_tensors,
    "DK103 version 1.0.0": lambda bench: mix(bench, "1.0.0"),
    "QNN215 --rewrite linear-to-conv": as_conv,
    "QNN216 --rewrite linear-to-conv": asked("linear-to-conv"),
    "QNN216 float model": float_model,
    "QNN236 deploykit encodings convert --to lpbq": by_lpbq,
    "QNN250 --rewrite log-range": as_log_range,
    "QNN260 --precision": lambda bench: {**bench.trigger("QNN260"), "options": {}, "precision": "fp16"},
    "QNN261 left out": refused_and_left_out("soc_model", "618", "not the Android SoC id|is 69"),
    "QNN262 left out": refused_and_left_out("vtcm_mb", "9", "has 8 MB"),
    "QNN275 --calibration": clamped_by_itself,
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
