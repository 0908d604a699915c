"""Values come back from their bytes as they were, and bytes can neither run nor make anything else."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.values import EncodingSet
from deploykit.findings import Confidence
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.system.frozen import UnfrozenError, freeze, thaw

ZOO = Path(__file__).parents[1] / "data" / "zoo" / "distilbert"


def through(value: Any, **known: object) -> Any:
    return thaw(freeze(value, known), known)


PLAIN: list[object] = [
    None,
    True,
    -(1 << 70),
    0.1,
    -0.0,
    math.inf,
    "\u00e9\u2028",
    (),
    ((), [], {}),
    [1, (2, [3])],
    {"a": {1: None}},
    {(1, "x"): 2.0},
    frozenset({"b", "a"}),
    {3, 1},
    b"\x00\xff",
    Path("a/b"),
    Confidence.OBSERVED,
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_values_come_back(value: object) -> None:
    found = through(value)
    assert found == value and type(found) is type(value)


def test_nan_comes_back() -> None:
    assert math.isnan(through(math.nan))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16", "bool", "float16"])
def test_arrays_come_back_bit_for_bit(dtype: str) -> None:
    given = np.arange(6).reshape(2, 3).astype(dtype)
    found = through(given)
    assert found.dtype == given.dtype and found.shape == given.shape and found.tobytes() == given.tobytes()
    scalar = through(given[1, 2])
    assert scalar == given[1, 2] and type(scalar) is type(given[1, 2])


def test_texts_in_an_array_come_back() -> None:
    assert through(np.array(["a", "\u00e9\u2028"])).tolist() == ["a", "\u00e9\u2028"]


def test_an_array_that_nobody_may_write_to_stays_so() -> None:
    given = np.zeros(3)
    assert through(given).flags.writeable
    given.flags.writeable = False
    assert not through(given).flags.writeable


def test_models_encodings_and_facts_come_back() -> None:
    read = load_model(ZOO / "model.onnx")
    encodings, facts = read_encodings(ZOO / "w8a16.v1.0.0.encodings"), collect_facts(read)
    model, again, same = through((read.proto, encodings, facts))
    assert model.SerializeToString() == read.proto.SerializeToString()
    assert isinstance(again, EncodingSet) and list(again.entries) == list(encodings.entries)
    assert again.floats == encodings.floats and freeze(again) == freeze(encodings)
    assert same == facts


def test_what_is_shared_is_one_object_and_what_is_known_the_given_one() -> None:
    model, shared = ModelProto(ir_version=9), [1, 2]
    first, second, there, deeper = through((shared, shared, model, (model, (shared,))), model=model)
    assert first is second and first is deeper[1][0]
    assert there is model and deeper[0] is model


def test_equal_values_have_equal_bytes() -> None:
    names = [f"tensor{i}" for i in range(100)]
    assert freeze(frozenset(names)) == freeze(frozenset(reversed(names)))


@pytest.mark.parametrize(
    "value", [print, lambda: 1, object(), np.array([None]), int, {1, "a"}], ids=lambda value: type(value).__name__
)
def test_what_is_no_value_is_refused(value: object) -> None:
    with pytest.raises(UnfrozenError):
        freeze((1, value))


def said(head: Any, *blobs: bytes) -> bytes:
    lengths, text = json.dumps([len(blob) for blob in blobs]).encode(), json.dumps(head).encode()
    return b"".join((struct.pack("<QQ", len(lengths), len(text)), lengths, text, *blobs))


@pytest.mark.parametrize(
    "head",
    [
        ["data", "subprocess:Popen", ["true"]],
        ["data", "os:system", ["true"]],
        ["data", "deploykit.system.processes:run", []],
        ["data", "deploykit.system.frozen:json.JSONDecoder", []],
        ["data", "deploykit.system.frozen:Path", ["/tmp"]],
        ["data", "deploykitten.evil:Thing", []],
        ["data", "deploykit.findings:Confidence", []],
        ["enum", "deploykit.encodings.values:EncodingSet", 1],
        ["array", "|O", [1], False, 0],
        ["array", "<f4", [1000], False, 0],
        ["known", "nobody"],
        ["same", 7],
        ["pickle", "x"],
        [],
    ],
    ids=repr,
)
def test_bytes_that_somebody_made_up_are_no_value(head: Any) -> None:
    with pytest.raises(UnfrozenError):
        thaw(said(head, b"12345678"))


def test_damaged_bytes_are_no_value() -> None:
    whole = freeze(("a", np.arange(3), Confidence.OBSERVED))
    for at in range(0, len(whole), 3):
        for bad in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            try:
                thaw(bad)
            except UnfrozenError:
                continue
