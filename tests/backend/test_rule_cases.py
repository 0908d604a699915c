"""Every registered rule, of the core and of every installed backend, has a triggering and a clean case."""

from __future__ import annotations

import tomllib
from pathlib import Path

from deploykit.answers.rule_pages import all_rules
from deploykit.flow.rules import CORE_REGISTRIES
from rule_cases import cases
from tables import each_row

TESTS = Path(__file__).parents[1]


@each_row("code", [entry.rule.code for entry in all_rules(CORE_REGISTRIES)])
def test_every_rule_has_both_cases(code: str) -> None:
    assert code in cases(), f"no test module has CASES[{code!r}]"
    assert len(cases()[code]) == 2, f"CASES[{code!r}] is not (triggering, clean)"


def test_what_every_case_finds_is_written_down() -> None:
    """Severity and subject of each finding, in ``data/rule_cases.toml``; a new case is a new line there."""
    written = set(tomllib.loads((TESTS / "data/rule_cases.toml").read_text("utf-8")))
    assert written == set(cases())


def test_no_case_belongs_to_a_rule_that_is_gone() -> None:
    assert set(cases()) <= {entry.rule.code for entry in all_rules(CORE_REGISTRIES)}


def test_there_are_at_least_sixty_rules() -> None:
    assert len(all_rules(CORE_REGISTRIES)) >= 60
