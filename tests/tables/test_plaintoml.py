from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.tables.plaintoml import parse_plain

ROOT = Path(__file__).parents[2]
DATA_FILES = sorted((ROOT / "backends").rglob("*.toml"))

PLAIN = """# a comment
schema = 1
name = "x = \\"y\\" # not a comment"
"a quoted.key#" = 1
literal = 'C:\\temp'
empty = []
long = [
    "a,]",
    "b",
]
short = [
    1
]
inline = { one = 1, "2.0" = "two", c-d = [true] }

[facts.one]
value = true
list = ["a", "b", 3, -4, 2.5, [1]]

[[row]]
a = 1

[[row.part]]
b = 2

[[row.part]]
b = 3

[[row]]
a = 4

[row.last]
c = "é"
"""


def test_the_plain_part_is_read_as_tomllib_reads_it() -> None:
    assert parse_plain(PLAIN) == tomllib.loads(PLAIN)


@pytest.mark.parametrize("path", DATA_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_data_files_come_out_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert parse_plain(text) in (None, tomllib.loads(text))


def test_most_data_files_are_plain() -> None:
    """Else the shortcut would be dead code, and queries slow."""
    plain = [path for path in DATA_FILES if parse_plain(path.read_text(encoding="utf-8")) is not None]
    assert len(plain) > 0.9 * len(DATA_FILES)


@pytest.mark.parametrize(
    "text",
    [
        'a = "x" # comment',
        "a=1",
        "  a = 1",
        "a = 1_000",
        "a = 0x10",
        "a = 01",
        "a = 1979-05-27",
        "a = {b = 1}",
        "a = { b = 1, }",
        "a = { b = 1 } # comment",
        "a = { b = 1, b = 2 }",
        "a = { b = { c = 1 } }",
        "a = { b.c = 1 }",
        "a = { b = [null] }",
        'a = { "b\\n" = 1 }',
        "a = { }",
        "a = [{ b = 1 }]",
        "a = [1, 2,]",
        "a = [\n1]",
        "a.b = 1",
        '"a\\tb" = 1',
        'a = """x"""',
        "a = '''x'''",
        'a = "\\u00e9"',
        "a = null",
        "a = [null]",
        'a = {"b": 1}',
        "a = NaN",
        "a = -Infinity",
        "a = 1\na = 2",
        "[a]\n[a]",
        "[a.b]\n[a]",
        "a = [1]\n[[a]]",
        "a = 1\n[a]",
        "[[a]]\n[a]",
        "[a]\n[[a]]",
        "[a] # comment",
        "[ a ]",
        "a = 1\r\n",
        "# \x01",
        "a =",
        "a",
        "[",
    ],
)
def test_anything_else_is_left_to_tomllib(text: str) -> None:
    assert parse_plain(text) is None


_value = st.one_of(
    st.integers(-(2**40), 2**40).map(str),
    st.sampled_from(["true", "false", "[]", "''", "1.5", "[[1], []]", "null", "[null]", "{}", "01", "1_0", "-0"]),
    st.text(max_size=8).map(json.dumps),
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(max_size=8).map(lambda text: f"'{text}'"),
    st.lists(st.text(max_size=3), max_size=3).map(json.dumps),
    st.sampled_from(['{ a = 1, "b" = "x" }', "{ a = 1, a = 2 }", '{ "a b" = 1 }', '{ "" = [1] }', "{ a = null }"]),
    st.text(max_size=4).map(lambda text: f'{{ "{text}" = 1 }}'),
    st.text(max_size=6),
)
_key = st.sampled_from(["a", "b", "c-d", "e_1", "a.b", '"q"', ""])
_line = st.one_of(
    st.tuples(_key, _value).map(" = ".join),
    st.tuples(_key, _value).map("=".join),
    _key.map(lambda key: f"[{key}]"),
    _key.map(lambda key: f"[[{key}]]"),
    st.sampled_from(["[a.b]", "[[a.b]]", "[[a.b.c]]", "# note", "", " "]),
)


@settings(deadline=None, max_examples=400)
@given(st.lists(_line, max_size=8).map("\n".join))
def test_it_never_reads_what_tomllib_reads_differently_or_refuses(text: str) -> None:
    found = parse_plain(text)
    if found is not None:
        assert found == tomllib.loads(text)
