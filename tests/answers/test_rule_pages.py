"""Pages of rules and options, the catalog of codes, and what each finding stands for."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit import check
from deploykit.answers.rule_pages import RuleEntry, rule_page
from deploykit.answers.rule_pages import all_rules as rules_of
from deploykit.backend.options import OptionSpec
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.errors import DefectError, InputError
from deploykit.findings import Finding
from deploykit.findings.rules import Found, Registry
from deploykit.flow.rules import core_registries
from deploykit.tables.known_errors import Catalog, general_errors, load_catalog
from reference import option_page, pages
from stub_backend import StubBackend
from tables import each_row


def all_rules() -> tuple[RuleEntry, ...]:
    return rules_of(core_registries())


def test_every_page_has_its_parts() -> None:
    for entry in all_rules():
        page = rule_page(entry)
        assert page.startswith(f"# {entry.rule.code}: {entry.rule.slug}\n")
        assert all(title in page for title in ("## What", "## Why it matters", "## How to fix it", "## Sources"))
        assert all(f"* {source}" in page for source in entry.rule.sources)
        assert all((entry.rule.what, entry.rule.why, entry.rule.fix))


@each_row(("code", "slug"), ("DK999", "other"), ("DK998", "twin"))
def test_a_code_or_name_used_twice_is_a_defect(code: str, slug: str) -> None:
    def registry(code: str, slug: str) -> Registry[int]:
        made: Registry[int] = Registry("number")

        @made.rule(code, slug, "info", sources=["s"])
        def check(_: int) -> Iterator[Found]:
            yield from ()

        return made

    with pytest.raises(DefectError, match="DK999 twin"):
        rules_of((registry("DK999", "twin"), registry(code, slug)))


def test_a_shared_option_names_both_owners() -> None:
    spec = OptionSpec(name="depth", kind="choice", choices=("a", "b|c"), help="How deep.", since="2.40")
    page = option_page({spec: ("one", "two")})
    assert "## Options of one and two" in page
    assert "| `--depth` | `depth` | one of a, b\\|c | – | How deep. Since 2.40. |" in page


def test_a_rule_is_found_by_the_words_of_what_it_says() -> None:
    """The site's search knows the pages' words; names of the user's are in none of them."""
    data, told = Path(__file__).parents[1] / "data/aimet", pages()
    asked = (("vit/w8a16", "sa8775p", "2.41"), ("cnn/w8a16", "vek385", None))
    found: list[Finding] = []
    for name, target, sdk in asked:
        encodings = data / f"{name}.v1.0.0.encodings"
        found += check(encodings.with_name("model.onnx"), target=target, sdk=sdk, encodings=encodings)
    assert len({finding.code for finding in found}) > 1
    for finding in found:
        page = told[f"reference/rules/{finding.code}.md"]
        words = [word.strip(",:;()") for word in finding.message.split() if word.islower() and len(word) > 4]
        assert sum(word in page for word in words) >= 0.7 * len(words), (finding.code, finding.message)


ROW = """
[[error]]
id = "x"
match = ["something broke"]
cause = "c"
workaround = "w"
source = ["KEY: page 3", "elsewhere"]
confidence = "reported"
"""


def write(tmp_path: Path, text: str, name: str = "errors.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@each_row(
    ("text", "where"),
    (ROW.replace("cause", "couse"), "errors.toml: error[0].couse: unknown key"),
    (ROW.replace('"reported"', '"certain"'), "errors.toml: error[0].confidence"),
    (ROW.replace('workaround = "w"', ""), "errors.toml: error[0].workaround: missing"),
    (ROW + 'severity = "fatal"', "errors.toml: error[0].severity"),
    (ROW + 'weak = ["it broke"]', "errors.toml: error[0]: weak fragments need tools"),
    (ROW.replace('"something broke"', '"abc"'), "errors.toml: error[0]: a fragment is shorter"),
    (ROW.replace('["something broke"]', "[]"), "errors.toml: error[0]: neither match nor symptom"),
    (ROW + 'codes = ["0xc26"]', "errors.toml: error[0].codes[0]"),
    (ROW + ROW, "'x' occurs twice"),
)
def test_a_wrong_row_is_answered_with_its_place(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        load_catalog([write(tmp_path, f"schema = 1\n{text}")])
    assert where in caught.value.what
    with pytest.raises(InputError, match="schema"):
        load_catalog([write(tmp_path, "schema = 2")])


def test_backends_are_asked_only_when_they_know_something(tmp_path: Path) -> None:
    catalog = load_catalog([write(tmp_path, f"schema = 1\n{ROW}")])

    class Knows(StubBackend):
        def known_errors(self) -> Catalog:
            return catalog

    assert catalog_of([Knows(), StubBackend(), Knows()]).errors == (*general_errors().errors, *catalog.errors)


PAGE = Path(__file__).parents[2] / "tests/data/compat_words.md"
SECTIONS = dict(part.partition("\n")[::2] for part in PAGE.read_text("utf-8").split("\n## ")[1:])


def words(section: str) -> list[str]:
    return re.findall(r"`([^`]+)`", SECTIONS[section])


def names(row: Any, word: str) -> bool:
    """True where an answer speaks of the word, and not of a longer one that it is a part of (``mAP``: mapped)."""
    told = " ".join((row.feature, *row.words, row.note, row.contradicts))
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", told, re.IGNORECASE) is not None


@pytest.fixture(scope="module", autouse=True)
def rows_made_once() -> Iterator[None]:
    """The rows of a backend are the same for every word, and making them takes a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        for backend in load_backends():
            rows = tuple(backend.compat())
            patch.setattr(type(backend), "compat", lambda self, rows=rows: rows)
        yield


EVERY = [pytest.param(1, marks=pytest.mark.heavy, id="all"), pytest.param(12, id="some")]


@pytest.mark.parametrize("step", EVERY)
def test_every_word_has_a_sourced_answer(step: int) -> None:
    found = [word for section in SECTIONS for word in words(section)]
    assert len(found) > 100
    for word in found[::step]:
        rows = deploykit.compat(word).rows
        known = [row for row in rows if row.source and row.confidence is not None and row.status != "unknown"]
        assert any(names(row, word) for row in known), word
