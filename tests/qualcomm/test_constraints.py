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
from deploykit_qualcomm.rules.registries import CONVERTERS, PROVIDER, REGISTRIES, SHARED

CODES = {entry.rule.code for entry in all_rules(CORE_REGISTRIES)}


def test_every_row_is_looked_for() -> None:
    assert len(constraints().constraint) == 31
    for row in constraints().constraint:
        assert row.rules, row.id
        assert set(row.rules) <= CODES, row.id
        assert row.source, row.id


def test_limits_of_the_provider_are_looked_for_by_its_own_rules() -> None:
    provider = {rule.code for registry in PROVIDER for rule in registry}
    for row in constraints().constraint:
        if row.ep_limit:
            assert set(row.rules) <= provider, row.id


def test_sources_are_spelled_out() -> None:
    texts = [text for row in constraints().constraint for text in row.source]
    assert not [text for text in texts if re.match(r"(ET|ORT|USER|ZIMG|V73LAB|SKILL|TOOLS)\b", text)]
    assert constraint("rank-limits").confidence == "observed"


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"id": "x", "chek": "y"}, "constraint[0].chek: unknown key"),
        (
            {"id": "x", "check": "y", "severity": "fatal", "rules": [], "source": [], "confidence": "reported"},
            "constraint[0].severity",
        ),
        ({"id": "x", "check": "y"}, "constraint[0].source: missing"),
    ],
)
def test_a_wrong_row_is_answered_with_its_place(row: dict[str, object], where: str) -> None:
    with pytest.raises(InputError) as caught:
        structure(ConstraintTable, {"schema": 1, "constraint": [row]}, where="constraints.toml")
    assert where in caught.value.what


def test_codes_are_in_the_range_of_this_package() -> None:
    for registry in (*SHARED, *CONVERTERS, *PROVIDER):
        for rule in registry:
            number = int(rule.code.removeprefix("QNN"))
            assert number in (*range(1, 50), 127) or 200 <= number <= 399, rule.code
    assert {*SHARED, *CONVERTERS, *PROVIDER} == {*REGISTRIES}


def test_what_the_core_finds_is_as_severe_as_the_table_says() -> None:
    def found(code: str, severity: Severity) -> Finding:
        subject = Subject(kind=SubjectKind.NODE, name="n")
        return Finding(code=code, slug="s", severity=severity, subject=subject, message="m", sources=("core",))

    raised = rated(found("DK003", Severity.WARNING))
    assert raised.severity is Severity.ERROR
    assert raised.sources == ("core", *constraint("no-control-flow").source)
    assert rated(found("DK001", Severity.ERROR)) == found("DK001", Severity.ERROR)
    assert rated(found("DK012", Severity.INFO)) == found("DK012", Severity.INFO), "no row speaks of it"


def test_importing_the_registries_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import deploykit_qualcomm.rules.registries;"
        "from deploykit_qualcomm.known_errors import known_errors; known_errors();"
        "sys.exit(' '.join({'onnx', 'onnxruntime', 'numpy'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert ran.stderr.strip() == ""
