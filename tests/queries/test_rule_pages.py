"""Pages of rules: complete, in step with the rules, and findable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploykit.deciding.rules import CORE_REGISTRIES
from deploykit.errors import DefectError, UsageError
from deploykit.queries.rule_pages import RuleEntry, find_rule, rule_page, stale_pages, write_pages
from deploykit.queries.rule_pages import all_rules as rules_of
from deploykit.rules import Found, Registry

CORE = Path(__file__).parents[2] / "deploykit"
DOCS = Path(__file__).parents[2] / "docs" / "rules"


def all_rules() -> tuple[RuleEntry, ...]:
    return rules_of(CORE_REGISTRIES)


def test_the_pages_in_the_repository_are_in_step_with_the_rules() -> None:
    assert stale_pages(DOCS, all_rules()) == (), "run: deploykit rule --write docs/rules"


def test_writing_leaves_nothing_stale(tmp_path: Path) -> None:
    (tmp_path / "DK000.md").write_text("a rule that is gone")
    assert "DK000.md" in write_pages(tmp_path, all_rules())
    assert stale_pages(tmp_path, all_rules()) == ()
    assert write_pages(tmp_path, all_rules()) == ()
    assert not (tmp_path / "DK000.md").exists()
    (tmp_path / "README.md").write_text("edited by hand")
    assert stale_pages(tmp_path, all_rules()) == ("README.md",)


def test_every_page_has_its_parts() -> None:
    for entry in all_rules():
        page = rule_page(entry)
        assert page.startswith(f"# {entry.rule.code}: {entry.rule.slug}\n")
        assert all(title in page for title in ("## What", "## Why it matters", "## How to fix it", "## Sources"))
        assert all(f"* {source}" in page for source in entry.rule.sources)
        assert all((entry.rule.what, entry.rule.why, entry.rule.fix))


def test_a_name_that_two_rules_share_is_answered_with_their_codes() -> None:
    slugs = [entry.rule.slug for entry in all_rules()]
    shared = sorted({slug for slug in slugs if slugs.count(slug) > 1})
    for slug in shared:
        with pytest.raises(UsageError, match="are called"):
            find_rule(slug, all_rules())


def test_a_shared_rule_names_every_backend_that_applies_it() -> None:
    assert find_rule("QNN200", all_rules()).backends == ("ort-qnn", "qnn-htp")
    assert find_rule("QNN251", all_rules()).backends == ("ort-qnn",)
    assert find_rule("QNN240", all_rules()).backends == ("qnn-htp",)


def test_rules_are_found_by_code_and_slug() -> None:
    assert find_rule("qnn200", all_rules()).rule is find_rule("rank-above-5", all_rules()).rule
    with pytest.raises(UsageError) as caught:
        find_rule("rank-above-6", all_rules())
    assert "rank-above-5" in caught.value.next


def test_every_registry_of_the_core_is_listed() -> None:
    made = [line for path in sorted(CORE.rglob("*.py")) for line in path.read_text("utf-8").splitlines()]
    assert sum("] = Registry(" in line for line in made) == len(CORE_REGISTRIES)
    codes = {rule.code for registry in CORE_REGISTRIES for rule in registry}
    assert {"DK001", "DK101", "DK201"} <= codes
    assert all(code.startswith("DK") for code in codes)


def test_a_code_used_twice_is_a_defect() -> None:
    def registry() -> Registry[int]:
        made: Registry[int] = Registry("number")

        @made.rule("DK999", "twin", "info", what="w", why="w", fix="f", sources=["s"])
        def check(_: int) -> Iterator[Found]:
            yield from ()

        return made

    with pytest.raises(DefectError, match="DK999"):
        rules_of((registry(), registry()))
