"""Baselines accept exactly what they name; overrides change exactly what they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.errors import InputError, PackageError, UsageError
from deploykit.findings import Finding, Severity, exit_status
from deploykit.report.for_ci import (
    apply_baseline,
    apply_severity_overrides,
    baseline_text,
    fingerprint,
    read_baseline,
    write_baseline_file,
)
from made_findings import a_finding


def write(tmp_path: Path, *findings: Finding) -> Path:
    path = tmp_path / "baseline.json"
    write_baseline_file(path, findings)
    return path


def test_accepted_findings_no_longer_block(tmp_path: Path) -> None:
    old, new = a_finding(), a_finding(name="y")
    baseline = read_baseline(write(tmp_path, old))
    first, second = apply_baseline([a_finding(message="other words"), new], baseline)
    assert first.handled == "accepted in the baseline"
    assert second.handled is None
    assert exit_status([first]) == 0
    assert exit_status([first, second]) == 1


def test_another_code_for_the_same_subject_is_not_accepted(tmp_path: Path) -> None:
    baseline = read_baseline(write(tmp_path, a_finding()))
    assert apply_baseline([a_finding(code="DK902")], baseline)[0].handled is None


def test_what_a_plan_handles_keeps_its_words(tmp_path: Path) -> None:
    baseline = read_baseline(write(tmp_path, a_finding()))
    assert apply_baseline([a_finding(handled="rewritten")], baseline)[0].handled == "rewritten"


def test_the_file_is_the_same_for_the_same_findings() -> None:
    findings = [a_finding(name="b"), a_finding(name="a"), a_finding(name="a", message="again")]
    assert baseline_text(findings) == baseline_text(reversed(findings))
    assert [row["name"] for row in json.loads(baseline_text(findings))["accepted"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "Expected a table"),
        ('{"schema": 2, "accepted": []}', "schema: 2"),
        ('{"schema": 1, "accepted": [{"code": "DK901"}]}', "accepted[0].fingerprint: missing"),
        ('{"schema": 1, "accepted": [], "ignored": []}', "ignored: unknown key"),
        ("{", "not JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_baseline(path)
    assert what in caught.value.what
    assert "baseline.json" in caught.value.what


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="gone"):
        write_baseline_file(tmp_path / "gone" / "b.json", [])


def test_overrides_by_code() -> None:
    typed = ["dk901=warning", "DK902=off"]
    changed = apply_severity_overrides([a_finding(), a_finding(code="DK902"), a_finding(code="DK903")], typed)
    assert [(one.code, one.severity) for one in changed] == [("DK901", Severity.WARNING), ("DK903", Severity.ERROR)]
    assert apply_severity_overrides([a_finding()], ["DK901=off"]) == ()


@pytest.mark.parametrize("text", ["DK901", "DK901=", "=error", "DK901=fatal", ""])
def test_overrides_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        apply_severity_overrides([], [text])


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_different_subjects_have_different_fingerprints(first: str, second: str) -> None:
    same = fingerprint(a_finding(name=first)) == fingerprint(a_finding(name=second))
    assert same == (first == second)
