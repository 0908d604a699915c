"""SARIF, and baselines of findings that are known."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from deploykit.answers.rule_pages import all_rules
from deploykit.findings import Finding, Severity
from deploykit.flow.rules import core_registries
from deploykit.report.for_ci import to_sarif
from made_findings import a_finding

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "sarif" / "sarif-schema-2.1.0.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


def finding(**changes: Any) -> Finding:
    told = {"severity": Severity.WARNING, "name": "/conv/Conv", "message": "it is odd", "hint": "add 1"}
    return a_finding(**{"slug": "odd-one", "sources": ("arithmetic",), "evidence": {"count": 3}, **told, **changes})


def test_every_registered_rule_can_be_described() -> None:
    rules = [entry.rule for entry in all_rules(core_registries())]
    findings = [finding(code=rule.code, slug=rule.slug, severity=rule.severity) for rule in rules]
    log = json.loads(json.dumps(to_sarif(findings, rules, "m.onnx")))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    assert len(log["runs"][0]["tool"]["driver"]["rules"]) == len(rules)
