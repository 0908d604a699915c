"""What an opinion makes of a finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploykit.backend.opinions import Compiler, Opinion, Opinions, OpinionState
from deploykit.findings import Answerer, Claim, Confidence, Severity
from made_findings import a_finding

CLAIM = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.REPORTED, seen_with="1.0")
FINDING = a_finding(message="n is not taken", hint="replace it", claim=CLAIM)


def opinions(state: OpinionState, *, unasked: str = "", missing: str = "") -> Opinions:
    compiler = Compiler(name="the compiler of 2.0", release="2.0", missing=missing)
    opinion = Opinion.on(FINDING, state, "a reason", "1 operator")
    return Opinions(compiler=compiler, opinions=(opinion,), unasked=unasked)


def test_refuted_for_the_very_release_it_is_a_note() -> None:
    (found,) = opinions(OpinionState.REFUTED).applied([FINDING])
    assert (found.severity, found.blocks, found.hint) == ("info", False, "")
    assert found.message == "n is not taken: refuted by the compiler of 2.0"
    assert found.evidence["second_opinion"]["scope"] == "1 operator"


def test_refuted_by_another_release_it_is_a_warning_that_says_so() -> None:
    (found,) = opinions(OpinionState.REFUTED, unasked="SDK 1.5").applied([FINDING])
    assert (found.severity, found.hint) == ("warning", "replace it")
    assert found.message.endswith("refuted by the compiler of 2.0; SDK 1.5 itself was not asked")


def test_confirmed_it_is_observed() -> None:
    (found,) = opinions(OpinionState.CONFIRMED).applied([FINDING])
    assert found.blocks and found.to_json()["confidence"] == "observed"
    assert found.claim is not None and found.claim.seen_with == "2.0"
    assert FINDING.to_json()["confidence"] == "reported"


def test_open_it_stays_with_the_reason() -> None:
    (found,) = opinions(OpinionState.OPEN).applied([FINDING])
    assert found.blocks and found.message == FINDING.message and found.claim == FINDING.claim
    assert found.evidence["second_opinion"]["why"] == "a reason"


@pytest.mark.parametrize("state", OpinionState)
def test_twice_is_as_good_as_once_and_nothing_else_changes(state: OpinionState) -> None:
    made = opinions(state)
    once = made.applied([FINDING])
    assert made.applied(once) == once
    for change in (
        {"claim": None},
        {"handled": "rewritten"},
        {"code": "XX002"},
        {"subject": replace(FINDING.subject, name="m")},
        {"severity": Severity.WARNING},
    ):
        other = replace(FINDING, **change)
        assert made.applied([other]) == (other,)
    assert opinions(state, missing="not installed").applied([FINDING]) == (FINDING,)
