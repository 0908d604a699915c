"""SARIF that validates against the schema of the standard, and says what the findings say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.answers.rule_pages import all_rules
from deploykit.findings import Finding, Severity, SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.flow.rules import CORE_REGISTRIES
from deploykit.report.for_ci import to_sarif
from made_findings import a_finding
from tables import each_row

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "sarif" / "sarif-schema-2.1.0.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


def registry() -> Registry[int]:
    rules: Registry[int] = Registry("number")

    @rules.rule("DK901", "odd-one", "warning", what="An odd one.", why="It is.", fix="Add 1.", sources=["arithmetic"])
    def check(_: int) -> Iterator[Found]:
        yield from ()

    return rules


def finding(**changes: Any) -> Finding:
    told = {"severity": Severity.WARNING, "name": "/conv/Conv", "message": "it is odd", "hint": "add 1"}
    return a_finding(**{"slug": "odd-one", "sources": ("arithmetic",), "evidence": {"count": 3}, **told, **changes})


def checked(findings: list[Finding], path: str = "models/a b.onnx") -> dict[str, Any]:
    log = json.loads(json.dumps(to_sarif(findings, registry(), path)))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    run: dict[str, Any] = log["runs"][0]
    return run


def test_the_schema_itself_refuses_what_is_wrong() -> None:
    log = to_sarif([finding()], registry(), "m.onnx")
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert list(VALIDATOR.iter_errors(log))


def test_a_finding_becomes_a_result() -> None:
    run = checked([finding()])
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("DK901", "warning")
    assert result["message"]["text"] == "it is odd. Next: add 1"
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "models/a%20b.onnx"
    assert location["logicalLocations"] == [{"name": "/conv/Conv", "kind": "function"}]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "DK901"
    assert run["tool"]["driver"]["rules"][0]["name"] == "OddOne"


def test_information_is_a_note_and_what_is_handled_is_suppressed() -> None:
    assert checked([finding(severity=Severity.INFO)])["results"][0]["level"] == "note"
    (result,) = checked([finding(handled="rewritten")])["results"]
    assert result["suppressions"][0]["justification"] == "rewritten"
    assert "suppressions" not in checked([finding()])["results"][0]


def test_fingerprints_do_not_depend_on_the_words() -> None:
    first, second = (checked([finding(message=text)])["results"][0] for text in ("one", "two"))
    other = checked([finding(name="other")])["results"][0]
    assert first["partialFingerprints"] == second["partialFingerprints"] != other["partialFingerprints"]


def test_a_finding_without_a_described_rule_is_valid() -> None:
    run = checked([finding(code="DK902")])
    assert run["tool"]["driver"]["rules"] == []
    assert "ruleIndex" not in run["results"][0]


def test_an_absolute_path_becomes_a_file_uri_and_no_findings_are_a_valid_log() -> None:
    (result,) = checked([finding()], "/models/m.onnx")["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///models/m.onnx"
    assert checked([])["results"] == []


def test_every_registered_rule_can_be_described() -> None:
    rules = [entry.rule for entry in all_rules(CORE_REGISTRIES)]
    findings = [finding(code=rule.code, slug=rule.slug, severity=rule.severity) for rule in rules]
    log = json.loads(json.dumps(to_sarif(findings, rules, "m.onnx")))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    assert len(log["runs"][0]["tool"]["driver"]["rules"]) == len(rules)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(SubjectKind), st.sampled_from(Severity))
def test_any_text_validates(message: str, name: str, kind: SubjectKind, severity: Severity) -> None:
    checked([finding(message=message, severity=severity, kind=kind, name=name)])


@each_row("kind", list(SubjectKind))
def test_every_kind_of_subject_has_a_place(kind: SubjectKind) -> None:
    (result,) = checked([finding(kind=kind, name="x")])["results"]
    assert result["locations"][0]["logicalLocations"][0]["name"] == "x"
