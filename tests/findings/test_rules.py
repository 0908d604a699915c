from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploykit.errors import DefectError
from deploykit.findings import Severity, SubjectKind
from deploykit.findings.rules import Found, Registry


def registry() -> Registry[int]:
    rules: Registry[int] = Registry("number")

    @rules.rule("DK901", "odd", "warning", what="an odd number", why="it is", fix="add one", sources=["arithmetic"])
    def check_odd(number: int) -> Iterator[Found]:
        if number % 2:
            yield Found(kind=SubjectKind.DATA, name=str(number), message=f"{number} is odd", sources=("here",))

    return rules


def test_a_rule_stamps_what_its_function_yields() -> None:
    (finding,) = registry().run(3)
    assert (finding.code, finding.slug, finding.severity) == ("DK901", "odd", Severity.WARNING)
    assert finding.hint == "add one"
    assert finding.sources == ("arithmetic", "here")
    assert registry().run(4) == ()


@pytest.mark.parametrize(("code", "slug"), [("DK901", "other"), ("DK902", "odd")])
def test_codes_and_slugs_are_never_used_twice(code: str, slug: str) -> None:
    rules = registry()
    with pytest.raises(DefectError, match="taken"):
        rules.rule(code, slug, "error", what="", why="", fix="", sources=["s"])(lambda number: ())


def test_a_rule_without_a_source_is_refused() -> None:
    with pytest.raises(DefectError, match="no source"):
        registry().rule("DK903", "new", "error", what="", why="", fix="", sources=[])(lambda number: ())
