"""What tensors prove of each other, number by number: quotients, weights that add up to one, gates."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from deploykit.model import load_model
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import Interval, graph_bounds
from tables import each_row

ZOO = Path(__file__).parents[1] / "data" / "zoo"
INF = math.inf
ALL = (-INF, INF)

Bound = Callable[..., Interval]


def lowest(gate: Callable[[float], float]) -> float:
    """The least value of x * gate(x), looked for on a fine grid below zero."""
    return min(number / 10_000 * gate(number / 10_000) for number in range(-40_000, 0))


SILU = lowest(lambda x: 1 / (1 + math.exp(-x)))
GELU = lowest(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))))
MEAN = "q = Mul (x, x)  m = ReduceMean <axes = [-1]> (q)"
L2 = "l = ReduceL2 <axes = [-1]> (x)"

RATIOS = [
    # As in the steps of RWKV, whose exponents are differences to the larger of two.
    ("m = Max (z, x)  y = Sub (x, m)", (-INF, 0)),
    ("m = Max (z, x)  y = Sub (m, x)", (0, INF)),
    ("m = Min (z, x)  y = Sub (x, m)", (0, INF)),
    ("m = Min (z, x)  y = Sub (m, x)", (-INF, 0)),
    ("m = ReduceMax <axes = [-1]> (x)  d = Sub (x, m)  y = Exp (d)", (0, 1)),
    ("m = ReduceMax <axes = [-1]> (x)  d = Sub (x, m)  e = Exp (d)  t = ReduceSum (e, last)  y = Div (e, t)", (0, 1)),
    # Exports compute x - mean twice, under two names.
    (
        "a = ReduceMean <axes = [-1]> (x)  c = Sub (x, a)  q = Pow (c, two)  m = ReduceMean <axes = [-1]> (q)"
        "  p1 = Add (m, half)  l = Sqrt (p1)  again = Sub (x, a)  y = Div (again, l)",
        (-2, 2),
    ),
    # A constant is no gated operand.
    ("g1 = Sigmoid (x)  y = Mul (three, g1)", (0, 3)),
    ("g1 = Sigmoid (x)  y = Mul (nothing, g1)", (0, 0)),
    ("m = ReduceMax <axes = [-1]> (x)  y = Sub (x, m)", (-INF, 0)),
    ("m = ReduceMax <axes = [-1], keepdims = 0> (x)  y = Sub (x, m)", ALL),
    ("m = ReduceMax <axes = [-1]> (x)  y = Sub (z, m)", ALL),
    (f"{L2}  y = Div (x, l)", (-1, 1)),
    ("l = ReduceL1 <axes = [-1]> (x)  y = Div (x, l)", (-1, 1)),
    ("l = ReduceL2 <axes = [-1], keepdims = 0> (x)  y = Div (x, l)", ALL),
    ("l = ReduceL2 <axes = [-1]> (z)  y = Div (x, l)", ALL),
    ("a = Abs (x)  l = ReduceSum (a, last)  y = Div (x, l)", (-1, 1)),
    ("a = Abs (x)  l = ReduceMax <axes = [-1]> (a)  y = Div (x, l)", (-1, 1)),
    ("a = Abs (z)  l = ReduceMax <axes = [-1]> (a)  y = Div (x, l)", ALL),
    ("l = ReduceMax <axes = [-1]> (x)  y = Div (x, l)", ALL),
    ("q = Mul (x, x)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", (-1, 1)),
    ("q = Mul (x, z)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", ALL),
    ("q = Mul (z, z)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", ALL),
    ("q = Pow (x, two)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", (-1, 1)),
    ("q = Pow (x, four)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", ALL),
    ("s = ReduceSumSquare <axes = [-1]> (x)  l = Sqrt (s)  y = Div (x, l)", (-1, 1)),
    ("s = ReduceSumSquare <axes = [-1], keepdims = 0> (x)  l = Sqrt (s)  y = Div (x, l)", ALL),
    (f"{MEAN}  l = Sqrt (m)  y = Div (x, l)", (-2, 2)),
    ("q = Mul (x, x)  m = ReduceMean <axes = [1, 2]> (q)  l = Sqrt (m)  y = Div (x, l)", (-(12**0.5), 12**0.5)),
    ("q = Mul (x, x)  m = ReduceMean (q)  l = Sqrt (m)  y = Div (x, l)", (-(24**0.5), 24**0.5)),
    (f"{MEAN}  l = Pow (m, half)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  l = Pow (m, two)  y = Div (x, l)", ALL),
    (f"{MEAN}  p1 = Add (m, half)  l = Sqrt (p1)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  p1 = Add (half, m)  l = Sqrt (p1)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  p1 = Add (m, nothing)  l = Sqrt (p1)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  p1 = Add (m, minus)  l = Sqrt (p1)  y = Div (x, l)", ALL),
    (f"{MEAN}  p1 = Max (m, minus)  l = Sqrt (p1)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  p1 = Mul (m, four)  l = Sqrt (p1)  y = Div (x, l)", (-1, 1)),
    (f"{MEAN}  p1 = Div (m, four)  l = Sqrt (p1)  y = Div (x, l)", (-4, 4)),
    (f"{L2}  d = Mul (l, two)  y = Div (x, d)", (-0.5, 0.5)),
    (f"{L2}  d = Mul (two, l)  y = Div (x, d)", (-0.5, 0.5)),
    (f"{L2}  d = Div (l, two)  y = Div (x, d)", (-2, 2)),
    (f"{L2}  d = Mul (l, half)  y = Div (x, d)", (-2, 2)),
    (f"{L2}  d = Mul (l, nothing)  y = Div (x, d)", ALL),
    (f"{L2}  d = Identity (l)  y = Div (x, d)", (-1, 1)),
    (f"{L2}  d = Reciprocal (l)  e = Cast <to = 10> (d)  y = Mul (x, e)", (-1, 1)),
    (f"{L2}  d = Reciprocal (l)  e = Cast <to = 6> (d)  f = Cast <to = 1> (e)  y = Mul (x, f)", ALL),
    (f"{L2}  d = Div (two, l)  y = Div (x, d)", ALL),
    (f"{L2}  d = Mul (l, minus)  y = Div (x, d)", ALL),
    (f"{L2}  d = Sub (l, half)  y = Div (x, d)", ALL),
    (f"{L2}  d = Clip (l, half)  y = Div (x, d)", (-1, 1)),
    (f"{L2}  d = Clip (l, half, four)  y = Div (x, d)", ALL),
    (f"{L2}  d = Cast <to = 10> (l)  y = Div (x, d)", (-1, 1)),
    (f"{L2}  d = Cast <to = 6> (l)  e = Cast <to = 1> (d)  y = Div (x, e)", ALL),
    (f"{L2}  v = Reciprocal (l)  y = Mul (x, v)", (-1, 1)),
    (f"{L2}  v = Reciprocal (l)  y = Mul (v, x)", (-1, 1)),
    (f"{L2}  v = Reciprocal (l)  y = Mul (v, z)", ALL),
    (f"{L2}  v = Div (two, l)  y = Mul (x, v)", (-2, 2)),
    (f"{L2}  v = Div (minus, l)  y = Mul (x, v)", (-1, 1)),
    (f"{MEAN}  v = Pow (m, mhalf)  y = Mul (x, v)", (-2, 2)),
    (f"{MEAN}  v = Pow (m, minus)  y = Mul (x, v)", ALL),
]


@each_row(("body", "expected"), RATIOS, ids=[body for body, _ in RATIOS])
def test_a_tensor_over_what_is_at_least_as_large(body: str, expected: Interval, bound: Bound) -> None:
    """Nothing is known of ``x`` and ``z``."""
    assert bound(body) == pytest.approx(expected, rel=1e-6)


def test_a_tensor_over_its_own_largest_is_at_most_one_where_it_is_not_negative(bound: Bound) -> None:
    body = "l = ReduceMax <axes = [-1]> (x)  y = Div (x, l)"
    assert bound(body, x=(0, 9)) == (0, 1)
    assert bound(body, x=(-1, 9)) == ALL


@each_row(
    ("body", "opset", "expected"),
    [
        ("w = Softmax <axis = -1> (p)  y = MatMul (w, x)", 13, (1, 2)),
        ("w = Softmax <axis = 2> (p)  y = MatMul (w, x)", 13, (1, 2)),
        ("w = Softmax <axis = 1> (p)  y = MatMul (w, x)", 13, (0, 6)),
        ("w = Softmax (p)  y = MatMul (w, x)", 13, (1, 2)),
        ("w = Softmax <axis = 2> (p)  y = MatMul (w, x)", 12, (1, 2)),
        ("w = Softmax (p)  y = MatMul (w, x)", 12, (0, 2)),
        ("e = Exp (p)  s = ReduceSum (e, last)  w = Div (e, s)  y = MatMul (w, x)", 13, (1, 2)),
        ("e = Exp (p)  s = ReduceSum (e, middle)  w = Div (e, s)  y = MatMul (w, x)", 13, (0, 6)),
        ("s = ReduceSum (p, last)  w = Div (p, s)  y = MatMul (w, x)", 13, ALL),
        ("v = Softmax (p)  w = Cast <to = 10> (v)  y = MatMul (w, x)", 13, (1, 2)),
        ("v = Softmax (p)  c = Cast <to = 6> (v)  w = Cast <to = 1> (c)  y = MatMul (w, x)", 13, (0, 6)),
    ],
)
def test_weights_that_add_up_to_one(body: str, opset: int, expected: Interval, bound: Bound) -> None:
    assert bound(body, opset, x=(1, 2)) == pytest.approx(expected)


@each_row(
    ("body", "least"),
    [
        ("s = Sigmoid (x)  y = Mul (x, s)", SILU),
        ("s = Sigmoid (x)  y = Mul (s, x)", SILU),
        ("a = Mul (x, two)  s = Sigmoid (a)  y = Mul (x, s)", SILU / 2),
        ("a = Div (x, two)  s = Sigmoid (a)  y = Mul (x, s)", SILU * 2),
        ("s = Sigmoid (x)  b = Mul (x, two)  y = Mul (b, s)", SILU * 2),
        ("s = Sigmoid (x)  h = Mul (s, two)  y = Mul (x, h)", SILU * 2),
        ("s = Sigmoid (x)  h = Div (s, two)  y = Mul (x, h)", SILU / 2),
        ("c = Pow (x, three)  a = Add (x, c)  s = Sigmoid (a)  y = Mul (x, s)", SILU),
        ("e = Tanh (x)  g1 = Add (e, one)  y = Mul (x, g1)", SILU),
        ("a = Div (x, root2)  e = Erf (a)  g1 = Add (one, e)  h = Mul (x, half)  y = Mul (h, g1)", GELU),
    ],
)
def test_a_gate_that_rises_with_its_operand_has_a_dip(body: str, least: float, bound: Bound) -> None:
    assert bound(body, x=(-50, 7))[0] == pytest.approx(least, rel=1e-3)


@each_row(
    "body",
    [
        "s = Sigmoid (z)  y = Mul (x, s)",
        "a = Mul (x, minus)  s = Sigmoid (a)  y = Mul (x, s)",
        "a = Add (x, one)  s = Sigmoid (a)  y = Mul (x, s)",
        "a = Mul (x, x)  s = Sigmoid (a)  y = Mul (x, s)",
        "c = Pow (x, three)  a = Sub (x, c)  s = Sigmoid (a)  y = Mul (x, s)",
        "e = Tanh (x)  g1 = Add (e, two)  y = Mul (x, g1)",
        "a = Mul (x, two)  b = Mul (a, x)  s = Sigmoid (b)  y = Mul (x, s)",
        "s = Sigmoid (x)  b = Add (x, one)  y = Mul (b, s)",
    ],
)
def test_other_products_with_a_gate_have_none(body: str, bound: Bound) -> None:
    """Far below what any dip reaches."""
    assert bound(body, x=(-50, 7))[0] < -20


@pytest.mark.parametrize(("name", "most"), [("distilbert", 100.0), ("segformer", 1e4)])
def test_every_norm_of_true_exports_is_bounded(name: str, most: float) -> None:
    model = load_model(ZOO / name / "model.onnx")
    found = graph_bounds(GraphCopy(model.proto, copy=False))
    norms = [node.output[0] for node in model.proto.graph.node if node.op_type == "Div" and "norm" in node.name.lower()]
    assert len(norms) >= 5
    assert all(max(map(abs, found[norm])) <= most for norm in norms)
