import json
from pathlib import Path

import numpy as np
import pytest

from deploykit.encodings.read import float_tensors_to_json, read_float_tensors, with_float_tensors
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.errors import InputError
from tables import each_row

NAMES = {"/decoder/Div_output_0", "onnx::Add_4934", "größe"}


def test_the_side_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "floats.json"
    path.write_text(float_tensors_to_json(NAMES), encoding="utf-8")
    assert json.loads(path.read_text("utf-8"))["schema"] == 1
    assert read_float_tensors(path) == NAMES


@pytest.mark.parametrize("text", ['["a", "b"]', "a\nb\n", "\ufeffa\r\n\n  b  ", '{"float_tensors": ["b", "a"]}'])
def test_lists_and_lines_are_read_as_well(text: str, tmp_path: Path) -> None:
    path = tmp_path / "floats"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_float_tensors(path) == {"a", "b"}


@pytest.mark.parametrize("data", [b"", b" \n"])
def test_an_empty_list_names_none(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "floats"
    path.write_bytes(data)
    assert read_float_tensors(path) == frozenset()


WRONG = {
    "number": (b'["a", 1]', "item 1 must be a tensor's name, not a number"),
    "null": (b"[null]", "not null"),
    "empty name": (b'[""]', "item 0"),
    "twice": (b'["a", "a"]', "'a' is listed twice"),
    "schema": (b'{"schema": 2, "float_tensors": []}', "schema 2 is not known"),
    "no list": (b'{"schema": 1}', "'float_tensors' must be a list of names, not null"),
    "truncated": (b'["a", ', "not JSON"),
    "not UTF-8": (b"a\xff", "not UTF-8"),
}


@each_row(("data", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_lists_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "floats"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_float_tensors(path)
    assert words in str(caught.value) and str(path) in str(caught.value)


def test_names_join_a_set() -> None:
    grid = Affine(bits=8, signed=False, scale=np.asarray(1.0), zero_point=np.asarray(0.0))
    entries = {"a": Encoding(name="a", value=grid), "f": Encoding(name="f", value=Float(dtype="float16"))}
    encodings = EncodingSet(version="2.0.0", entries=entries, source="w.encodings")
    assert with_float_tensors(encodings, ["g", "f"]).floats == {"f", "g"}
    with pytest.raises(InputError, match="'a' has an uint8 entry, but is listed as float") as caught:
        with_float_tensors(encodings, ["a"])
    assert "w.encodings" in str(caught.value)
