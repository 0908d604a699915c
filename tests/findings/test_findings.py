"""Findings, and rules that make them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deploykit.errors import DefectError
from deploykit.findings import (
    Answerer,
    Claim,
    Confidence,
    Finding,
    Severity,
    Subject,
    SubjectKind,
    exit_status,
    group_findings,
    headline,
    listed,
    sort_findings,
    summarize,
)
from deploykit.findings.rules import Found, Registry
from made_findings import a_finding
from tables import each_row
from told import check_told

FINDINGS = st.builds(
    a_finding,
    severity=st.sampled_from(Severity),
    code=st.sampled_from(["DK900", "DK901"]),
    handled=st.none() | st.just("so"),
)


def told(name: str, **changed: Any) -> Finding:
    return a_finding(name=name, message=f"{name} is odd", **changed)


MANY = (
    *(told(name, severity=Severity.WARNING) for name in ("b", "a", "b", "c", "d", "e")),
    *(told("f", severity=severity, handled="so") for severity in Severity),
    *(told("g", severity=severity, code="DK902") for severity in Severity),
    *(told("h", severity=Severity.INFO, code="DK900"), told("h", severity=Severity.INFO, code="DK900")),
)


def test_findings_are_grouped_counted_and_said() -> None:
    shown: dict[str, list[str]] = {}
    for title, groups in zip(("open", "handled"), group_findings(MANY), strict=True):
        shown[title] = [
            f"{one.first.code} {one.first.severity} {one.first.message}, {one.count}, {one.others or 'alone'}; "
            f"{', '.join({found.subject.name: 0 for found in one.findings})}; status {exit_status(one.findings)}"
            for one in groups
        ]
    for title, findings in {"none": (), "all": MANY, "one": MANY[:1], "handled ones": MANY[6:9]}.items():
        shown[title] = [headline(findings), str(summarize(findings)), f"status {exit_status(findings)}"]
    shown["five, six"] = [listed("abcde"), listed("abcdef"), listed("abc", most=2), listed("")]
    claim = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.OBSERVED)
    odd: Any = {"inf": math.inf, "rows": ({"nan": math.nan}, -math.inf, 1.5), "text": "t"}
    whole = a_finding(evidence=odd, claim=claim, sources=("s",), hint="h").with_handled("so")
    shown["published"] = json.dumps(whole.to_json(), indent=1).splitlines()
    shown["ranks"] = [f"{word} {word.rank}" for words in (Severity, Confidence) for word in words]
    check_told(Path(__file__).with_name("findings.told"), shown)


@given(st.lists(FINDINGS, max_size=20))
def test_sorting_keeps_everything_and_puts_blocking_errors_first(findings: list[Finding]) -> None:
    ordered = sort_findings(findings)
    assert len(ordered) == len(findings)
    blocks = [finding.blocks for finding in ordered]
    assert blocks == sorted(blocks, reverse=True)
    assert sum(summarize(findings).values()) == len(findings)
    assert sort_findings(reversed(findings)) == ordered


CLAIM = Claim(answered_by=Answerer.TOOLS, confidence=Confidence.INFERRED)


def registry() -> Registry[int]:
    rules: Registry[int] = Registry("number", sources=["arithmetic"])

    @rules.rule("DK902", "even", "error", sources=["a book"], claim=CLAIM, cure="halve")
    def check_even(number: int) -> Iterator[Found]:
        """An even number.

        It is even.

        Fix: add
        one.
        """
        more: dict[str, Any] = {"hint": "no more.", "handled": "so", "severity": Severity.INFO, "by_trial": False}
        for found in ({}, more | {"cure": ()}, {"claim": replace(CLAIM, seen_with="2")}):
            if not number % 2:
                yield Found(SubjectKind.DATA, str(number), "it is even.", sources=("a book", "here"), **found)

    @rules.rule("DK901", "odd", "warning", cure=("add", "take"))
    def check_odd(number: int) -> Iterator[Found]:
        """An odd number.

        It is.

        Fix: add one
        """
        if number % 2:
            yield Found(SubjectKind.DATA, str(number), f"{number} is odd", evidence={"n": number}, claim=CLAIM)

    return rules


def test_a_rule_stamps_what_its_function_yields() -> None:
    rules = registry()
    odd = Finding(
        code="DK901",
        slug="odd",
        severity=Severity.WARNING,
        subject=Subject(kind=SubjectKind.DATA, name="3"),
        message="3 is odd",
        hint="add one",
        sources=("arithmetic",),
        evidence={"n": 3},
        cure=("add", "take"),
    )
    even = replace(
        odd,
        code="DK902",
        slug="even",
        severity=Severity.ERROR,
        subject=replace(odd.subject, name="4"),
        message="it is even",
        hint="add one",
        sources=("a book", "here"),
        evidence={},
        claim=CLAIM,
        cure=("halve",),
    )
    other = replace(even, hint="no more", handled="so", severity=Severity.INFO, claim=None, cure=())
    assert rules.run(3) == tuple(rules["DK901"].run(3)) == (odd,)
    assert rules.run(4) == (even, other, replace(even, claim=replace(CLAIM, seen_with="2")))
    assert [(rule.code, rule.what, rule.why, rule.fix) for rule in rules] == [
        ("DK901", "An odd number.", "It is.", "add one"),
        ("DK902", "An even number.", "It is even.", "add one."),
    ]
    assert len(rules) == 2


def odd_page(_: int) -> tuple[()]:
    """A rule.

    Repair: nothing
    """
    return ()


def without_fix(_: int) -> tuple[()]:
    """A rule.

    It is.

    Repair: nothing
    """
    return ()


@each_row(
    ("code", "slug", "sources", "check", "why"),
    ("DK901", "other", ["s"], len, "taken"),
    ("DK903", "odd", ["s"], len, "taken"),
    ("DK903", "new", ["s"], odd_page, "docstring"),
    ("DK903", "new", ["s"], without_fix, "docstring"),
)
def test_a_rule_that_is_not_in_order_is_a_defect(
    code: str, slug: str, sources: list[str], check: Any, why: str
) -> None:
    with pytest.raises(DefectError, match=f"^rule {code} {slug}: .*{why}"):
        registry().rule(code, slug, "error", sources=sources)(check)
    with pytest.raises(DefectError, match="no source"):
        Registry[int]("number").rule("DK903", "new", "error")(lambda number: ())
