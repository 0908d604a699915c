"""The fast reader gives what the reader of single entries gives, in every word of a refusal too, or leaves it to it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.formats import reading
from deploykit.encodings.formats.ordinary import LateEntries, read_ordinary
from deploykit.encodings.formats.reading import read_encodings
from deploykit.encodings.formats.writing import write_encodings
from deploykit.encodings.values import Encoding, EncodingSet, Float
from deploykit.errors import InputError
from deploykit.system import indenting

pytest.importorskip("msgspec")

OLD = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "scale": 0.5, "offset": -3, "min": -1.5, "max": 126.0}
PLAIN: dict[str, dict[str, Any]] = {
    "0.6.1": OLD,
    "1.0.0": {"enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, "is_sym": False, "scale": [0.5], "offset": [-3]},
    "2.0.0": {"output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 3},
}
ODD: list[Any] = [0, -1, 1 << 60, 10**400, 1e300, True, None, "8", "", [], [1], [0.5, 0.25], {}, "FLOAT", "uint40"]
ODD += ["PER_CHANNEL", -0.0, 3.5, "absent"]


def _document(version: str, entries: list[tuple[str, Any]]) -> dict[str, Any]:
    if version == "2.0.0":
        return {"version": version, "encodings": [{"name": name, **entry} for name, entry in entries]}
    if version == "1.0.0":
        items = [{"name": name, **entry} for name, entry in entries]
        return {"version": version, "activation_encodings": items[1:], "param_encodings": items[:1]}
    named = {name: [entry] for name, entry in entries}
    return {"version": version, "activation_encodings": named, "param_encodings": {}, "note": {"a:b": "c:d"}}


def _outcome(path: Path) -> Any:
    try:
        read = read_encodings(path)
    except InputError as error:
        return error.what, error.why, error.next
    return _values(read), read.floats, read.version, read.producer, read.extra, read.source


def _values(read: EncodingSet) -> list[Any]:
    arrays = ("scale", "zero_point", "block_scale", "channel_scale")
    plain = ("dtype", "bits", "signed", "symmetric", "axis", "block_axis", "block_size", "placed")
    return [
        (
            entry.name,
            entry.is_param,
            _of(entry.value, plain),
            [None if a is None else (a.dtype.str, a.shape, a.tobytes()) for a in _of(entry.value, arrays)],
        )
        for entry in read
    ]


def _of(value: object, parts: tuple[str, ...]) -> list[Any]:
    return [getattr(value, part, None) for part in parts]


def _singly(path: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "read_ordinary", lambda _: None)
        return _outcome(path)


@settings(max_examples=80, deadline=None)
@given(
    version=st.sampled_from(list(PLAIN)),
    names=st.lists(st.sampled_from(["a", "b:c", "é", "d/e", "f"]), min_size=1, max_size=5),
    changes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.sampled_from(ODD)), max_size=2),
)
def test_it_reads_and_refuses_as_the_other(
    tmp_path_factory: pytest.TempPathFactory, version: str, names: list[str], changes: list[tuple[int, int, Any]]
) -> None:
    entries = [(name, copy.deepcopy(PLAIN[version])) for name in names]
    for place, key, value in changes:
        entry = entries[place % len(entries)][1]
        named = sorted(PLAIN[version])[key % len(PLAIN[version])]
        entry.pop(named, None) if value == "absent" else entry.update({named: value})
    path = tmp_path_factory.mktemp("read") / "w.encodings"
    path.write_text(json.dumps(_document(version, entries)), "utf-8")
    assert _outcome(path) == _singly(path)


@pytest.mark.parametrize("version", PLAIN)
def test_ordinary_entries_stay_columns_until_they_are_asked_for(version: str, tmp_path: Path) -> None:
    entries = [(f"t{i}", {**PLAIN[version]}) for i in range(10_000)]
    path = tmp_path / "w.encodings"
    path.write_text(json.dumps(_document(version, entries)), "utf-8")
    read = read_encodings(path)
    assert isinstance(read.entries, LateEntries)
    assert len(read.entries._columns) >= 3
    assert read.entries["t5000"] is read.entries["t5000"]
    assert _outcome(path) == _singly(path)


def test_what_is_not_ordinary_stands_among_the_ordinary(tmp_path: Path) -> None:
    half = {"bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR"}
    many = {**PLAIN["1.0.0"], "enc_type": "PER_CHANNEL", "scale": [0.5, 0.25], "offset": [-3, -3]}
    entries = [("w", many), *((f"t{i}", PLAIN["1.0.0"]) for i in range(9)), ("h", half), ("last", PLAIN["1.0.0"])]
    path = tmp_path / "w.encodings"
    path.write_text(json.dumps(_document("1.0.0", entries)), "utf-8")
    read = read_encodings(path)
    assert isinstance(read.entries, LateEntries)
    assert [entry.name for entry in read][-2:] == ["h", "last"] or [entry.name for entry in read][-1] == "w"
    assert isinstance(read.entries["h"].value, Float)
    assert read.floats == {"h"}
    assert _outcome(path) == _singly(path)


DROPS = {
    "a key of an entry": b'{"version": "2.0.0", "encodings": [{"name": "a", "output_dtype": "int8", "y_scale": 1, '
    b'"y_scale": 2}]}',
    "a tensor": b'{"version": "0.6.1", "param_encodings": {}, "activation_encodings": {"a": [], "a": []}}',
    "a section": b'{"version": "2.0.0", "encodings": [], "encodings": []}',
    "a key within what is kept": b'{"version": "2.0.0", "encodings": [], "x": {"a": 1, "a": 2}}',
    "a key written with an escape": b'{"version": "2.0.0", "encodings": [], "a\\u003ab": 1, "a:b": 2}',
}


@pytest.mark.parametrize("data", DROPS.values(), ids=DROPS.keys())
def test_nothing_that_occurs_twice_is_dropped(data: bytes) -> None:
    assert read_ordinary(data) is None


def test_the_text_written_is_the_same_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [("é", PLAIN["1.0.0"]), ("b", {**PLAIN["1.0.0"], "scale": [1e-7], "zero_point_shift": [0.5]})]
    path = tmp_path / "w.encodings"
    path.write_text(json.dumps({**_document("1.0.0", entries), "note": [{}, [], 1e300, 'a "quote"\\']}), "utf-8")
    read = read_encodings(path)
    for version in PLAIN:
        fast = write_encodings(read, version)
        with monkeypatch.context() as patch:
            patch.setattr(indenting, "typed_json", lambda: None)
            assert write_encodings(read, version) == fast


@pytest.mark.parametrize("asked", [(), ("t3", "u7")], ids=["nobody asked", "some were made"])
def test_columns_are_written_as_the_objects_are(asked: tuple[str, ...], tmp_path: Path) -> None:
    half = {"output_dtype": "float8e4m3fn", "y_scale": 0.5}
    many = {"output_dtype": "int8", "y_scale": [0.5, 0.25], "axis": 0}
    signed = {"output_dtype": "int16", "y_scale": 1e-7, "y_zero_point": -5}
    plain = [(f"t{i}", {**PLAIN["2.0.0"], "y_scale": 0.1 + i, "y_zero_point": i % 4}) for i in range(5000)]
    entries = [("w", many), *plain, ("h", half), *((f"u{i}", signed) for i in range(9)), ("last", PLAIN["2.0.0"])]
    path = tmp_path / "w.encodings"
    path.write_text(json.dumps(_document("2.0.0", entries)), "utf-8")
    read, objects = read_encodings(path), read_encodings(path)
    assert isinstance(read.entries, LateEntries)
    objects = replace(objects, entries=dict(objects.entries))
    for name in asked:
        assert name in read.entries
        assert read.entries[name].name == name
    made = sum(isinstance(known, Encoding) for known in read.entries._of.values())
    assert write_encodings(read, "2.0.0") == write_encodings(objects, "2.0.0")
    assert sum(isinstance(known, Encoding) for known in read.entries._of.values()) == made
