"""Findings, and rules that make them."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploykit.errors import DefectError
from deploykit.findings import Finding, Severity, SubjectKind, exit_status, sort_findings, summarize
from deploykit.findings.rules import Found, Registry
from made_findings import a_finding

FINDINGS = st.builds(
    a_finding,
    severity=st.sampled_from(Severity),
    code=st.sampled_from(["DK900", "DK901"]),
    handled=st.none() | st.just("so"),
)


def test_only_an_unhandled_error_is_a_no() -> None:
    assert exit_status([a_finding()]) == 1
    assert exit_status([a_finding(handled="the plan avoids it")]) == 0
    assert exit_status([a_finding(severity=Severity.WARNING), a_finding(severity=Severity.INFO)]) == 0
    assert exit_status([]) == 0


def test_the_json_has_the_published_keys() -> None:
    keys = {"code", "slug", "severity", "subject", "message", "hint", "handled", "sources", "confidence", "evidence"}
    assert a_finding().to_json().keys() == keys
    assert a_finding().to_json()["subject"] == {"kind": "node", "name": "n"}


@given(st.lists(FINDINGS, max_size=20))
def test_sorting_keeps_everything_and_puts_blocking_errors_first(findings: list[Finding]) -> None:
    ordered = sort_findings(findings)
    assert len(ordered) == len(findings)
    blocks = [finding.blocks for finding in ordered]
    assert blocks == sorted(blocks, reverse=True)
    assert sum(summarize(findings).values()) == len(findings)
    assert sort_findings(reversed(findings)) == ordered


def registry() -> Registry[int]:
    rules: Registry[int] = Registry("number")

    @rules.rule("DK901", "odd", "warning", sources=["arithmetic"])
    def check_odd(number: int) -> Iterator[Found]:
        """An odd number.

        It is.

        Fix: add one
        """
        if number % 2:
            yield Found(kind=SubjectKind.DATA, name=str(number), message=f"{number} is odd", sources=("here",))

    return rules


def test_a_rule_stamps_what_its_function_yields() -> None:
    (finding,) = registry().run(3)
    assert (finding.code, finding.slug, finding.severity) == ("DK901", "odd", Severity.WARNING)
    assert finding.hint == "add one" and finding.sources == ("arithmetic", "here")
    assert registry().run(4) == ()


@pytest.mark.parametrize(("code", "slug"), [("DK901", "other"), ("DK902", "odd")])
def test_codes_and_slugs_are_never_used_twice(code: str, slug: str) -> None:
    rules = registry()
    with pytest.raises(DefectError, match="taken"):
        rules.rule(code, slug, "error", sources=["s"])(lambda number: ())


def test_a_rule_without_a_source_is_refused() -> None:
    with pytest.raises(DefectError, match="no source"):
        registry().rule("DK903", "new", "error", sources=[])(lambda number: ())
