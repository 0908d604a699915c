"""Every value that ONNX Runtime computes lies within its bound: random graphs, random inputs inside their intervals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import graph_bounds
from sample_models.tiny_graphs import TinyGraph

pytestmark = pytest.mark.heavy

SHAPE = (2, 3, 4)
TOLERANCE = 1e-4
LARGEST = 1e4
FEED = dict[str, npt.NDArray[Any]]

UNARY = "Abs Atan Ceil Cos Elu Erf Exp Floor HardSigmoid HardSwish Identity LeakyRelu Neg Reciprocal Relu Round Selu"
UNARY += " Sigmoid Sign Sin Softplus Softsign Sqrt Tanh"
STEPPING = ["Ceil", "Floor", "Round", "Sign", "Cast <to = 7>"]

STEPS = [
    *(f"y = {op} (A)" for op in UNARY.split()),
    *(f"y = {op} (A, B)" for op in ("Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum")),
    *(f"y = {op} (A, w4)" for op in ("Add", "Div", "Mul", "Sub", "Max", "Min", "PRelu")),
    *(f"y = {op} (w4, A)" for op in ("Add", "Div", "Mul", "Sub")),
    *(f"y = Pow (A, {power})" for power in ("inverse", "mhalf", "zero", "half", "one", "two", "three", "minus")),
    *(f"y = Clip (A, {low}, {high})" for low in ("minus", "half") for high in ("one", "two")),
    "y = Softmax <axis = -1> (A)",
    "y = LogSoftmax <axis = -1> (A)",
    "k = Transpose <perm = [0, 2, 1]> (B)  s = MatMul (A, k)  p = Softmax <axis = -1> (s)  y = MatMul (p, C)",
    "m = ReduceMax <axes = [-1]> (A)  d = Sub (A, m)  e = Exp (d)  t = ReduceSum (e, last)  y = Div (e, t)",
    "p = MatMul (A, w4x4)  y = Add (p, w4)",
    "y = MatMul (w3x3, A)",
    *(
        f"f = Reshape (A, flat)  p = Gemm <alpha = {alpha}, beta = {beta}, transB = 1> (f, w4x4{bias})"
        "  y = Reshape (p, whole)"
        for alpha, beta, bias in ((0.5, -2.0, ", w4"), (-2.0, 0.5, ", w4"), (1.0, 1.0, ", w4"), (-2.0, 1.0, ""))
    ),
    *(f"y = {op} <pads = [1, 1]> (A, w3x3x3{bias})" for op in ("Conv", "ConvTranspose") for bias in ("", ", w3")),
    "y = BatchNormalization (A, w3, v3, u3, positive3)",
    "y = LayerNormalization <epsilon = 0.00001> (A, w4, v4)",
    "y = InstanceNormalization <epsilon = 0.00001> (A, w3, v3)",
    *(
        f"{centre}  {square}  m = ReduceMean <axes = {axes}> (q)  v = Add (m, little)  {quotient}"
        for axes in ("[-1]", "[1, 2]", "[1]")
        for centre in ("x0 = Identity (A)", f"a = ReduceMean <axes = {axes}> (A)  x0 = Sub (A, a)")
        for square in ("q = Mul (x0, x0)", "q = Pow (x0, two)")
        for quotient in (
            "r = Sqrt (v)  y = Div (x0, r)",
            "r = Sqrt (v)  i = Reciprocal (r)  y = Mul (x0, i)",
            "i = Pow (v, mhalf)  y = Mul (i, x0)",
        )
    ),
    *(
        f"l = {norm} <axes = [-1]> (A)  {floor}  y = Div (A, d)"
        for norm in ("ReduceL1", "ReduceL2")
        for floor in ("d = Clip (l, little)", "d = Add (l, little)")
    ),
    *(
        f"r = {op} <axes = [{axis}]> (A)  y = Add (r, B)"
        for op in ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceSumSquare")
        for axis in (0, 1, -1)
    ),
    "k, i = TopK (A, four)  f = Cast <to = 1> (i)  y = Add (k, f)",
    "g = Greater (A, B)  y = Where (g, A, B)",
    "j = Concat <axis = 1> (A, B)  y, rest = Split <axis = 1> (j)",
    "i = Cast <to = 7> (A)  y = Cast <to = 1> (i)",
    "y = CumSum (A, axis1)",
    "y = Pad (A, pads, seven)",
    "y = Trilu (A)",
    "i = ArgMax <axis = 1> (A)  f = Cast <to = 1> (i)  y = Add (f, A)",
    *(
        f"s, h = {op} <hidden_size = 4> (A, w1x{rows}x4, v1x{rows}x4)  y = Squeeze (s, axes1)"
        for op, rows in (("LSTM", 16), ("GRU", 12))
    ),
]
"""What a graph grows by: A, B and C are tensors that are there, w4 and the like stored ones of that shape, y is new."""

NUMBERS = {
    "half": 0.5,
    "one": 1,
    "two": 2,
    "three": 3,
    "zero": 0,
    "inverse": -1,
    "minus": -3,
    "mhalf": -0.5,
    "seven": -7,
}
NUMBERS |= {"little": 1e-3}
LISTS = {
    "last": [-1],
    "flat": [6, 4],
    "whole": SHAPE,
    "four": [4],
    "axis1": 1,
    "axes1": [1],
    "pads": [0, 0, 1, 0, 0, -1],
}
STORED: dict[str, Any] = {name: np.float32(number) for name, number in NUMBERS.items()}
STORED |= {name: np.asarray(numbers, np.int64) for name, numbers in LISTS.items()}

# Names of tensors: no operator, which an attribute or operand follows, and no attribute, which "=" follows.
_NAMES = re.compile(r"(?<![<\w])[A-Za-z_]\w*(?![\w(]| \(| <| =)|\b[a-z]\w*(?= = [A-Z])")


@dataclass
class Grown:
    """A graph that grows step by step; ``pool`` are its tensors of shape SHAPE, ``made`` all that are computed."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    pool: list[str] = field(default_factory=lambda: ["x", "z"])
    made: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    stored: dict[str, Any] = field(default_factory=lambda: dict(STORED))

    def grow(self, step: str) -> str:
        """Add one step with names of its own; the name of what it makes."""
        number = len(self.body)
        operands: dict[str, str] = {letter: self.draw(st.sampled_from(self.pool)) for letter in "ABC"}

        def named(found: re.Match[str]) -> str:
            name: str = found[0]
            shaped = re.fullmatch(r"(positive|[uvw])([\dx]+)", name)
            if name in STORED or name in operands:
                return operands.get(name, name)
            if shaped:
                rng = np.random.default_rng(self.draw(st.integers(0, 2**16)))
                low = 0.1 if shaped[1] == "positive" else -2.0
                shape = tuple(map(int, shaped[2].split("x")))
                self.stored[f"{name}_{number}"] = rng.uniform(low, 2, shape).astype(np.float32)
            elif f"{name}_{number}" not in self.made:
                self.made.append(f"{name}_{number}")
            return f"{name}_{number}"

        self.body.append(_NAMES.sub(named, step))
        self.pool.append(f"y_{number}")
        return self.pool[-1]

    def model(self, *outputs: str) -> ModelProto:
        """The graph with these outputs, whose types nobody states."""
        shape = ",".join(map(str, SHAPE))
        text = f"g (float[{shape}] x, float[{shape}] z) => ({', '.join(f'float {n}' for n in outputs)})"
        body = "  ".join(self.body)
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text} {{ {body} }}')
        for item in model.graph.output:
            item.ClearField("type")
        tensors = (numpy_helper.from_array(np.asarray(value), name) for name, value in self.stored.items())
        model.graph.initializer.extend(tensors)
        return model


