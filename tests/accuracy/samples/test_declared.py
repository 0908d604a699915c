"""What a user says of an input, and what a model's own words say of it, become samples."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import shape_inference

from deploykit.accuracy.samples.calibration import Declaration, parse_declarations
from deploykit.accuracy.samples.domains import Domain, input_domains
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.errors import InputError, UsageError
from deploykit.model.collect import facts_of
from tables import each_row
from text_models import text_model

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
    ("orig_target_sizes=640,640", "orig_target_sizes", (640, 640)),
    ("orig_target_sizes=640", "orig_target_sizes", (640,)),
    ("images=-1.5", "images", (-1.5,)),
    ("images=.5,1e-3,0,-2", "images", (0.5, 0.001, 0, -2)),
    ("half=1,2,3", "half", (1, 2, 3)),
    ("flag=true", "flag", (1,)),
    ("flag=0", "flag", (0,)),
    ("a=1..2=3", "a=1..2", (3,)),
    ("orig_target_sizes=9007199254740993", "orig_target_sizes", (9007199254740993,)),
)
def test_values(text: str, name: str, values: tuple[float, ...]) -> None:
    found = _one(text)
    assert found.name == name and found.to_json() == {"kind": "value", "values": list(values)}
    assert all(isinstance(value, int) for value in found.values) or name not in ("orig_target_sizes", "flag")


@pytest.mark.parametrize(
    ("text", "ends"),
    [("images=0..1", (0, 1)), ("images=-2.5..-1", (-2.5, -1)), ("images=0...5", (0, 0.5)), ("bytes=0..255", (0, 255))],
)
def test_ranges(text: str, ends: tuple[float, float]) -> None:
    found = _one(text)
    assert found.to_json() == {"kind": "range", "low": ends[0], "high": ends[1]}


def test_a_name_that_holds_what_a_range_looks_like_is_the_longest_that_matches() -> None:
    assert _one("a=1..2=0..1").name == "a=1..2" and _one("a=0..1").name == "a"
    assert _one("a=1..2").kind == "range"


@each_row(
    ("text", "message"),
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


# Stored by their names: a table of ten rows, one of three, data of 5 by 7, whole numbers and floats as they are spelt.
STORED: dict[str, np.ndarray] = {
    "table": np.ones((10, 2), np.float32),
    "small": np.ones((3, 2), np.float32),
    "data": np.zeros((5, 7, 2), np.float32),
    "rows": np.zeros((3, 2), np.float32),
    "counted": np.arange(4),
    "flat": np.asarray([4]),
    "zero8": np.asarray(3, np.int8),
    "choices": np.asarray([0, 1], np.float32),
}
SPELT = re.compile(r"\b[if]m?\d+\b")


def _value(name: str) -> np.ndarray:
    """``i10`` is the integer 10, ``fm1`` the float -1."""
    number = float(name[1:].replace("m", "-"))
    return np.asarray(number, np.int64 if name[0] == "i" else np.float32)


def domain(body: str, shape: str = "1,4", dtype: str = "int64", *, opset: int = 17) -> Domain:
    """Of the input x, which a graph of ``body`` reads; it may read s[1,4], b[5,4] and more whole numbers besides."""
    stored: dict[str, Any] = {name: value for name, value in STORED.items() if re.search(rf"\b{name}\b", body)}
    stored |= {name: _value(name) for name in SPELT.findall(body)}
    given = f"{dtype}[{shape}] x, float[1,4] s, float[5,4] b, int64[1,4] other"
    model = text_model(given, body, opset=opset, **stored)
    facts = facts_of(shape_inference.infer_shapes(model, strict_mode=True))
    return input_domains(facts, stored.get)["x"]


WRAPPED = "n = Less(x, i0) m = Add(x, i10) i = Where(n, m, x) y = Gather(table, i)"


@each_row(
    ("body", "shape", "ends"),
    ("y = Gather(table, x)", "1,4", (-10, 9)),
    ("c = Cast<to=6>(x) r = Reshape(c, flat) u = Flatten(r) y = Gather(table, u)", "1,4", (-10, 9)),
    ("m = Add(x, counted) y = Gather(table, m)", "1,4", (-10, 6)),
    ("c = Clip(x, i0, i9) y = Gather(table, c)", "1,4", (0, 9)),
    # Token ids of which one means padding: compared with 1, and still no mask.
    ("p = Equal(x, i1) w = Where(p, i0, x) y = Gather(table, w)", "1,4", (-10, 9)),
    (WRAPPED, "1,4", (-10, 9)),
    ("z = Shape(x) c = Clip(x, i0) y = Gather(table, c)", "1,4", (0, 9)),
    ("a = Gather(table, x) z = Gather(small, x) y = Add(a, z)", "1,4", (-3, 2)),
    ("y = ScatterND(rows, x, fm1)", "1", (-3, 2)),
    ("y = GatherND(data, x)", "3,1", (-5, 4)),
    ("y = GatherND(data, x)", "3,2", (-5, 4)),
    ("y = OneHot(x, i6, choices)", "1,4", (-6, 5)),
    ("y = GatherElements<axis=1>(b, x)", "5,3", (-4, 3)),
)
def test_indices(body: str, shape: str, ends: tuple[int, int]) -> None:
    found = domain(body, shape)
    assert (found.low, found.high, found.is_mask) == (*ends, False) and found.node


@each_row(
    ("body", "dtype"),
    ("h = Equal(x, i0) y = Where(h, fm10000, s)", "int64"),
    ("c = Cast<to=9>(x) h = Not(c) y = Where(h, fm10000, s)", "int64"),
    # (1 - mask) * -10000, and the same mask once more as a weight of a mean.
    ("m = Cast<to=1>(x) a = Sub(f1, m) p = Mul(a, fm10000) z = Add(s, p) y = Mul(z, m)", "int64"),
    ("y = Where(x, s, s)", "bool"),
)
def test_masks(body: str, dtype: str) -> None:
    found = domain(body, dtype=dtype)
    assert (found.low, found.high, found.is_mask) == (0, 1, True)
    assert found.node or dtype == "bool"


@each_row(
    ("body", "shape", "dtype", "opset", "ends"),
    ("y = Gather(table, x)", "1,4", "int64", 10, (0, 9)),  # before 11 an index is not negative
    ("y = DequantizeLinear(x, f1, zero8)", "1,4", "int8", 17, (-128, 127)),
    ("t = Transpose(x) c = Cast<to=1>(t) d = Div(c, f255) y = Relu(d)", "1,4,4,3", "uint8", 17, (0, 255)),
)
def test_what_type_and_version_allow(body: str, shape: str, dtype: str, opset: int, ends: tuple[int, int]) -> None:
    found = domain(body, shape, dtype, opset=opset)
    assert (found.low, found.high) == ends


@each_row(
    ("body", "shape", "low", "why"),
    ("c = Cast<to=1>(x) t = Concat<axis=1>(c, c) y = Mul(b, t)", "1,2", 1, "size"),
    ("c = Cast<to=1>(x) m = Mul(c, f1) y = Sin(m)", "1,4", None, ""),
    ("y = Expand(f1, x)", "2", None, ""),
    ("c = Cast<to=1>(x) a = Sub(f1, c) p = Mul(a, fm2) y = Add(s, p)", "1,4", None, ""),
    ("n = NonZero(s) y = Gather<axis=1>(n, x)", "1,4", None, "how many there are is not known"),
    ("c = Cast<to=1>(x) r = ReduceSum(c) e = Equal(x, i0) y = Where(e, r, f1)", "1,4", None, ""),
    ("a = Add(x, other) y = Gather(table, a)", "1,4", None, ""),
    ("m = Sub(x, i100) z = Gather(small, m) a = Gather(table, x) y = Add(a, z)", "1,4", None, "excludes"),
)
def test_what_the_graph_does_not_say_is_unknown(body: str, shape: str, low: int | None, why: str) -> None:
    found = domain(body, shape)
    assert (found.low, found.high, found.known) == (low, None, False)
    assert found.node and why in found.why
