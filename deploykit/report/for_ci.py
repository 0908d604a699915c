"""Files for continuous integration: accepted findings and changed severities, SARIF 2.1.0, JUnit XML.

A baseline identifies findings by code and subject, not by message, so that a reworded message accepts nothing new. An
accepted error counts as handled: it stays visible and no longer causes exit status 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote
from xml.etree import ElementTree

from deploykit.errors import InputError, UsageError
from deploykit.findings import Finding, Findings, Severity, SubjectKind, sort_findings
from deploykit.findings.records import Json, Record, replace
from deploykit.findings.rules import Rule
from deploykit.system.files import write_files
from deploykit.tables.reading import read_json, structure

__all__ = [
    "JUnitCase",
    "apply_baseline",
    "apply_severity_overrides",
    "junit_text",
    "read_baseline",
    "run_cases",
    "to_sarif",
    "write_baseline_file",
]

_SCHEMA = 1
_LIMIT = 16 << 20
_OFF = "off"


class _Accepted(Record):
    fingerprint: str
    code: str
    kind: str
    name: str


class Baseline(Record):
    """The accepted findings by fingerprint; the other fields are for people who read the file."""

    schema: int
    accepted: tuple[_Accepted, ...]


def fingerprint(finding: Finding) -> str:
    """Identifies a finding over time: a hash of its code and subject, as 16 hexadecimal digits."""
    text = "\n".join((finding.code, str(finding.subject.kind), finding.subject.name))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_baseline(path: Path) -> Baseline:
    """Reads a baseline file. Raises InputError with the dotted path of the fault."""
    baseline = structure(Baseline, read_json(path, limit=_LIMIT), where=path.name)
    if baseline.schema != _SCHEMA:
        raise InputError(f"{path}: schema: {baseline.schema} is not known", next="write it again with --write-baseline")
    return baseline


def write_baseline_file(path: Path, findings: Iterable[Finding]) -> None:
    """Writes a baseline that accepts these findings: the same bytes for the same findings.

    Raises PackageError if it cannot be written, InputError if another kind of file is there.
    """
    if path.exists():
        try:
            read_baseline(path)
        except InputError as error:
            why = f"it is no baseline: {error.why or error.what}"
            raise InputError(f"{path}: exists and was kept", why=why, next="name another file") from None
    rows = {}
    for finding in sort_findings(findings):
        subject, mark = finding.subject, fingerprint(finding)
        rows[mark] = {"fingerprint": mark, "code": finding.code, "kind": str(subject.kind), "name": subject.name}
    accepted = {"schema": _SCHEMA, "accepted": [*rows.values()]}
    write_files({path: json.dumps(accepted, indent=1, ensure_ascii=False) + "\n"}, force=True)


def apply_baseline(findings: Iterable[Finding], baseline: Baseline) -> Findings:
    """The findings, with those in the baseline marked as handled; findings that a plan handles keep their words."""
    accepted = {row.fingerprint for row in baseline.accepted}
    return tuple(
        finding.with_handled("accepted in the baseline")
        if finding.handled is None and fingerprint(finding) in accepted
        else finding
        for finding in findings
    )


def apply_severity_overrides(findings: Iterable[Finding], texts: Sequence[str]) -> Findings:
    """The findings with severities changed as typed: ``CODE=error|warning|info``, or ``off`` to leave them out."""
    wanted = dict[str, Severity | None]()
    for text in texts:
        code, _, word = (part.strip() for part in text.partition("="))
        if not code or word not in (*Severity, _OFF):
            raise UsageError(f"--severity {text}: not understood", next="write CODE=error, warning, info or off")
        wanted[code.upper()] = None if word == _OFF else Severity(word)
    changed = ((finding, wanted.get(finding.code, finding.severity)) for finding in findings)
    return tuple(replace(finding, severity=severity) for finding, severity in changed if severity is not None)


_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_LOGICAL = {SubjectKind.NODE: "function", SubjectKind.TENSOR: "variable", SubjectKind.MODEL: "module"}


def to_sarif(findings: Iterable[Finding], rules: Iterable[Rule[Any]], model_path: Path | str) -> Json:
    """One SARIF log with one run.

    The log describes those of the ``rules`` that findings name. ``model_path`` is the file that results point to; a
    relative path stays relative, so that a review tool finds it in the repository. Handled findings are suppressed
    results. All values are JSON.
    """
    ordered = sort_findings(findings)
    used = {finding.code for finding in ordered}
    described = sorted({rule.code: rule for rule in rules if rule.code in used}.values(), key=lambda rule: rule.code)
    path = Path(model_path)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    index = {rule.code: position for position, rule in enumerate(described)}
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "deploykit",
                        "version": version("deploykit"),
                        "semanticVersion": version("deploykit"),
                        "rules": [_rule(rule) for rule in described],
                    }
                },
                "results": [_result(finding, index, uri) for finding in ordered],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }


def _rule(rule: Rule[Any]) -> Json:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.slug.split("-")),
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": f"{rule.what} {rule.why}"},
        "help": {"text": f"{rule.why}\n\nHow to fix it: {rule.fix}\n\nSources: {'; '.join(rule.sources)}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"scope": rule.scope, "sources": list(rule.sources)},
    }


def _result(finding: Finding, index: Mapping[str, int], uri: str) -> Json:
    subject = finding.subject
    text = f"{finding.message}. Next: {finding.hint}" if finding.hint else finding.message
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [
            {
                # Models have no lines; review tools need one, and every file has the first.
                "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}},
                "logicalLocations": [{"name": subject.name, "kind": _LOGICAL.get(subject.kind, "resource")}],
            }
        ],
        "partialFingerprints": {"deploykit/v1": fingerprint(finding)},
        "properties": {"slug": finding.slug, "sources": list(finding.sources), "evidence": dict(finding.evidence)},
    }
    if finding.code in index:
        result["ruleIndex"] = index[finding.code]
    if finding.handled is not None:
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": finding.handled}]
    return result


class JUnitCase(Record):
    """One test case, with a ``message``.

    ``failure`` means "no", ``error`` no answer, ``skipped`` not run; "" passed.
    """

    name: str
    kind: Literal["", "failure", "error", "skipped"] = ""
    message: str
    text: str = ""
    seconds: float | None = None


def junit_text(name: str, suites: Mapping[str, Sequence[JUnitCase]]) -> str:
    """The whole JUnit document."""
    top = ElementTree.Element("testsuites", name=_clean(name))
    for title, cases in suites.items():
        suite = ElementTree.SubElement(top, "testsuite", name=_clean(title), tests=str(len(cases)))
        for case in cases:
            row = ElementTree.SubElement(suite, "testcase", classname=_clean(title), name=_clean(case.name))
            if case.seconds is not None:
                row.set("time", f"{case.seconds:.6g}")
            if case.kind:
                ElementTree.SubElement(row, case.kind, message=_clean(case.message)).text = _clean(case.text) or None
            elif case.message:
                ElementTree.SubElement(row, "system-out").text = _clean(case.message)
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(kind, str(sum(case.kind == tag for case in cases)))
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """The text with a space for each control character that XML 1.0 cannot hold."""
    return "".join(letter if letter >= " " or letter in "\t\n" else " " for letter in text)


def run_cases(record: Json) -> tuple[JUnitCase, ...]:
    """The test cases of one run on a device, from the JSON of ``deploykit run``: right, latency, and budget."""
    if "right" not in record:
        told = f"the program on the device failed (status {record.get('status')})"
        return (JUnitCase(name="run", kind="error", message=told, text="\n".join(record.get("log", ()))),)
    state, latency = str(record.get("right", {}).get("right", "")), record.get("latency") or {}
    kinds: dict[str, Literal["", "failure", "skipped"]] = {"yes": "", "no": "failure"}
    told = f"{record.get('where')}: right: {state or 'not judged'}"
    cases = [JUnitCase(name="right", kind=kinds.get(state, "skipped"), message=told)]
    if latency:
        line = f"median {latency['median_us']:g} us, p90 {latency['p90_us']:g} us, {latency['count']} samples"
        cases.append(JUnitCase(name="latency", seconds=latency["median_us"] / 1e6, message=line))
    budget: Json | None = record.get("budget")
    if budget is not None:
        limit = f"p90 {latency.get('p90_us', 0):g} us, at most {budget['p90_us']:g} us were allowed"
        cases.append(JUnitCase(name="budget", kind="" if budget["held"] else "failure", message=limit))
    return tuple(cases)
