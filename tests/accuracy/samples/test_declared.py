"""``--input``: what it may say, and what is refused at once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from deploykit.accuracy.samples import InputSpec
from deploykit.accuracy.samples.calibration import Declaration, parse_declarations
from deploykit.errors import InputError, UsageError
from tables import each_row

SIZES = InputSpec(name="orig_target_sizes", dtype="int64", shape=(1, 2))
IMAGE = InputSpec(name="images", dtype="float32", shape=(1, 3, 4, 4))
HALF = InputSpec(name="half", dtype="float16", shape=(1, None))
BYTES = InputSpec(name="bytes", dtype="uint8", shape=(4,))
FLAG = InputSpec(name="flag", dtype="bool", shape=())
ODD = InputSpec(name="a=1..2", dtype="float32", shape=(2,))
SHORT = InputSpec(name="a", dtype="float32", shape=(2,))
INPUTS = (SIZES, IMAGE, HALF, BYTES, FLAG, ODD, SHORT)


def _one(text: str) -> Declaration:
    (declaration,) = parse_declarations([text], INPUTS).values()
    return declaration


@each_row(
    ("text", "name", "values"),
    [
        ("orig_target_sizes=640,640", "orig_target_sizes", (640, 640)),
        ("orig_target_sizes=640", "orig_target_sizes", (640,)),
        ("images=-1.5", "images", (-1.5,)),
        ("images=.5,1e-3,0,-2", "images", (0.5, 0.001, 0, -2)),
        ("half=1,2,3", "half", (1, 2, 3)),
        ("flag=true", "flag", (1,)),
        ("flag=0", "flag", (0,)),
        ("a=1..2=3", "a=1..2", (3,)),
        ("orig_target_sizes=9007199254740993", "orig_target_sizes", (9007199254740993,)),
    ],
)
def test_values(text: str, name: str, values: tuple[float, ...]) -> None:
    found = _one(text)
    assert (found.name, found.kind, found.values) == (name, "value", values)
    assert all(isinstance(value, int) for value in found.values) or name not in ("orig_target_sizes", "flag")


@pytest.mark.parametrize(
    ("text", "ends"),
    [("images=0..1", (0, 1)), ("images=-2.5..-1", (-2.5, -1)), ("images=0...5", (0, 0.5)), ("bytes=0..255", (0, 255))],
)
def test_ranges(text: str, ends: tuple[float, float]) -> None:
    found = _one(text)
    assert (found.kind, (found.low, found.high)) == ("range", ends)


def test_a_name_that_holds_what_a_range_looks_like_is_the_longest_that_matches() -> None:
    assert _one("a=1..2=0..1").name == "a=1..2"
    assert _one("a=0..1").name == "a"
    assert _one("a=1..2").kind == "range"


@each_row(
    ("text", "message"),
    [
        ("orig_target_size=640", "did you mean 'orig_target_sizes'"),
        ("xyz=1", "the inputs are 'orig_target_sizes', 'images'"),
        ("images", "says nothing of an input"),
        ("images=", "neither numbers nor a range"),
        ("images=photo.jpg", "neither numbers nor a range"),
        ("images=nan", "neither numbers nor a range"),
        ("images=1e39", "more than float32 holds"),
        ("half=65520", "more than float16 holds"),
        ("images=2..1", "the range is empty"),
        ("images=1,2,3", "the last dimension of images float32[1,3,4,4] is 4"),
        ("flag=1,0", "is a single number"),
        ("orig_target_sizes=1.5", "no whole number"),
        ("bytes=256", "not within 0..255"),
        ("bytes=-1..4", "not within 0..255"),
        ("bytes=true", "give a number"),
        ("flag=2", "not within 0..1"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _one(text)
    assert message in str(caught.value)


def test_an_input_is_declared_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_declarations(["images=0..1", "images=0"], INPUTS)


def test_a_file_is_recorded_by_name_and_hash_and_never_by_its_path(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3, 4, 4)))
    found = _one(f"images={tmp_path / 'x.npy'}")
    digest = hashlib.sha256((tmp_path / "x.npy").read_bytes()).hexdigest()
    assert found.to_json() == {"kind": "file", "file": "x.npy", "sha256": digest}
    assert str(tmp_path) not in json.dumps(found.to_json()) + found.described + repr(found)


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 5)))
    with pytest.raises(InputError, match="does not fit"):
        _one(f"images={tmp_path / 'x.npy'}")
    with pytest.raises(InputError, match="no such file"):
        _one(f"images={tmp_path / 'missing.npy'}")
