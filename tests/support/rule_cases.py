"""The triggering and the clean case of every rule: what they find, and those of all test modules (``CASES``)."""

import importlib.util
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from deploykit.findings import Finding
from sums import flat

TESTS = Path(__file__).parents[1]
EXPECTED: Mapping[str, list[str]] = tomllib.loads((TESTS / "data/rule_cases.toml").read_text("utf-8"))
"""Severity, subject, message, hint, evidence, how it is handled, who can tell and cures: all findings, by code."""
_FOLDER = re.compile(r"/\S*/(?=[^/\s])")
_CODE = re.compile(r"[A-Z]{2,3}\d{3}")


@cache
def module_at(path: str) -> ModuleType:
    """A module of the tests, by its path in their folder."""
    name = "cases_of_" + "_".join(Path(path).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def cases() -> Mapping[str, tuple[Any, Any]]:
    """By rule code: (triggering, clean), in any of the forms in which the modules have them."""
    found: dict[str, tuple[Any, Any]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if re.search(r"^CASES\b", path.read_text("utf-8"), re.MULTILINE):
            mapping = module_at(str(path.relative_to(TESTS))).CASES
            if isinstance(mapping, Mapping):
                found |= {str(code): pair for code, pair in mapping.items() if _CODE.fullmatch(str(code))}
    return found


def check_pairs(
    pairs: Mapping[str, tuple[Any, Any]],
    *registries: Iterable[Any],
    run: Callable[[str, Any], Iterable[Finding]] | None = None,
) -> None:
    """Each rule finds in its triggering case what ``EXPECTED`` says, and in its clean case nothing.

    Rules are those of the registries, or ``run`` is given a code and a case. A case may be made by a function.
    """
    rules = {rule.code: rule for registry in registries for rule in registry}
    bad = []
    for code, pair in pairs.items():
        given = [case() if callable(case) else case for case in pair if case is not None]
        triggered, *silent = (
            [f for f in (run(code, case) if run else rules[code].run(case)) if f.code == code] for case in given
        )
        said = [
            _FOLDER.sub("", f"{f.severity} {f.subject.kind} {f.subject.name}: {f.message}; next: {f.hint}")
            + f"; {flat(f.to_json()['evidence'], 3)}".removesuffix("; {}")
            + (f"; handled: {f.handled}" if f.handled else "")
            + (f"; the {f.claim.answered_by} can tell ({f.claim.confidence})" if f.claim else "")
            + (f"; cured by {', '.join(f.cure)}" if f.cure else "")
            for f in triggered
        ]
        if said != EXPECTED.get(code):
            bad.append(f"data/rule_cases.toml: {code} = {json.dumps(said, ensure_ascii=False)}")
        if any(silent) or not all(f.message and f.sources for f in triggered):
            bad.append(f"{code}: found in its clean case, or without message and sources")
    assert not bad, "\n".join(bad)
