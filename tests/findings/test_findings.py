from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploykit.findings import Finding, Severity, exit_status, sort_findings, summarize
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
