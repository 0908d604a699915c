"""Files of known errors: what is wrong with one is answered with its place, what is right fits the JSON schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.backend.plugins import catalog_of
from deploykit.errors import InputError
from deploykit.tables.known_errors import (
    Catalog,
    general_errors,
    load_catalog,
    merge_catalogs,
    search_errors,
)
from stub_backend import StubBackend
from tables import each_row

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


def test_short_source_keys_are_spelled_out(tmp_path: Path) -> None:
    path = write(tmp_path, f'schema = 1\n[sources]\nKEY = "the manual"\n{ROW}')
    assert load_catalog([path]).errors[0].source == ("the manual: page 3", "elsewhere")


@each_row(
    ("text", "where"),
    [
        (ROW.replace("cause", "couse"), "errors.toml: error[0].couse: unknown key"),
        (ROW.replace('"reported"', '"certain"'), "errors.toml: error[0].confidence"),
        (ROW.replace('workaround = "w"', ""), "errors.toml: error[0].workaround: missing"),
        (ROW + 'severity = "fatal"', "errors.toml: error[0].severity"),
        (ROW + 'weak = ["it broke"]', "errors.toml: error[0]: weak fragments need tools"),
        (ROW.replace('"something broke"', '"abc"'), "errors.toml: error[0]: a fragment is shorter"),
        (ROW.replace('["something broke"]', "[]"), "errors.toml: error[0]: neither match nor symptom"),
        (ROW + 'codes = ["0xc26"]', "errors.toml: error[0].codes[0]"),
        (ROW + ROW, "'x' occurs twice"),
    ],
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


def test_merging_keeps_shared_rows_once_and_searching_takes_every_word(tmp_path: Path) -> None:
    one = load_catalog([write(tmp_path, f"schema = 1\n{ROW}")])
    other = load_catalog([write(tmp_path, "schema = 1\n" + ROW.replace('"x"', '"y"'), "other.toml")])
    assert [row.id for row in merge_catalogs([one, other, one]).errors] == ["x", "y"]
    assert search_errors(one, "BROKE something") and search_errors(one, "")
    assert not search_errors(one, "broke otherwise")