def _checked(model: ModelProto, names: list[str], feeds: list[FEED], ends: Any) -> None:
    bounds = graph_bounds(GraphCopy(model), ends)
    session = Session(model, capture=tuple(names))
    for feed in feeds:
        values = {**feed, **session.run(feed)}
        numbers = [value for value in values.values() if value.dtype.kind == "f"]
        scale = max(1.0, *(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in numbers))
        if scale > LARGEST:  # then float32 itself is far from exact arithmetic
            continue
        for name in names:
            low, high = bounds[name]
            finite = values[name][np.isfinite(values[name])].astype(np.float64)
            slack = TOLERANCE * scale
            assert (finite >= low - slack).all(), (name, low, finite.min())
            assert (finite <= high + slack).all(), (name, high, finite.max())


def _feeds(seed: int, ends: dict[str, tuple[float, float]]) -> list[FEED]:
    rng = np.random.default_rng(seed)
    inside = [{name: rng.uniform(*e, SHAPE).astype(np.float32) for name, e in ends.items()} for _ in range(2)]
    corners = [{name: rng.choice(e, SHAPE).astype(np.float32) for name, e in ends.items()}]
    even = [{name: np.full(SHAPE, e[1], np.float32) for name, e in ends.items()}]
    return inside + corners + even


def _ends(data: st.DataObject, lows: list[float], widths: list[float]) -> dict[str, tuple[float, float]]:
    drawn = {name: data.draw(st.sampled_from(lows)) for name in ("x", "z")}
    # As float32 holds them: what is fed must not be rounded out of its own bounds.
    ends = {name: (low, low + data.draw(st.sampled_from(widths))) for name, low in drawn.items()}
    return {name: (float(np.float32(low)), float(np.float32(high))) for name, (low, high) in ends.items()}


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_steps_keep_to_their_bounds_to_the_last_bit(data: st.DataObject) -> None:
    """A hair above 3 is 4 for Ceil, so that no tolerance can stand for what float32 rounds before a step."""
    grown, ends = Grown(draw=data.draw), _ends(data, [-3.0, 0.0, 1.0, 1 / 3, 0.7, 2.0 - 2**-23], [0.0, 0.1, 1.0])
    last = "x"
    for _ in range(data.draw(st.integers(0, 3))):
        last = grown.grow(data.draw(st.sampled_from(STEPS)))
    grown.pool = [last]
    stepped = grown.grow(f"y = {data.draw(st.sampled_from(STEPPING))} (A)")
    model = grown.model(stepped)
    low, high = graph_bounds(GraphCopy(model), ends)[stepped]
    for feed in _feeds(data.draw(st.integers(0, 2**16)), ends):
        made = Session(model).run(feed)[stepped]
        numbers = made[np.isfinite(made)]
        if not made.size or np.abs(numbers).max(initial=0) > LARGEST:
            continue
        assert (numbers >= low).all(), (low, numbers.min())
        assert (numbers <= high).all(), (high, numbers.max())


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_value_lies_within_its_bound(data: st.DataObject) -> None:
    grown, ends = Grown(draw=data.draw), _ends(data, [-10.0, -1.0, 0.0, 0.5], [0.5, 1.0, 10.0])
    for _ in range(data.draw(st.integers(1, 6))):
        grown.grow(data.draw(st.sampled_from(STEPS)))
    _checked(grown.model(*grown.made), grown.made, _feeds(data.draw(st.integers(0, 2**16)), ends), ends)


