"""What a graph says of its integer inputs, pattern by pattern; and that it says nothing where it does not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from onnx import shape_inference

from deploykit.accuracy.samples.domains import Domain, input_domains
from deploykit.model.collect import facts_of
from tables import each_row
from text_models import text_model

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
    [
        ("y = Gather(table, x)", "1,4", (-10, 9)),
        ("c = Cast<to=6>(x) r = Reshape(c, flat) u = Flatten(r) y = Gather(table, u)", "1,4", (-10, 9)),
        ("m = Add(x, counted) y = Gather(table, m)", "1,4", (-10, 6)),
        ("c = Clip(x, i0, i9) y = Gather(table, c)", "1,4", (0, 9)),
        # Token ids of which one means padding: compared with 1, and still no mask.
        ("p = Equal(x, i1) w = Where(p, i0, x) y = Gather(table, w)", "1,4", (-10, 9)),
        (WRAPPED, "1,4", (-10, 9)),
        ("a = Gather(table, x) z = Gather(small, x) y = Add(a, z)", "1,4", (-3, 2)),
        ("y = ScatterND(rows, x, fm1)", "1", (-3, 2)),
        ("y = GatherND(data, x)", "3,1", (-5, 4)),
        ("y = GatherND(data, x)", "3,2", (-5, 4)),
        ("y = OneHot(x, i6, choices)", "1,4", (-6, 5)),
        ("y = GatherElements<axis=1>(b, x)", "5,3", (-4, 3)),
    ],
)
def test_indices(body: str, shape: str, ends: tuple[int, int]) -> None:
    found = domain(body, shape)
    assert (found.low, found.high, found.is_mask) == (*ends, False)
    assert found.node


@each_row(
    ("body", "dtype"),
    [
        ("h = Equal(x, i0) y = Where(h, fm10000, s)", "int64"),
        ("c = Cast<to=9>(x) h = Not(c) y = Where(h, fm10000, s)", "int64"),
        # (1 - mask) * -10000, and the same mask once more as a weight of a mean.
        ("m = Cast<to=1>(x) a = Sub(f1, m) p = Mul(a, fm10000) z = Add(s, p) y = Mul(z, m)", "int64"),
        ("y = Where(x, s, s)", "bool"),
    ],
)
def test_masks(body: str, dtype: str) -> None:
    found = domain(body, dtype=dtype)
    assert (found.low, found.high, found.is_mask) == (0, 1, True)
    assert found.node or dtype == "bool"


@each_row(
    ("body", "shape", "dtype", "opset", "ends"),
    [
        ("y = Gather(table, x)", "1,4", "int64", 10, (0, 9)),  # before 11 an index is not negative
        ("y = DequantizeLinear(x, f1, zero8)", "1,4", "int8", 17, (-128, 127)),
        ("t = Transpose(x) c = Cast<to=1>(t) d = Div(c, f255) y = Relu(d)", "1,4,4,3", "uint8", 17, (0, 255)),
    ],
)
def test_what_the_type_and_the_version_allow(
    body: str, shape: str, dtype: str, opset: int, ends: tuple[int, int]
) -> None:
    found = domain(body, shape, dtype, opset=opset)
    assert (found.low, found.high) == ends


@each_row(
    ("body", "shape", "low", "why"),
    [
        ("c = Cast<to=1>(x) t = Concat<axis=1>(c, c) y = Mul(b, t)", "1,2", 1, "size"),
        ("c = Cast<to=1>(x) m = Mul(c, f1) y = Sin(m)", "1,4", None, ""),
        ("y = Expand(f1, x)", "2", None, ""),
        ("c = Cast<to=1>(x) r = ReduceSum(c) e = Equal(x, i0) y = Where(e, r, f1)", "1,4", None, ""),
        ("a = Add(x, other) y = Gather(table, a)", "1,4", None, ""),
        ("m = Sub(x, i100) z = Gather(small, m) a = Gather(table, x) y = Add(a, z)", "1,4", None, "excludes"),
    ],
)
def test_what_the_graph_does_not_say_is_unknown(body: str, shape: str, low: int | None, why: str) -> None:
    found = domain(body, shape)
    assert (found.low, found.high, found.known) == (low, None, False)
    assert found.node and why in found.why
