"""Which findings are put to a compiler, and to whose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deploykit.backend.backend import AnyBackend, Request, SharedWork, Situation
from deploykit.backend.opinions import Compiler, Opinion, Opinions, OpinionState
from deploykit.findings import Answerer, Claim, Confidence, Finding, Severity
from deploykit.flow.plan import SECONDS, second_opinions
from deploykit.flow.read import read_situation
from made_findings import a_finding
from stub_backend import StubBackend

CNN = Path(__file__).parents[1] / "data/aimet/cnn/model.onnx"


@dataclass
class Giver(StubBackend):
    """A backend with a compiler of release 2.51."""

    id: str = "ort-qnn"
    missing: str = ""
    asked: list[str] = field(default_factory=list)

    def compilers(self, device: Any, sdk: str) -> Sequence[Compiler]:
        return [Compiler(name=f"the compiler for {device.id}", release="2.51.0", missing=self.missing)]

    def settle(self, situation: Any, findings: Sequence[Finding], **given: Any) -> Sequence[Opinion]:
        assert given["seconds"] == SECONDS
        self.asked += [finding.subject.name for finding in findings]
        return [Opinion.on(finding, OpinionState.CONFIRMED, "no") for finding in findings]


def finding(name: str, confidence: str = "reported", seen_with: str = "", by: str = "compiler") -> Finding:
    claim = Claim(answered_by=Answerer(by), confidence=Confidence(confidence), seen_with=seen_with)
    return a_finding(name=name, message=name, claim=claim)


@cache
def read(backend: str, target: str = "sm8650", sdk: str | None = None) -> tuple[AnyBackend, Situation]:
    return read_situation(Request(model=CNN, target=target, backend=backend, sdk=sdk))


def ask(
    giver: Giver, findings: list[Finding], monkeypatch: pytest.MonkeyPatch, *, backend: str = "qnn-htp", **given: Any
) -> Opinions | None:
    monkeypatch.setattr("deploykit.flow.plan.load_backends", lambda: (StubBackend(), giver))
    chosen, situation = read(backend, **given)
    return second_opinions(chosen, situation, findings, SharedWork(), lambda line: None)


@pytest.mark.parametrize(
    ("confidence", "seen_with", "is_asked"),
    [
        *((confidence, "2.51", True) for confidence in ("reported", "inferred")),
        ("observed", "2.51", False),
        ("documented", "2.52", False),
        ("documented", "2.9", True),
        *(("observed", seen_with, True) for seen_with in ("2.50", "", "an older one")),
    ],
)
def test_what_is_not_sure_or_older_is_asked(
    confidence: str, seen_with: str, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver = Giver()
    made = ask(giver, [finding("n", confidence, seen_with)], monkeypatch)
    assert giver.asked == ["n"] * is_asked and (made is not None) == is_asked


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


@dataclass
class Two(Giver):
    """A backend with the compilers of two releases, of which the nearer leaves open what is not named ``sure``."""

    def compilers(self, device: Any, sdk: str) -> Sequence[Compiler]:
        return [Compiler(name=f"QAIRT {release}", release=release) for release in ("2.36.1", "2.51.0")]

    def settle(self, situation: Any, findings: Sequence[Finding], **given: Any) -> Sequence[Opinion]:
        release = given["compiler"].release
        self.asked += [f"{release} {finding.subject.name}" for finding in findings]
        states = {"2.36.1": OpinionState.CONFIRMED, "2.51.0": OpinionState.REFUTED}
        return [
            Opinion.on(
                one, states[release] if release == "2.51.0" or one.subject.name == "sure" else OpinionState.OPEN, ""
            )
            for one in findings
        ]


def test_the_nearest_compiler_is_asked_first_and_the_next_what_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    giver, claims = Two(), [finding("sure", seen_with="2.42"), finding("unsure", seen_with="2.42")]
    made = ask(giver, claims, monkeypatch, sdk="2.33")
    assert made is not None
    assert giver.asked == ["2.36.1 sure", "2.36.1 unsure", "2.51.0 unsure"]
    sure, unsure = made.applied(claims)
    assert sure.blocks and sure.message == "sure (confirmed by QAIRT 2.36.1)"
    assert sure.claim is not None and sure.claim.seen_with == "2.36.1"
    assert not unsure.blocks and "refuted by QAIRT 2.51.0" in unsure.message