@pytest.mark.parametrize(
    ("op_type", "x", "added", "expected"),
    [
        ("Floor", 1 - 2**-24, 2.0, 3.0),  # 2.99999994 is no float32: the next one is 3
        ("Ceil", 1 + 2**-23, 2.0, 3.0),  # and 3.00000012 is none either
        ("Sign", 2**-25, 1.0, 0.0),  # 1 + 2**-25 - 1
    ],
)
def test_a_step_behind_a_sum_that_is_rounded(op_type: str, x: float, added: float, expected: float) -> None:
    graph = TinyGraph()
    summed = graph.op("Add", [graph.input("x", SHAPE), graph.stored("w", added)], "s")
    if op_type == "Sign":
        summed = graph.op("Sub", [summed, graph.stored("v", added)], "d")
    graph.op(op_type, [summed], "y")
    model = graph.model("y")
    (made,) = np.unique(Session(model).run({"x": np.full(SHAPE, x, np.float32)})["y"])
    assert made == expected
    low, high = graph_bounds(GraphCopy(model), {"x": (x, x)})["y"]
    assert low <= made <= high


def test_the_check_can_fail() -> None:
    graph = TinyGraph()
    graph.op("Neg", [graph.input("x", SHAPE)], "y")
    with pytest.raises(AssertionError):
        _checked(graph.model("y"), ["y"], [{"x": np.full(SHAPE, 3, np.float32)}], {"x": (0.0, 1.0)})
