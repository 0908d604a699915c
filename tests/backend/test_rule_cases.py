"""Every registered rule, of the core and of every installed backend, has a triggering and a clean case."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from deploykit.answers.rule_pages import all_rules
from deploykit.flow.rules import CORE_REGISTRIES
from tables import each_row

TESTS = Path(__file__).parents[1]
CODE = re.compile(r"[A-Z]{2,3}\d{3}")


def load(path: Path) -> ModuleType:
    name = "cases_of_" + "_".join(path.relative_to(TESTS).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def cases() -> Mapping[str, Any]:
    """The cases of all test modules that define a ``CASES`` mapping keyed by rule code."""
    found: dict[str, Any] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if re.search(r"^CASES\b", path.read_text("utf-8"), re.MULTILINE):
            mapping = getattr(load(path), "CASES", None)
            if isinstance(mapping, Mapping):
                found |= {key: value for key, value in mapping.items() if CODE.fullmatch(str(key))}
    return found


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
