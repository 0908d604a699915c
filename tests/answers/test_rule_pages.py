"""Pages of rules: complete and findable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploykit.answers.rule_pages import RuleEntry, find_rule, reserved_codes, rule_page
from deploykit.answers.rule_pages import all_rules as rules_of
from deploykit.errors import DefectError, UsageError
from deploykit.findings.rules import Found, Registry
from deploykit.flow.rules import CORE_REGISTRIES
from tables import each_row


def all_rules() -> tuple[RuleEntry, ...]:
    return rules_of(CORE_REGISTRIES)


def test_every_page_has_its_parts() -> None:
    for entry in all_rules():
        page = rule_page(entry)
        assert page.startswith(f"# {entry.rule.code}: {entry.rule.slug}\n")
        assert all(title in page for title in ("## What", "## Why it matters", "## How to fix it", "## Sources"))
        assert all(f"* {source}" in page for source in entry.rule.sources)
        assert all((entry.rule.what, entry.rule.why, entry.rule.fix))


def test_every_name_belongs_to_one_rule() -> None:
    slugs = [entry.rule.slug for entry in all_rules()]
    assert len(slugs) == len(set(slugs))
    codes = {entry.rule.code.lower() for entry in all_rules()}
    assert not codes & set(slugs)


@each_row("code", sorted(reserved_codes()))
def test_a_code_that_is_gone_answers_with_the_rule_that_took_it_over(code: str) -> None:
    known = {entry.rule.code for entry in all_rules()}
    assert code not in known, "a reserved code is never given out again"
    assert find_rule(code, all_rules()).rule.code == reserved_codes()[code] in known
    assert find_rule(code.lower(), all_rules()).rule.code == reserved_codes()[code]


@each_row(
    ("code", "backends"),
    [
        ("QNN127", ("ort-qnn", "qnn-htp")),
        ("QNN200", ("ort-qnn", "qnn-htp")),
        ("QNN251", ("ort-qnn",)),
        ("QNN240", ("qnn-htp",)),
    ],
)
def test_a_rule_names_every_backend_that_applies_it(code: str, backends: tuple[str, ...]) -> None:
    assert find_rule(code, all_rules()).backends == backends


def test_rules_are_found_by_code_and_slug() -> None:
    assert find_rule("qnn200", all_rules()).rule is find_rule("rank-above-5", all_rules()).rule
    with pytest.raises(UsageError) as caught:
        find_rule("rank-above-6", all_rules())
    assert "rank-above-5" in caught.value.next


@each_row(("code", "slug"), [("DK999", "other"), ("DK998", "twin")])
def test_a_code_or_name_used_twice_is_a_defect(code: str, slug: str) -> None:
    def registry(code: str, slug: str) -> Registry[int]:
        made: Registry[int] = Registry("number")

        @made.rule(code, slug, "info", what="w", why="w", fix="f", sources=["s"])
        def check(_: int) -> Iterator[Found]:
            yield from ()

        return made

    with pytest.raises(DefectError, match="DK999 twin"):
        rules_of((registry("DK999", "twin"), registry(code, slug)))
