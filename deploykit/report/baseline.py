"""Accepted findings and changed severities: a baseline file, and overrides as typed; it runs no rule.

A baseline names findings by code and subject, not by message, so that rewording a message accepts nothing new. An
accepted error is handled: it stays visible and no longer makes exit status 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deploykit.errors import InputError, UsageError
from deploykit.findings import Finding, Severity, sort_findings
from deploykit.tables.reading import read_json, structure

__all__ = [
    "Baseline",
    "apply_baseline",
    "apply_severity_overrides",
    "baseline_text",
    "fingerprint",
    "read_baseline",
    "write_baseline_file",
]

_SCHEMA = 1
_LIMIT = 16 << 20
_OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    fingerprint: str
    code: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The findings that were accepted, by fingerprint; the other fields are for people who read the file."""

    schema: int
    accepted: tuple[_Accepted, ...]


def fingerprint(finding: Finding) -> str:
    """Identifies a finding over time: its code and subject, as 16 hexadecimal digits."""
    text = "\n".join((finding.code, str(finding.subject.kind), finding.subject.name))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file; raises InputError with the dotted path of what is wrong."""
    baseline = structure(Baseline, read_json(path, limit=_LIMIT), where=path.name)
    if baseline.schema != _SCHEMA:
        raise InputError(f"{path}: schema: {baseline.schema} is not known", next="write it again with --write-baseline")
    return baseline


def baseline_text(findings: Iterable[Finding]) -> str:
    """A baseline file that accepts these findings: the same bytes for the same findings."""
    rows = {}
    for finding in sort_findings(findings):
        subject, mark = finding.subject, fingerprint(finding)
        rows[mark] = {"fingerprint": mark, "code": finding.code, "kind": str(subject.kind), "name": subject.name}
    return json.dumps({"schema": _SCHEMA, "accepted": list(rows.values())}, indent=1, ensure_ascii=False) + "\n"


def write_baseline_file(path: Path, findings: Iterable[Finding]) -> None:
    """Write a baseline file; InputError when the path cannot be written, or something that is none stands there."""
    if path.exists():
        try:
            read_baseline(path)
        except InputError as error:
            why = f"it is no baseline: {error.why or error.what}"
            raise InputError(f"{path}: exists and was kept", why=why, next="name another file") from None
    try:
        path.write_text(baseline_text(findings), "utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written", why=error.strerror or str(error)) from None


def apply_baseline(findings: Iterable[Finding], baseline: Baseline) -> tuple[Finding, ...]:
    """The findings, those of the baseline marked as handled; what a plan handles keeps its own words."""
    accepted = {row.fingerprint for row in baseline.accepted}
    return tuple(
        finding.with_handled("accepted in the baseline")
        if finding.handled is None and fingerprint(finding) in accepted
        else finding
        for finding in findings
    )


def apply_severity_overrides(findings: Iterable[Finding], texts: Sequence[str]) -> tuple[Finding, ...]:
    """The findings with severities changed as typed: ``CODE=error|warning|info``, or ``off``, which leaves them out."""
    wanted: dict[str, Severity | None] = {}
    for text in texts:
        code, _, word = (part.strip() for part in text.partition("="))
        if not code or word not in (*Severity, _OFF):
            raise UsageError(f"--severity {text}: not understood", next="write CODE=error, warning, info or off")
        wanted[code.upper()] = None if word == _OFF else Severity(word)
    changed = ((finding, wanted.get(finding.code, finding.severity)) for finding in findings)
    return tuple(replace(finding, severity=severity) for finding, severity in changed if severity is not None)
