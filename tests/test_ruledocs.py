"""Pages of rules: complete, in step with the rules, and findable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploykit import ruledocs
from deploykit.errors import DefectError, UsageError
from deploykit.ruledocs import all_rules, core_registries, find_rule, rule_page, stale_pages, write_pages
from deploykit.rules import Found, Registry

DOCS = Path(__file__).parents[1] / "docs" / "rules"


def test_the_pages_in_the_repository_are_in_step_with_the_rules() -> None:
    assert stale_pages(DOCS) == (), "run: python -m deploykit.ruledocs docs/rules"


def test_writing_leaves_nothing_stale(tmp_path: Path) -> None:
    (tmp_path / "DK000.md").write_text("a rule that is gone")
    assert "DK000.md" in write_pages(tmp_path)
    assert stale_pages(tmp_path) == ()
    assert write_pages(tmp_path) == ()
    assert not (tmp_path / "DK000.md").exists()
    (tmp_path / "README.md").write_text("edited by hand")
    assert stale_pages(tmp_path) == ("README.md",)


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
            find_rule(slug)


def test_a_shared_rule_names_every_backend_that_applies_it() -> None:
    assert find_rule("QNN200").backends == ("ort-qnn", "qnn-htp")
    assert find_rule("QNN251").backends == ("ort-qnn",)
    assert find_rule("QNN240").backends == ("qnn-htp",)


def test_rules_are_found_by_code_and_slug() -> None:
    assert find_rule("qnn200").rule is find_rule("rank-above-5").rule
    with pytest.raises(UsageError) as caught:
        find_rule("rank-above-6")
    assert "rank-above-5" in caught.value.next


def test_core_registries_are_found_without_naming_them() -> None:
    codes = {rule.code for registry in core_registries() for rule in registry}
    assert {"DK001", "DK101"} <= codes
    assert all(code.startswith("DK") for code in codes)


def test_a_code_used_twice_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def registry() -> Registry[int]:
        made: Registry[int] = Registry("number")

        @made.rule("DK999", "twin", "info", what="w", why="w", fix="f", sources=["s"])
        def check(_: int) -> Iterator[Found]:
            yield from ()

        return made

    pair = (registry(), registry())
    monkeypatch.setattr(ruledocs, "core_registries", lambda: pair)
    with pytest.raises(DefectError, match="DK999"):
        all_rules()
