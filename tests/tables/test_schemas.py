"""Files of rows: what their schemas take, and what is said of one that is wrong; whole answers in ``tables.told``."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from msgspec import Struct, field
from msgspec.structs import replace
from packaging.version import Version

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import (
    CompatRow,
    ConfigKey,
    Feature,
    Flag,
    SdkTable,
    Status,
    compat_row,
    release_range,
)
from deploykit.tables.known_errors import load_catalog, merge_catalogs, search_errors
from deploykit.tables.reading import parse_json, parse_rows, read_json, read_toml, schema_of, structure
from deploykit.tables.sources import read_source_file, write_out
from tables import each_row
from told import check_told


class Part(Struct, frozen=True, kw_only=True):
    """One part.

    More words.
    """

    name: str
    since: str = ""


class File(Struct, frozen=True, kw_only=True):
    """A file."""

    schema: int
    confidence: Confidence
    kind: Literal["a", "b"] = "a"
    parts: tuple[Part, ...] = ()
    values: Mapping[str, int | str] = field(default_factory=dict)
    named: Mapping[str, Part] = field(default_factory=dict)
    one: Part | None = None
    deep: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    ratio: float | None = None
    anything: Any = None


GOOD = {"schema": 1, "confidence": "observed", "kind": "b", "parts": [{"name": "x"}], "values": {"k": 1, "l": "m"}}


def test_a_schema_says_what_the_loader_accepts() -> None:
    schema = schema_of(File)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(GOOD, schema)
    structure(File, GOOD, where="file")
    assert schema["$defs"]["Part"]["description"] == "One part."


@each_row(
    "change",
    *({"confidence": "sure"}, {"kind": "c"}, {"parts": [{"title": "x"}]}, {"parts": {"name": "x"}}),
    *({"values": {"k": []}}, {"ratio": "half"}, {"schema": "1"}, {"unknown": 1}),
)
def test_both_refuse_the_same(change: dict[str, Any]) -> None:
    wrong = GOOD | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema_of(File))
    with pytest.raises(InputError):
        structure(File, wrong, where="file")


def test_what_is_missing_is_refused_by_both() -> None:
    wrong = {"schema": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema_of(File))
    with pytest.raises(InputError, match=r"file\.confidence: missing"):
        structure(File, wrong, where="file")


WRONG: Mapping[str, Any] = {
    "a key": {"unknown": 1},
    "a key of a part": {"parts": [{"name": "x"}, {"name": "y", "nam": "z"}]},
    "a key of a named part": {"named": {"a": {"name": "x"}, "b": {"title": "x"}}},
    "a key of the one part": {"one": {"name": "x", "until": ""}},
    "a type": {"kind": 3},
    "a type in a part": {"parts": [{"name": "x"}, {"name": 1}]},
    "a type under a name": {"named": {"a": {"name": "x"}, "b c": {"name": None}}},
    "a type under two names": {"deep": {"a": {"b": [1]}, "c": {"d": [1], "e": [1, 2, "3"]}}},
    "a word": {"confidence": "sure"},
    "a list that is none": {"parts": "x"},
    "a table that is none": {"one": []},
    "a part without its name": {"parts": [{"since": "1"}]},
}
JSON: Mapping[str, bytes] = {
    "good": b'{"a" : [1, {"b": ["\\":", {}]}], "c": [[], {"d": {}}, 1.5]}',
    "with a mark": b'\xef\xbb\xbf{"a": 1}',
    "twice": b'{"a": 1, "b": 2, "a": 3}',
    "twice inside": b'[{"a": {"b": 1, "b" : 2}}]',
    "no number": b'{"a": NaN}',
    "beyond numbers": b"[-Infinity]",
    "not whole": b'{"a": ',
    "no text": b'{"a": "\xff"}',
    "deep": b"[" * 100_000,
    "long": b"9" * 5000,
}
TOML: Mapping[str, bytes] = {
    "good": b"a = 1",
    "no text": b'a = "\xff"',
    "long": b"a = " + b"9" * 5000,
    "deep": b"a = " + b"[" * 100_000,
    "a long key": b"a." * 100_000 + b"b = 1",
    "dots in a text": b"a = 'x" + b". 1" * 10 + b"'",
}


def said(read: Callable[..., object], *given: Any, **how: Any) -> list[str]:
    try:
        return [str(read(*given, **how))]
    except InputError as error:
        return str(error).splitlines()


def test_what_is_wrong_is_said_with_its_place(tmp_path: Path) -> None:
    told = {name: said(structure, File, GOOD | wrong, where="file:") for name, wrong in WRONG.items()}
    told["good"] = said(structure, File, GOOD, where="file:")
    told["half a letter"] = said(structure, File, "\ud800", where="file")
    told["a row"] = said(parse_rows, Part, [{"name": "x"}, {"name": 1}], where="rows")
    told["rows"] = said(parse_rows, Part, [{"name": "x"}, {"name": "y", "since": "2"}], where="rows")
    told |= {f"JSON: {name}": said(parse_json, data, where="it") for name, data in JSON.items()}
    for name, data in TOML.items():
        (tmp_path / "a.toml").write_bytes(data)
        told[f"TOML: {name}"] = [line.replace(str(tmp_path), "") for line in said(read_toml, tmp_path / "a.toml")]
    (tmp_path / "a.json").write_text("[1, 2]")
    (large,) = said(read_json, tmp_path / "a.json", limit=5)
    told["JSON that is too large"] = [large.replace(str(tmp_path), "")]
    told["a schema"] = json.dumps(schema_of(File), indent=1).splitlines()
    check_told(Path(__file__).with_name("tables.told"), told)


SOURCES = """
schema = 1
[sources]
DOC = "the document"
WEB = "a page"
[extent]
DOC = ["1.0", "2.0"]
WEB = ["1.5"]
"the document (" = ["1.9"]
[verified]
rest = "2026-01-01"
WEB = "2026-02-02 closed"
other = "2026-03-03"
"""
DOCUMENT: Any = {
    "source": ["DOC", "DOC: page 3", "DOCS", "in DOC", 7],
    "rows": [{"source": ["WEB (2)"], "inner": {"source": ["WEB"]}}, {"source": "DOC"}],
    "names": ["DOC"],
    "more": [{"a": {"source": ["WEB "]}}],
}
ERRORS = """
schema = 1
read = "2026-01-01"
sources = {DOC = "the document"}
witness = {first = ["a witness"]}
[[error]]
id = "first"
cause = "It Broke"
workaround = "mend it"
source = ["DOC: page 3"]
confidence = "reported"
match = ["something broke"]
weak = ["oh no"]
tools = ["kit"]
codes = [17]
[[error]]
id = "second"
cause = "c"
workaround = "w"
source = ["x"]
confidence = "observed"
read = "2025-05-05"
symptom = "it hangs"
[[numbering]]
area = "kit"
source = ["DOC"]
confidence = "observed"
meanings = {"17" = "seventeen", "10-19" = "some", "-5" = "minus five", "-9--7" = "minus"}
words = {"17" = "KIT_17"}
[[form]]
id = "f"
pattern = "of the first"
[[kind]]
id = "k"
patterns = ["p"]
cause = "of the first"
workaround = "w"
source = ["s"]
confidence = "inferred"
"""


def test_sources_are_written_out_and_their_releases_known(tmp_path: Path) -> None:
    (tmp_path / "sources.toml").write_text(SOURCES)
    file, document = read_source_file(tmp_path / "sources.toml"), copy.deepcopy(DOCUMENT)
    write_out(document, file.sources)
    row = "the document: page 3", "a page", "the document (old)"
    asked: Any = ([row[0]], [row[1]], row[:2], row[1:], [row[0], "unknown"], [])
    told = {
        "written out": json.dumps(document, indent=1).splitlines(),
        "dates": [f"{name or 'the rest'}: {when}" for name, when in file.dates.items()],
        "extents": [f"{', '.join(given) or 'none'}: {file.extent_of(given)}" for given in asked],
        "open": [str(replace(file, extent={"a": ("1.10", "1.20"), "b": ("1.9", "")}).extent_of(["a", "b"]))],
    }
    (tmp_path / "one.toml").write_text(ERRORS)
    (tmp_path / "two.toml").write_text(ERRORS.replace("first", "third").replace("second", "fourth"))
    one, two = (load_catalog([tmp_path / name]) for name in ("one.toml", "two.toml"))
    both = merge_catalogs([one, replace(two, witnesses=(("first", ("another",)), ("none", ("x",))))])
    told["errors"] = [json.dumps(row.to_json()) for row in both.errors]
    told["a kind and a form that both have"] = [both.kinds[0].cause, both.forms[0].pattern]
    numbers = (17, 18, 10, 19, 20, 9, -5, -8, -10)
    told["codes"] = [
        f"{number}: {code and (code.meaning, code.words)}" for number in numbers for code in (both.code(number),)
    ]
    words = ("broke", "BROKE it", "17", "hangs", "broke hangs", "")
    told["search"] = [f"{asked}: {[row.id for row in search_errors(both, asked)]}" for asked in words]
    check_told(Path(__file__).with_name("sources.told"), told)


def test_the_nearest_row_of_a_table_answers() -> None:
    said: Any = {"source": ("s",), "confidence": Confidence.OBSERVED}
    flags = (
        Flag(tool="kit", flags=("--one", "--uno"), aliases=("-1",), meaning="m", **said),
        Flag(tool="kat", flags=("--one",), meaning="m", status=Status.BROKEN, **said),
    )
    places: list[Any] = [{}, {"tool": "kit"}, {"arch": "a1"}, {"tool": "kit", "arch": "a1"}]
    notes = ("any", "kit", "a1", "kit a1")
    rows = [
        Feature(feature="f", note=note, status=Status.SUPPORTED, **said, **place)
        for note, place in zip(notes, places, strict=True)
    ]
    keys = (ConfigKey(path="a.b", type="int", file="f", **said),)
    table = SdkTable(
        sdk="kit", version="2.10", extends="", builds=(), flags=flags, features=tuple(rows), config_keys=keys, **said
    )
    asked = (("kit", "a1"), ("kit", "a2"), ("kat", "a1"), ("kat", ""), ("", ""), ("kit", ""))
    assert [getattr(table.feature("f", tool=tool, arch=arch), "note", None) for tool, arch in asked] == [
        "kit a1",
        "kit",
        "a1",
        "any",
        "any",
        "kit",
    ]
    assert (table.feature("g"), table.status("g"), table.status("f")) == (None, Status.UNKNOWN, Status.SUPPORTED)
    assert [table.has_flag(*one) for one in (("kit", "--uno"), ("kit", "-1"), ("kat", "--one"), ("kit", "--two"))] == [
        True,
        True,
        False,
        False,
    ]
    assert (table.flag("kat", "--one"), table.tools(), table.parsed > Version("2.9")) == (
        flags[1],
        ("kit", "kat"),
        True,
    )
    assert (table.key("a.b"), table.key("a")) == (keys[0], None)
    assert [release_range(*ends) for ends in (("1", ""), ("1", "1"), ("1", "2"))] == [">=1", "1", ">=1,<=2"]
    made = compat_row("b", "f", rows[0], "one", "", "two", since="1", status=Status.BROKEN)
    assert made == CompatRow(
        feature="f", backend="b", tool="", sdk=">=1", status=Status.BROKEN, since="1", until="", note="one; two", **said
    )
