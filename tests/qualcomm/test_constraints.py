"""The table of constraints: every row is looked for by a rule that exists, a wrong row is answered with its place."""

from __future__ import annotations

import re

import pytest

from deploykit.answers.rule_pages import all_rules
from deploykit.errors import InputError
from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.flow.rules import CORE_REGISTRIES
from deploykit.tables.reading import structure
from deploykit_qualcomm.rules.constraints import ConstraintTable, constraint, constraints, rated
from deploykit_qualcomm.rules.registries import PROVIDER


def test_every_row_is_looked_for() -> None:
    """Those of the provider by its own rules; sources are spelled out."""
    codes = {entry.rule.code for entry in all_rules(CORE_REGISTRIES)}
    provider = {rule.code for registry in PROVIDER for rule in registry}
    assert len(constraints().constraint) == 31
    for row in constraints().constraint:
        assert row.rules and row.source and set(row.rules) <= (provider if row.ep_limit else codes), row.id
        assert not [text for text in row.source if re.match(r"(ET|ORT|USER|ZIMG|V73LAB|SKILL|TOOLS)\b", text)]


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"chek": "y"}, "constraint[0].chek: unknown key"),
        ({"severity": "fatal", "rules": [], "source": [], "confidence": "reported"}, "constraint[0].severity"),
        ({}, "constraint[0].source: missing"),
    ],
)
def test_a_wrong_row_is_answered_with_its_place(more: dict[str, object], where: str) -> None:
    row = {"id": "x", **({} if "chek" in more else {"check": "y"}), **more}
    with pytest.raises(InputError) as caught:
        structure(ConstraintTable, {"schema": 1, "constraint": [row]}, where="constraints.toml")
    assert where in caught.value.what


def test_what_the_core_finds_is_as_severe_as_the_table_says() -> None:
    def found(code: str, severity: Severity) -> Finding:
        subject = Subject(kind=SubjectKind.NODE, name="n")
        return Finding(code=code, slug="s", severity=severity, subject=subject, message="m", sources=("core",))

    raised = rated(found("DK003", Severity.WARNING))
    assert raised.severity is Severity.ERROR
    assert raised.sources == ("core", *constraint("no-control-flow").source)
    assert rated(found("DK001", Severity.ERROR)) == found("DK001", Severity.ERROR)
    assert rated(found("DK012", Severity.INFO)) == found("DK012", Severity.INFO), "no row speaks of it"
