"""SARIF, and baselines of findings that are known."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from deploykit.answers.rule_pages import all_rules
from deploykit.findings import Finding, Severity, exit_status
from deploykit.flow.rules import core_registries
from deploykit.report.for_ci import apply_baseline, read_baseline, to_sarif, write_baseline_file
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
    assert exit_status([first]) == 0 and exit_status([first, second]) == 1
    assert apply_baseline([a_finding(code="DK902")], baseline)[0].handled is None
    assert apply_baseline([a_finding(handled="rewritten")], baseline)[0].handled == "rewritten"
