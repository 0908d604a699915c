from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploykit.findings import Finding, Severity, Subject, SubjectKind, exit_status, sort_findings, summarize


def make(severity: Severity = Severity.ERROR, code: str = "DK900", handled: str | None = None) -> Finding:
    subject = Subject(kind=SubjectKind.MODEL, name="m")
    return Finding(code=code, slug="x", severity=severity, subject=subject, message="what", handled=handled)


FINDINGS = st.builds(
    make,
    severity=st.sampled_from(Severity),
    code=st.sampled_from(["DK900", "DK901"]),
    handled=st.none() | st.just("so"),
)


def test_only_an_unhandled_error_is_a_no() -> None:
    assert exit_status([make()]) == 1
    assert exit_status([make(handled="the plan avoids it")]) == 0
    assert exit_status([make(Severity.WARNING), make(Severity.INFO)]) == 0
    assert exit_status([]) == 0


def test_the_json_has_the_published_keys() -> None:
    keys = {"code", "slug", "severity", "subject", "message", "hint", "handled", "sources", "confidence", "evidence"}
    assert make().to_json().keys() == keys
    assert make().to_json()["subject"] == {"kind": "model", "name": "m"}


@given(st.lists(FINDINGS, max_size=20))
def test_sorting_keeps_everything_and_puts_blocking_errors_first(findings: list[Finding]) -> None:
    ordered = sort_findings(findings)
    assert len(ordered) == len(findings)
    blocks = [finding.blocks for finding in ordered]
    assert blocks == sorted(blocks, reverse=True)
    assert sum(summarize(findings).values()) == len(findings)
    assert sort_findings(reversed(findings)) == ordered
