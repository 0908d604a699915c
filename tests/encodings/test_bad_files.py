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
from whole_answers import check_whole

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
REMOVE = object()


def put(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy of ``base`` with the values at paths (``encodings__0__axis``) replaced; REMOVE takes the key away."""
    document: dict[str, Any] = json.loads(json.dumps(base))  # unlike a deep copy, shares no item between two places
    for path, value in changes.items():
        *parents, last = [int(step) if step.isdigit() else step for step in path.split("__")]
        target: Any = document
        for step in parents:
            target = target[step]
        if value is REMOVE:
            del target[last]
        else:
            target[last] = value
    return document


LISTS = {"per_block_int_scale": [4, 5, 256, 257], "scale": [1.0]}
ACT, WEIGHTS = "activation_encodings__act__0", "param_encodings__w"
A, P, E = "activation_encodings__0", "param_encodings__0", "encodings"
FLOAT16, FLOAT = (
    {"bitwidth": 16, "dtype": "float"},
    {"bw": 8, "dtype": "FLOAT", "enc_type": "PER_TENSOR", "name": "act"},
)

WRONG: list[tuple[dict[str, Any], str, Any, str]] = [
    (V061, f"{WEIGHTS}__1__scale", 0, "scale is 0 at item 1"),
    (V061, f"{ACT}__is_symmetric", True, "'act'[0].is_symmetric: Expected a string, got true or false"),
    (V061, f"{ACT}__bitwidth", 4096, "'act'[0].bitwidth: Expected a whole number <= 32"),
    (V061, f"{ACT}__scale", REMOVE, "'act'[0]: missing is `scale`"),
    (V061, f"{ACT}__offset", 5.0, "does not lie on the grid of uint8"),
    (V061, ACT, None, "'act'[0]: Expected an object, got `null`"),
    (V061, "activation_encodings__act", [], "'act': Expected a list of length >= 1"),
    (V061, f"{WEIGHTS}__1__bitwidth", 4, "differs between the items"),
    (V061, f"{ACT}__zero", 1, "'act'[0]: not a key of such an entry: `zero`"),
    (V061, f"{ACT}__min", -20.0, "'min' is -20"),
    (V061, ACT, {**FLOAT16, "bitwidth": 32}, "'act'[0].bitwidth: Invalid enum value 32"),
    (V061, ACT, {**FLOAT16, "scale": 1.0}, "'act'[0]: not a key of such an entry: `scale`"),
    (V061, "activation_encodings__act", [FLOAT16] * 2, "one item"),
    (V061, "param_encodings__act", [WEIGHT], "'act' has two entries"),
    (V061, "param_encodings", {"": [WEIGHT]}, "without a tensor name"),
    (V061, "param_encodings", {"\ud800": [WEIGHT]}, "half a character"),
    (V061, "version", "1.0.0", "says version 1.0.0, but is laid out as version 0.6.1"),
    (V061, "encodings", {}, "'encodings' is a section of another version"),
    (V100, f"{A}__offset", [-100, -100], "'offset' has 2 items, but 'scale' has 1"),
    (V100, f"{A}__scale", [None], "'act'.scale[0]: Expected a number, got `null`"),
    (V100, f"{A}__offset", [-100.5], "holds a fraction"),
    (V100, f"{A}__zero_point_shift", [1.0], "'zero_point_shift'"),
    (V100, A, FLOAT, "must be 16"),
    (V100, f"{P}__is_sym", False, "always symmetric"),
    (V100, f"{P}__offset", [-128, -127], "'offset' must be 2 times -128"),
    (V100, f"{P}__per_block_int_scale", [1, 1.5, 2, 3], "1.5 is not a whole number"),
    (V100, f"{P}__per_block_int_scale", [1, 2, 3], "not a multiple of the 2 channels"),
    (V100, f"{P}__compressed_bw", 8, "cannot be decompressed"),
    (V100, P, {**LPBQ, "bw": 6, **LISTS, "offset": [-32]}, "integer block scale 5 is not a whole number in 1 .. 4"),
    (V100, P, {**LPBQ, "bw": 12, **LISTS, "offset": [-2048]}, "block scale 257 is not a whole number in 1 .. 256"),
    (V100, f"{P}__scale", [1e300, 1.0], "beyond what a double can hold"),
    (V100, f"{A}__name", REMOVE, "activation_encodings[0]: missing is `name`"),
    (V200, f"{E}__1__y_scale", [0.5, float("inf")], "'w': the scale is inf at item 1"),
    (V200, f"{E}__0__y_zero_point", 256, "zero point 256 does not lie on"),
    (V200, f"{E}__1__y_zero_point", [0], "but zero points of"),
    (V200, f"{E}__1__axis", REMOVE, "no 'axis' says"),
    (V200, f"{E}__2__axis", 2, "axis 2 is out of range for 2 dimensions"),
    (V200, f"{E}__2__y_scale", [0.5, 0.5], "must be nested"),
    (V200, f"{E}__2__y_scale", [[0.5], [0.5, 0.25]], "nested unevenly"),
    (V200, f"{E}__2__y_scale", [[], []], "is empty"),
    (V200, f"{E}__2__y_scale", [[[[[[[[[0.5]]]]]]]]], "deeper than"),
    (V200, f"{E}__0__axis", 0, "must be a flat list"),
    (V200, f"{E}__0__output_dtype", "int08", "'output_dtype'"),
    (V200, f"{E}__0__output_dtype", "float16", "'output_dtype' is 'float16'"),
    (V200, f"{E}__0__output_dtype", "float8e5m2", "must be left out or 0"),
    (V200, f"{E}__3__output_dtype", "uint4", "LPBQ weights are"),
    (V200, f"{E}__3__per_channel_float_scale", REMOVE, "'per_channel_float_scale' is missing"),
    (V200, f"{E}__3__per_channel_float_scale", [[0.5]], "the shape [2, 1] would fit"),
    (V200, f"{E}__0__y_scale", {"x": 1}, "as from version 2.1.0 on"),
    (V200, f"{E}__0__bw", 8, "'act': not a key of such an entry: `bw`"),
    (V200, f"{E}__1__name", "act", "'act' has two entries"),
    (V200, E, None, "'encodings' must be a list"),
    (V200, "version", "3.0.0", "the version '3.0.0'"),
    (V200, "producer", "me", "'producer' must be an object"),
]


@each_row(("base", "path", "value", "words"), *WRONG)
def test_wrong_content_is_refused(base: dict[str, Any], path: str, value: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "w.encodings"
    file.write_text(json.dumps(put(base, **{path: value})), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_encodings(file)
    assert words in str(caught.value)
    check_whole(__file__, f"{path}: {words}", caught.value, tmp_path)


LEAST = {**WEIGHT, "bitwidth": 2, "offset": -2}
GREATEST = {**WEIGHT, "bitwidth": 32, "offset": -(2**31), "scale": 1e-9}
ALONG_FIRST = {"encodings__3__axis": 0, "encodings__3__per_channel_float_scale": [[0.5, 0.5]]}
# What lies just inside of what is allowed, and what becomes of it: document, changes, entry and property, value.
EDGES: list[tuple[dict[str, Any], dict[str, Any], str, Any]] = [
    (V061, {ACT: LEAST}, "act.bits", 2),
    (V061, {ACT: GREATEST}, "act.bits", 32),
    (V061, {ACT: {**GRID, "offset": -255}}, "act.zero_point", 255),
    (V061, {ACT: {**GRID, "offset": 0}}, "act.zero_point", 0),
    (V061, {}, "w.zero_point", [0, 0]),
    (V061, {f"{ACT}__min": -10.1}, "act.zero_point", 100),
    (V061, {f"{ACT}__max": 15.6}, "act.zero_point", 100),
    (V100, {f"{A}__zero_point_shift": [0.0]}, "act.zero_point", 100),
    (V100, {f"{A}__zero_point_shift": [0.75]}, "act.zero_point", 99.25),
    (V100, {f"{A}__bw": 2, f"{A}__offset": [-3]}, "act.bits", 2),
    (V100, {f"{A}__bw": 32, f"{A}__scale": [1e-9]}, "act.bits", 32),
    (V100, {f"{P}__block_size": 1}, "w.block_size", 1),
    (V100, {f"{P}__per_block_int_scale": [1, 1, 1, 1]}, "w.block_size", 16),
    (V100, {A: {**FLOAT, "bw": 16}}, "act.dtype", "float16"),
    (V100, {f"{A}__enc_type": "PER_BLOCK", f"{A}__block_size": 1}, "act.block_size", 1),
    (V200, {f"{E}__0__y_zero_point": 255}, "act.zero_point", 255),
    (V200, {f"{E}__0__y_zero_point": 0}, "act.zero_point", 0),
    (V200, {f"{E}__2__block_size": 1}, "b.block_size", 1),
    (V200, {f"{E}__2__axis": -2}, "b.block_axis", 0),
    (V200, {}, "b.block_axis", 1),
    (V200, {}, "b.axis", 0),
    (V200, {f"{E}__1__axis": -64}, "w.axis", -64),
    (V200, {f"{E}__1__axis": 64}, "w.axis", 64),
    (V200, {f"{E}__3__block_size": 1}, "l.block_size", 1),
    (V200, {f"{E}__3__output_dtype": "int16"}, "l.decompressed_bits", 32),
    (V200, ALONG_FIRST, "l.axis", 1),
]


@each_row(("base", "changes", "what", "expected"), *EDGES)
def test_what_is_just_allowed_is_read(base: dict[str, Any], changes: dict[str, Any], what: str, expected: Any) -> None:
    name, key = what.split(".")
    found = np.asarray(getattr(parse_encodings(put(base, **changes), where="w").entries[name].value, key))
    assert found.tolist() == expected


def test_one_scale_for_all_channels_fits_any_number_of_them() -> None:
    one = put(V200, encodings__2__y_scale=[[0.5]])
    checked_on_shape(parse_encodings(one, where="w.encodings").entries["b"].value, (3, 16), "w.encodings")  # type: ignore[arg-type]


# Lists of the names of float tensors, beside an encodings file that cannot say so.


@each_row("text", "", " \n", '["a", "b"]', "a\nb\n", "\ufeffa\r\n\n  b  ", '{"float_tensors": ["b", "a"]}')
def test_lists_lines_and_the_file_that_was_written_are_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "floats"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_float_tensors(path) == ({"a", "b"} if text.strip() else frozenset())
    path.write_text(float_tensors_to_json({"onnx::Add_4934", "größe"}), encoding="utf-8")
    assert read_float_tensors(path) == {"onnx::Add_4934", "größe"}
    assert json.loads(path.read_text("utf-8"))["schema"] == 1


def test_a_list_of_names_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "floats").write_bytes(b"a\xff")
    with pytest.raises(InputError, match=f"{tmp_path}/floats: not UTF-8"):
        read_float_tensors(tmp_path / "floats")
