"""The second opinion of the compiler inside onnxruntime-qnn on a package for the converters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit.findings import Finding
from deploykit_qnn_htp.rules.opinion import RULES as OPINION_RULES
from deploykit_qnn_htp.rules.opinion import ConversionOpinion

REFUSED: dict[str, Any] = {"available": True, "ok": False, "compiler": "a compiler", "note": "not the user's SDK"}
CASES: dict[str, tuple[Callable[[], ConversionOpinion], Callable[[], ConversionOpinion]]] = {
    "QNN131": (
        lambda: ConversionOpinion(graph="m", asked="x", verdict=REFUSED),
        lambda: ConversionOpinion(graph="m", asked="x", verdict={**REFUSED, "ok": True}),
    ),
}


def test_a_refusal_is_a_warning_and_a_yes_is_a_note(
    as_expected: Callable[[str, Iterable[Finding]], None],
) -> None:
    refused, taken = (list(OPINION_RULES.run(make())) for make in CASES["QNN131"])
    as_expected("QNN131", refused)
    assert [finding.severity for finding in taken] == ["info"]
    nobody = list(OPINION_RULES.run(ConversionOpinion(graph="m", asked="", verdict={"available": False})))
    assert [finding.severity for finding in nobody] == ["warning"]


@pytest.mark.heavy
def test_the_compiler_is_asked_and_named(aimet: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    made = deploykit.package(  # type: ignore[call-arg]
        aimet / "cnn_bnfold/model.onnx",
        target="sm8650",
        sdk="2.33",
        encodings=aimet / "cnn_bnfold/w8a8.v0.6.1.encodings",
        out=tmp_path / "out",
        preflight=True,
    )
    (opinion,) = [finding for finding in made.findings if finding.code == "QNN131"]
    assert "not the SDK of the package" in opinion.message
    assert made.executed == ("preflight",)
    record = json.loads((tmp_path / "out" / "manifest.json").read_text())["record"]["preflight"]["model"]
    assert record["ok"] is True
    assert record["qairt"].startswith("2.")


def test_nobody_is_asked_unless_it_was_wanted(aimet: Path, tmp_path: Path) -> None:
    made = deploykit.package(aimet / "cnn_bnfold/model.onnx", target="sm8650", sdk="2.33", out=tmp_path / "out")
    assert made.executed == ()
