"""The schemas of all tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema
import pytest

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.tables.reading import schema_of, structure
from tables import each_row


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part.

    More words.
    """

    name: str
    since: str = ""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file."""

    schema: int
    confidence: Confidence
    kind: Literal["a", "b"] = "a"
    parts: tuple[Part, ...] = ()
    values: Mapping[str, int | str] = field(default_factory=dict)
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


def test_half_a_letter_is_no_file() -> None:
    with pytest.raises(InputError, match="half a letter"):
        structure(File, "\ud800", where="file")


def test_what_is_missing_is_refused_by_both() -> None:
    wrong = {"schema": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema_of(File))
    with pytest.raises(InputError, match=r"file\.confidence: missing"):
        structure(File, wrong, where="file")
