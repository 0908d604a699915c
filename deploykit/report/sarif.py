"""Findings as SARIF 2.1.0, so that they show in code review; it decides nothing and writes no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deploykit.findings import Finding, Severity, SubjectKind, sort_findings
from deploykit.findings.rules import Rule
from deploykit.report.baseline import fingerprint

__all__ = ["to_sarif"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_LOGICAL = {SubjectKind.NODE: "function", SubjectKind.TENSOR: "variable", SubjectKind.MODEL: "module"}


def to_sarif(findings: Iterable[Finding], rules: Iterable[Rule[Any]], model_path: Path | str) -> dict[str, Any]:
    """One SARIF log with one run.

    ``rules`` are described in the log as far as findings name them. ``model_path`` is the file that results point to; a
    relative path stays relative, so that a review tool finds it in the repository. Handled findings are suppressed
    results. Values are JSON values.
    """
    ordered = sort_findings(findings)
    used = {finding.code for finding in ordered}
    described = sorted({rule.code: rule for rule in rules if rule.code in used}.values(), key=lambda rule: rule.code)
    path = Path(model_path)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    index = {rule.code: position for position, rule in enumerate(described)}
    return {
        "$schema": _SCHEMA,
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


def _rule(rule: Rule[Any]) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.slug.split("-")),
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": f"{rule.what} {rule.why}"},
        "help": {"text": f"{rule.why}\n\nHow to fix it: {rule.fix}\n\nSources: {'; '.join(rule.sources)}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"scope": rule.scope, "sources": list(rule.sources)},
    }


def _result(finding: Finding, index: Mapping[str, int], uri: str) -> dict[str, Any]:
    subject = finding.subject
    text = f"{finding.message}. Next: {finding.hint}" if finding.hint else finding.message
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [
            {
                # Models have no lines; review tools want one, and the first is the only one every file has.
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
