"""Files that are no encodings file at all: what is not JSON, too large, missing, or would fill the memory."""

import json
from pathlib import Path

import pytest

from deploykit.encodings.formats.aimet import LIMIT, read_encodings
from deploykit.errors import InputError
from tables import each_row

ENTRY = {"name": "act", "output_dtype": "uint8", "y_scale": 0.1, "y_zero_point": 100}
WHOLE = json.dumps({"version": "2.0.0", "encodings": [ENTRY]})

BYTES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t", "is empty"),
    "not JSON": (b"version: 2.0.0\n", "not JSON"),
    "truncated": (WHOLE.encode()[:-40], "not JSON"),
    "not UTF-8": (b'{"version": "\xff\xfe"}', "not UTF-8"),
    "UTF-16": (WHOLE.encode("utf-16"), "not UTF-8"),
    "a zip": (b"PK\x03\x04" + bytes(200), "w.encodings"),
    "duplicate key": (b'{"version": "2.0.0", "encodings": [], "encodings": []}', "'encodings' occurs twice"),
    "duplicate tensor": (
        b'{"version": "0.6.1", "param_encodings": {}, "activation_encodings": {"a": [], "a": []}}',
        "'a' occurs twice",
    ),
    "nan": (
        b'{"version": "2.0.0", "encodings": [{"name": "a", "output_dtype": "int8", "y_scale": NaN}]}',
        "'a': the scale is nan",
    ),
    "infinity": (b'{"version": "2.0.0", "encodings": [], "note": -Infinity}', "-Infinity is not a JSON number"),
    "beyond a double": (
        b'{"version": "2.0.0", "encodings": [{"name": "a", "output_dtype": "int8", "y_scale": 1e999}]}',
        "'a': the scale is inf",
    ),
    "whole beyond a double": (
        b'{"version": "2.0.0", "encodings": [{"name": "a", "output_dtype": "int8", "y_scale": 1' + b"0" * 999 + b"}]}",
        "'a': a number is too large",
    ),
    "five thousand digits": (b'{"version": "2.0.0", "encodings": [' + b"9" * 5000 + b"]}", "w.encodings"),
    "nested lists": (b'{"version": "2.0.0", "encodings": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
    "nested objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
    "a list": (b"[]", "an object is expected at the top, not a list"),
    "null": (b"null", "not null"),
    "a number": (b"1", "not a number"),
}


@each_row(("data", "words"), BYTES.values(), ids=BYTES.keys())
def test_wrong_bytes_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "w.encodings"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_encodings(path)
    assert str(path) in str(caught.value)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_encodings(tmp_path / "none.encodings")
    with pytest.raises(InputError, match="is a folder"):
        read_encodings(tmp_path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.encodings"
    with path.open("wb") as file:
        file.truncate(LIMIT * 64)
    with pytest.raises(InputError, match="more than the"):
        read_encodings(path)


@pytest.mark.parametrize("filler", [b"{},", b"[1],", b'"a":1,', b"1,"])
def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_parsed(
    filler: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploykit.encodings.formats.aimet._BUDGET", 100_000_000)
    path = tmp_path / "w.encodings"
    path.write_bytes(b'{"version": "2.0.0", "encodings": [' + filler * (9 << 20 >> 2) + b"0]}")
    with pytest.raises(InputError, match="too much to be read"):
        read_encodings(path)
