"""Every way in which a file of encodings or names can be wrong: one InputError that names the file and the entry."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.encodings.formats.aimet import LIMIT, parse_encodings, read_encodings, write_encodings
from deploykit.encodings.place import checked_on_shape
from deploykit.encodings.read import float_tensors_to_json, read_float_tensors
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError
from tables import each_row
from told import check_file

ENTRY = {"name": "act", "output_dtype": "uint8", "y_scale": 0.1, "y_zero_point": 100}
TRUNCATED = json.dumps({"version": "2.0.0", "encodings": [ENTRY]}).encode()[:-40]


def of_200(*entries: bytes, more: bytes = b"") -> bytes:
    return b'{"version": "2.0.0", "encodings": [' + b", ".join(entries) + b"]" + more + b"}"


def scaled(scale: bytes) -> bytes:
    return of_200(b'{"name": "a", "output_dtype": "int8", "y_scale": ' + scale + b"}")


BYTES: list[tuple[bytes, str]] = [
    (b"", "is empty"),
    (b"version: 2.0.0\n", "not JSON"),
    (TRUNCATED, "not JSON"),
    (b'{"version": "\xff\xfe"}', "not UTF-8"),
    (b"PK\x03\x04" + bytes(200), "w.encodings"),
    (of_200(more=b', "encodings": []'), "'encodings' occurs twice"),
    (b'{"version": "0.6.1", "param_encodings": {}, "activation_encodings": {"a": [], "a": []}}', "'a' occurs twice"),
    (of_200(more=b', "a\\u003ab": 1, "a:b": 2'), "occurs twice"),
    (scaled(b"NaN"), "'a': the scale is nan"),
    (of_200(more=b', "note": -Infinity'), "-Infinity is not a JSON number"),
    (scaled(b"1e999"), "'a': the scale is inf"),
    (scaled(b"1" + b"0" * 999), "'a': a number is too large"),
    (of_200(b"9" * 5000), "thousands of digits"),
    (of_200(b"[" * 100_000 + b"]" * 100_000), "nested too deep"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
]


@each_row(("data", "words"), *BYTES)
def test_wrong_bytes_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "w.encodings"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_encodings(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_or_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_encodings(tmp_path / "none.encodings")
    with pytest.raises(InputError, match="is a folder"):
        read_encodings(tmp_path)
    path = tmp_path / "w.encodings"
    with path.open("wb") as file:
        file.truncate(LIMIT * 64)
    with pytest.raises(InputError, match="more than the"):
        read_encodings(path)


@each_row("filler", b"{},", b"[1],", b'"a":1,', b"1,")
def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_parsed(
    filler: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploykit.encodings.formats.aimet._BUDGET", 10_000_000)
    path = tmp_path / "w.encodings"
    path.write_bytes(of_200(filler * (9 << 17 >> 2) + b"0"))
    with pytest.raises(InputError, match="too much to be read"):
        read_encodings(path)
    with pytest.raises(InputError, match=r"version 0\.6\.1: .* too much to be read"):  # nor is it written
        write_encodings(EncodingSet(version="1.0.0", entries={}, extra={"x": [0] * 300_000}), "0.6.1")


GRID = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "scale": 0.1}
WEIGHT = {"bitwidth": 8, "dtype": "int", "is_symmetric": "True", "offset": -128.0, "scale": 0.5}
V061: dict[str, Any] = {
    "version": "0.6.1",
    "activation_encodings": {"act": [{**GRID, "max": (255 - 100) * 0.1, "min": -10.0, "offset": -100.0}]},
    "param_encodings": {"w": [WEIGHT, WEIGHT]},
}
TENSOR = {"bw": 8, "dtype": "INT", "enc_type": "PER_TENSOR", "is_sym": False, "name": "act"}
LPBQ = {"bw": 8, "compressed_bw": 4, "block_size": 16, "dtype": "INT", "enc_type": "LPBQ", "is_sym": True, "name": "w"}
V100: dict[str, Any] = {
    "version": "1.0.0",
    "activation_encodings": [{**TENSOR, "offset": [-100], "scale": [0.1]}],
    "param_encodings": [{**LPBQ, "offset": [-128, -128], "per_block_int_scale": [1, 16, 2, 16], "scale": [0.5, 0.25]}],
}
BLOCKS = {"per_block_int_scale": [[1, 2], [3, 16]], "per_channel_float_scale": [[0.5], [0.5]]}
V200: dict[str, Any] = {
    "version": "2.0.0",
    "encodings": [
        ENTRY,
        {"name": "w", "output_dtype": "int8", "y_scale": [0.5, 0.25], "axis": 0},
        {"name": "b", "output_dtype": "int4", "y_scale": [[0.5], [0.25]], "axis": 1, "block_size": 16},
        {"name": "l", "output_dtype": "int4", **BLOCKS, "axis": 1, "block_size": 16},
    ],
}
DOCUMENTS = {"0.6.1": V061, "1.0.0": V100, "2.0.0": V200}


def put(question: str) -> tuple[str, dict[str, Any]]:
    """``VERSION WHAT JSON``: the document of that version with the values at these paths; ``null`` is a value too."""
    version, what, text = question.split(" ", 2)
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENTS[version]))  # shares no item between two places
    for path, value in json.loads(text).items():
        *parents, last = [int(step) if step.isdigit() else step for step in path.split("/")]
        target: Any = document
        for step in parents:
            target = target[step]
        if value == "NOTHING":
            del target[last]
        else:
            target[last] = value
    return what, document


def test_wrong_content_is_refused_and_what_is_just_allowed_is_read(tmp_path: Path) -> None:
    file = tmp_path / "w.encodings"

    def refusal(question: str) -> list[str]:
        """``VERSION wrong {PATH: VALUE}``."""
        file.write_text(json.dumps(put(question)[1]), encoding="utf-8")
        with pytest.raises(InputError) as caught:
            read_encodings(file)
        return str(caught.value).replace(str(tmp_path), "$PWD").splitlines()

    check_file(Path(__file__).with_name("wrong.told"), refusal)
    check_file(Path(__file__).with_name("edges.told"), edge)


def edge(question: str) -> list[str]:
    """``VERSION ENTRY.PROPERTY {PATH: VALUE}``, just inside of what is allowed, and what becomes of it."""
    what, document = put(question)
    name, key = what.split(".")
    return [str(np.asarray(getattr(parse_encodings(document, where="w").entries[name].value, key)).tolist())]


def test_one_scale_for_all_channels_fits_any_number_of_them() -> None:
    _, one = put('2.0.0 b {"encodings/2/y_scale": [[0.5]]}')
    checked_on_shape(parse_encodings(one, where="w.encodings").entries["b"].value, (3, 16), "w.encodings")  # type: ignore[arg-type]


# Lists of the names of float tensors, beside an encodings file that cannot say so.


@each_row("text", "", " \n", '["a", "b"]', "a\nb\n", "\ufeffa\r\n\n  b  ", '{"float_tensors": ["b", "a"]}')
def test_lists_lines_and_the_file_that_was_written_are_read_and_what_is_no_text_is_not(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "floats"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_float_tensors(path) == ({"a", "b"} if text.strip() else frozenset())
    path.write_text(float_tensors_to_json({"onnx::Add_4934", "größe"}), encoding="utf-8")
    assert read_float_tensors(path) == {"onnx::Add_4934", "größe"}
    assert json.loads(path.read_text("utf-8"))["schema"] == 1
    path.write_bytes(b"a\xff")
    with pytest.raises(InputError, match=f"{path}: not UTF-8"):
        read_float_tensors(path)
