"""Which findings are put to a compiler, and to whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploykit.contract.backend import AnyBackend, Request, Situation
from deploykit.contract.kept import Kept
from deploykit.contract.opinions import Compiler, Opinion, Opinions, OpinionState
from deploykit.deciding import opinions
from deploykit.deciding.reading import read_situation
from deploykit.findings import Answerer, Claim, Confidence, Finding, Severity, Subject, SubjectKind

CNN = Path(__file__).parents[1] / "data/aimet/cnn/model.onnx"


@dataclass
class Giver:
    """A backend with a compiler of release 2.51."""

    id: str = "ort-qnn"
    missing: str = ""
    asked: list[str] = field(default_factory=list)

    def compiler(self, device: Any) -> Compiler:
        return Compiler(name=f"the compiler for {device.id}", release="2.51.0", missing=self.missing)

    def settle(self, situation: Any, findings: Sequence[Finding], **given: Any) -> Sequence[Opinion]:
        assert given["seconds"] == opinions.SECONDS
        self.asked += [finding.subject.name for finding in findings]
        return [Opinion.on(finding, OpinionState.CONFIRMED, "no") for finding in findings]


def finding(name: str, confidence: str = "reported", seen_with: str = "", by: str = "compiler") -> Finding:
    claim = Claim(answered_by=Answerer(by), confidence=Confidence(confidence), seen_with=seen_with)
    subject = Subject(kind=SubjectKind.NODE, name=name)
    return Finding(code="XX001", slug="x", severity=Severity.ERROR, subject=subject, message=name, claim=claim)


@cache
def read(backend: str, target: str = "sm8650", sdk: str | None = None) -> tuple[AnyBackend, Situation]:
    return read_situation(Request(model=CNN, target=target, backend=backend, sdk=sdk))


def ask(
    giver: Giver, findings: list[Finding], monkeypatch: pytest.MonkeyPatch, *, backend: str = "qnn-htp", **given: Any
) -> Opinions | None:
    monkeypatch.setattr(opinions, "load_backends", lambda: (object(), giver))
    chosen, situation = read(backend, **given)
    return opinions.second_opinions(chosen, situation, findings, Kept(), lambda line: None)


@pytest.mark.parametrize(
    ("confidence", "seen_with", "is_asked"),
    [
        ("reported", "2.51", True),
        ("inferred", "2.51", True),
        ("observed", "2.51", False),
        ("documented", "2.52", False),
        ("observed", "2.50", True),
        ("documented", "2.9", True),
        ("observed", "", True),
        ("observed", "an older one", True),
    ],
)
def test_what_is_not_sure_or_older_is_asked(
    confidence: str, seen_with: str, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver = Giver()
    made = ask(giver, [finding("n", confidence, seen_with)], monkeypatch)
    assert giver.asked == ["n"] * is_asked
    assert (made is not None) == is_asked


def test_what_does_not_refuse_or_claims_nothing_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        replace(finding("no claim"), claim=None),
        replace(finding("handled"), handled="rewritten"),
        replace(finding("a warning"), severity=Severity.WARNING),
    ]
    giver = Giver()
    assert ask(giver, others, monkeypatch) is None
    ask(giver, [*others, finding("a claim")], monkeypatch)
    assert giver.asked == ["a claim"]


def test_what_only_the_tools_can_tell_is_asked_of_their_own_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    giver, claims = Giver(), [finding("of tools", by="tools"), finding("of the compiler")]
    ask(giver, claims, monkeypatch, backend="qnn-htp")
    assert giver.asked == ["of the compiler"]
    ask(giver, claims, monkeypatch, backend="ort-qnn")
    assert giver.asked == ["of the compiler", "of tools", "of the compiler"]


def test_no_other_devices_compiler_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    giver = Giver()
    assert ask(giver, [finding("n")], monkeypatch, backend="vitis-ai", target="strix") is None
    assert giver.asked == []


def test_where_nobody_can_be_asked_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    giver = Giver(missing="it is not installed")
    made = ask(giver, [finding("n")], monkeypatch)
    assert made is not None and made.compiler.missing == "it is not installed" and giver.asked == []
    assert [(opinion.subject, opinion.state) for opinion in made.opinions] == [("n", "open")]


def test_the_sdk_that_was_not_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    older = ask(Giver(), [finding("n")], monkeypatch, sdk="2.33")
    same = ask(Giver(), [finding("n")], monkeypatch, backend="ort-qnn")
    assert older is not None and "2.33" in older.unasked
    assert same is not None and same.unasked == ""
