"""Advice about ONNX Runtime's QNN provider, followed on the triggering cases; the compiler itself is not run here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deploykit.flow.pipeline import make_plan
from deploykit_ort_qnn import provider_keys
from deploykit_ort_qnn.bench.repair import repairs_of
from deploykit_ort_qnn.bench.ways import WAYS as OTHER_WAYS
from sample_models.networks import attention_net

UNCHECKED = (("kv_cache_bit_width", "8"),)
RULES = "ort_qnn/test_rules.py"
Way = Callable[[Any], Any]


def mlp(name: str, target: str = "sm8650", **more: Any) -> Way:
    """A whole run of AIMET's network: a QDQ model, or encodings beside the float one."""

    def ask(bench: Any) -> Any:
        folder = bench.aimet / "mlp"
        if name.endswith(".onnx"):
            return bench.ask(folder / name, target, backend="ort-qnn", **more)
        encodings = folder / f"{name}.encodings"
        return bench.ask(folder / "model.onnx", target, backend="ort-qnn", encodings=encodings, **more)

    return ask


def lpbq(target: str) -> Way:
    """Blocks with ``--lpbq``: layers with integers, and the loss of each."""

    def ask(bench: Any) -> Any:
        found = mlp("bq-w4a16.v1.0.0", target, adapter_options={"lpbq": True})(bench)
        assert any(finding.code == "ORT013" and "dB" in finding.message for finding in found)
        return found

    return ask


def unchecked_left_out(bench: Any) -> Any:
    """An option whose first wheel nobody looked up, on an old one."""
    old, table = {"sdk": "2.4.0"}, provider_keys.load_options()
    options = tuple(replace(row, since="") if row.name == UNCHECKED[0][0] else row for row in table.option)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provider_keys, "load_options", lambda: replace(table, option=options))
        assert "ORT012" in {finding.code for finding in mlp("w8a8.qdq.onnx", **old, options=UNCHECKED)(bench)}
    return mlp("w8a8.qdq.onnx", **old)(bench)


def corrected(bench: Any) -> Any:
    """A grid that ONNX cannot store, and the same tensor with one that it can."""
    lint = bench.module("qualcomm/test_lint_provider_rules.py")
    build = bench.module("qualcomm/conftest.py").build
    wrong, right = (build(lint.CASES["QNN242"][side]).model.proto for side in (0, 1))
    assert "ORT007" in {finding.code for finding in bench.ask(wrong, backend="ort-qnn")}
    return bench.ask(right, backend="ort-qnn")


def vit(bench: Any, target: str) -> Any:
    folder = bench.aimet / "vit"
    encodings = folder / "w8a16.v1.0.0.encodings"
    return bench.ask(folder / "model.onnx", target, backend="ort-qnn", encodings=encodings)


def sixteen_bits(bench: Any) -> Any:
    """Attention in 16 bits on v69 and on v75."""
    assert "ORT008" in {finding.code for finding in vit(bench, "sm8450")}
    return [*vit(bench, "sm8550"), *vit(bench, "sm8650")]


def sixteen_bits_asked(bench: Any) -> Any:
    """On v73 the conversion to 16 signed bits is part of the model, and nothing is narrowed behind it."""
    asked = vit(bench, "sm8550")
    assert any(finding.code == "ORT009" and "symmetric int16" in finding.message for finding in asked)
    return bench.module(RULES).GOOD_TYPES


def another_mode(bench: Any) -> None:
    """The mode goes into the options of the provider."""
    for mode in ("3", "1"):
        request = bench.request(
            bench.aimet / "mlp/w8a8.qdq.onnx", backend="ort-qnn", adapter_options={"finalization_mode": int(mode)}
        )
        written = str(make_plan(request).to_json()["configs"])
        assert f"'htp_graph_finalization_optimization_mode': '{mode}'" in written


def wheels(bench: Any) -> Any:
    """A pair that is listed as supported, as what is installed."""
    rows = [row for row in bench.run("compat", "wheel")["rows"] if row["status"] == "supported"]
    made = bench.module(RULES)
    listed = str(rows)
    assert made.INSTALLED["wheel"] in listed
    return made.EnvironmentScope(installed=made.INSTALLED, planned=made.WHEEL)


def another_way(bench: Any) -> Any:
    """check and package take the option, with every way that a finding may name; that it is right was measured."""
    for command in ("check", "package"):
        assert "--repair NODE=WAY" in bench.text(command, "--help-backend", "ort-qnn")
    words = tuple(f"a node={way}" for way in OTHER_WAYS)
    assert all(repairs_of({"repair": (word,)}) == {"a node": way} for word, way in zip(words, OTHER_WAYS, strict=True))
    return bench.clean("QNN321")


SLOW = ("ORT008 v73",)
"""What compiles several models; with the heavy tests."""
WAYS: dict[str, Way] = {
    "ORT112 another mode": another_mode,
    "ORT002 --encodings": mlp("w8a8.v1.0.0"),
    "ORT002 QDQ": mlp("w8a8.qdq.onnx"),
    "ORT004 quantized": mlp("w8a8.qdq.onnx", "sm8350"),
    "ORT005 per channel": mlp("w4a8.v1.0.0", "sm8350"),
    "ORT005 v69": mlp("bq-w4a16.v1.0.0", "sm8450"),
    "ORT005 --lpbq on v69": lpbq("sm8450"),
    "ORT006 --lpbq": lpbq("sm8650"),
    "ORT007 corrected": corrected,
    "ORT008 v73": sixteen_bits,
    "ORT012 newest wheel": mlp("w8a8.qdq.onnx", options=UNCHECKED),
    "ORT012 without the option": unchecked_left_out,
    "ORT013 LPBQ encodings": mlp("lpbq-w4a16.v1.0.0"),
    "ORT102 v73": sixteen_bits_asked,
    "ORT103 --lpbq": lpbq("sm8650"),
    "ORT105 quantized": lambda bench: bench.module(RULES).GOOD_TYPES,
    "ORT105 FP16": lambda bench: bench.ask(bench.saved(attention_net()), "sm8450", backend="ort-qnn"),
    "ORT110 another operator": lambda bench: bench.module(RULES).FINE,
    "QNN321 another way": another_way,
    "ORT142 compat wheel": wheels,
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
