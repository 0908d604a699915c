"""Every value that ONNX Runtime computes lies within its bound: random graphs, random inputs inside their intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import graph_bounds
from sample_models.tiny_graphs import TinyGraph

SHAPE = (2, 3, 4)
TOLERANCE = 1e-4
LARGEST = 1e4

Drawn = Callable[[st.SearchStrategy[Any]], Any]


@dataclass
class Grown:
    """A graph that grows op by op; ``pool`` are its tensors of shape SHAPE."""

    draw: Drawn
    graph: TinyGraph = field(default_factory=lambda: TinyGraph(opset=17))
    pool: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    count: int = 0

    def pick(self) -> str:
        name: str = self.draw(st.sampled_from(self.pool))
        return name

    def stored(self, shape: tuple[int, ...], low: float = -2, high: float = 2) -> str:
        seed = self.draw(st.integers(0, 2**16))
        self.count += 1
        values = np.random.default_rng(seed).uniform(low, high, shape)
        return self.graph.stored(f"w{self.count}", values)

    def scalar(self, *choices: float) -> str:
        self.count += 1
        return self.graph.stored(f"s{self.count}", self.draw(st.sampled_from(choices)))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        self.count += 1
        names = [f"t{self.count}_{index}" for index in range(outputs)]
        self.made += names
        return self.graph.op(op_type, list(inputs), names, **attributes)


UNARY = [
    "Abs",
    "Atan",
    "Ceil",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
]
UNARY += ["LeakyRelu", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign"]
UNARY += ["Sqrt", "Tanh"]
BINARY = ["Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum"]


def _unary(g: Grown) -> str:
    op_type = g.draw(st.sampled_from(UNARY))
    return g.op(op_type, g.pick())


def _binary(g: Grown) -> str:
    return g.op(g.draw(st.sampled_from(BINARY)), g.pick(), g.pick())


def _with_stored(g: Grown) -> str:
    operands = [g.pick(), g.stored((4,))]
    if g.draw(st.booleans()):
        operands.reverse()
    return g.op(g.draw(st.sampled_from(["Add", "Div", "Mul", "Sub", "Max", "Min"])), *operands)


def _power(g: Grown) -> str:
    return g.op("Pow", g.pick(), g.scalar(-2, -1, -0.5, 0, 0.5, 1, 2, 3))


def _clip(g: Grown) -> str:
    return g.op("Clip", g.pick(), g.scalar(-3, 0, 0.5), g.scalar(1, 6))


def _prelu(g: Grown) -> str:
    return g.op("PRelu", g.pick(), g.stored((4,)))


def _softmax(g: Grown) -> str:
    return g.op(g.draw(st.sampled_from(["Softmax", "LogSoftmax"])), g.pick(), axis=-1)


def _attention(g: Grown) -> str:
    scores = g.op("MatMul", g.pick(), g.op("Transpose", g.pick(), perm=[0, 2, 1]))
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), g.pick())


def _written_softmax(g: Grown) -> str:
    x = g.pick()
    e = g.op("Exp", g.op("Sub", x, g.op("ReduceMax", x, axes=[-1], keepdims=1)))
    g.count += 1
    axes = g.graph.stored(f"axes{g.count}", [-1], "int64")
    return g.op("Div", e, g.op("ReduceSum", e, axes, keepdims=1))


def _matmul(g: Grown) -> str:
    return g.op("Add", g.op("MatMul", g.pick(), g.stored((4, 4))), g.stored((4,)))


def _left_matmul(g: Grown) -> str:
    return g.op("MatMul", g.stored((3, 3)), g.pick())


def _gemm(g: Grown) -> str:
    g.count += 1
    flat = g.graph.stored(f"flat{g.count}", [6, 4], "int64")
    back = g.graph.stored(f"back{g.count}", list(SHAPE), "int64")
    bias = [g.stored((4,))] if g.draw(st.booleans()) else []
    alpha, beta = (g.draw(st.sampled_from([0.5, 1.0, -2.0])) for _ in range(2))
    made = g.op("Gemm", g.op("Reshape", g.pick(), flat), g.stored((4, 4)), *bias, alpha=alpha, beta=beta, transB=1)
    return g.op("Reshape", made, back)


def _conv(g: Grown) -> str:
    bias = [g.stored((3,))] if g.draw(st.booleans()) else []
    kind = g.draw(st.sampled_from(["Conv", "ConvTranspose"]))
    return g.op(kind, g.pick(), g.stored((3, 3, 3)), *bias, pads=[1, 1])


def _batch_norm(g: Grown) -> str:
    scale, bias, mean = (g.stored((3,)) for _ in range(3))
    return g.op("BatchNormalization", g.pick(), scale, bias, mean, g.stored((3,), 0.1, 2))


def _norm(g: Grown) -> str:
    if g.draw(st.booleans()):
        return g.op("LayerNormalization", g.pick(), g.stored((4,)), g.stored((4,)), epsilon=1e-5)
    return g.op("InstanceNormalization", g.pick(), g.stored((3,)), g.stored((3,)), epsilon=1e-5)


def _written_norm(g: Grown) -> str:
    x, axes = g.pick(), g.draw(st.sampled_from([[-1], [1, 2], [1]]))
    if g.draw(st.booleans()):
        x = g.op("Sub", x, g.op("ReduceMean", x, axes=axes))
    square = g.op("Mul", x, x) if g.draw(st.booleans()) else g.op("Pow", x, g.scalar(2))
    plus = g.op("Add", g.op("ReduceMean", square, axes=axes), g.scalar(1e-3, 1e-2))
    form = g.draw(st.sampled_from(["div", "reciprocal", "pow"]))
    if form == "pow":
        return g.op("Mul", g.op("Pow", plus, g.scalar(-0.5)), x)
    root = g.op("Sqrt", plus)
    return g.op("Div", x, root) if form == "div" else g.op("Mul", x, g.op("Reciprocal", root))


def _unit(g: Grown) -> str:
    x = g.pick()
    length = g.op(g.draw(st.sampled_from(["ReduceL2", "ReduceL1"])), x, axes=[-1])
    floor = g.op("Clip", length, g.scalar(1e-3, 1e-2)) if g.draw(st.booleans()) else g.op("Add", length, g.scalar(1e-3))
    return g.op("Div", x, floor)


def _gate(g: Grown) -> str:
    x, factor = g.pick(), g.scalar(0.5, 1, 1.702)
    kind = g.draw(st.sampled_from(["Sigmoid", "Erf", "Tanh"]))
    inner = g.op("Mul", x, factor)
    if kind == "Tanh":
        inner = g.op("Add", inner, g.op("Mul", g.op("Pow", x, g.scalar(3)), g.scalar(0.044715)))
    gate = g.op(kind, inner)
    if kind != "Sigmoid":
        gate = g.op("Add", gate, g.scalar(1))
    if g.draw(st.booleans()):
        return g.op("Mul", g.op("Mul", x, g.scalar(0.5)), gate)
    return g.op("Mul", g.op("Mul", x, gate), g.scalar(0.5))


def _reduce(g: Grown) -> str:
    kind = g.draw(
        st.sampled_from(["ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceSumSquare"])
    )
    return g.op("Add", g.op(kind, g.pick(), axes=[g.draw(st.sampled_from([0, 1, 2, -1]))]), g.pick())


def _select(g: Grown) -> str:
    op = g.draw(st.sampled_from(["TopK", "Where", "Concat", "Cast", "CumSum", "Pad", "Trilu", "ArgMax"]))
    x = g.pick()
    g.count += 1
    if op == "TopK":
        k = g.graph.stored(f"k{g.count}", [4], "int64")
        values = g.op("TopK", x, k, outputs=2)
        return g.op("Add", values, g.op("Cast", g.made[-1], to=1))
    if op == "Where":
        return g.op("Where", g.op("Greater", x, g.pick()), x, g.pick())
    if op == "Concat":
        joined = g.op("Concat", x, g.pick(), axis=1)
        return g.op("Split", joined, outputs=2, axis=1)
    if op == "Cast":
        return g.op("Cast", g.op("Cast", x, to=7), to=1)
    if op == "CumSum":
        return g.op("CumSum", x, g.graph.stored(f"a{g.count}", 1, "int64"))
    if op == "Pad":
        pads = g.graph.stored(f"p{g.count}", [0, 0, 1, 0, 0, -1], "int64")
        return g.op("Pad", x, pads, g.scalar(-7, 7))
    if op == "ArgMax":
        return g.op("Add", g.op("Cast", g.op("ArgMax", x, axis=1), to=1), x)
    return g.op("Trilu", x)


def _recurrent(g: Grown) -> str:
    kind, gates = g.draw(st.sampled_from([("LSTM", 4), ("GRU", 3)]))
    y = g.op(kind, g.pick(), g.stored((1, gates * 4, 4)), g.stored((1, gates * 4, 4)), outputs=2, hidden_size=4)
    g.count += 1
    return g.op("Squeeze", y, g.graph.stored(f"one{g.count}", [1], "int64"))


STEPS = [_unary, _binary, _with_stored, _power, _clip, _prelu, _softmax, _attention, _written_softmax, _matmul]
STEPS += [_left_matmul, _gemm, _conv, _batch_norm, _norm, _written_norm, _unit, _gate, _reduce, _select, _recurrent]


def _checked(model: ModelProto, names: list[str], feeds: list[dict[str, npt.NDArray[Any]]], ends: Any) -> int:
    """How many values were compared with a bound that says something."""
    bounds = graph_bounds(GraphCopy(model), ends)
    session = Session(model, capture=tuple(names))
    compared = 0
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
            compared += finite.size if np.isfinite([low, high]).any() else 0
    return compared


STEPPING = ["Ceil", "Floor", "Round", "Sign", "Cast"]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_steps_keep_to_their_bounds_to_the_last_bit(data: st.DataObject) -> None:
    """A hair above 3 is 4 for Ceil, so that no tolerance can stand for what float32 rounds before a step."""
    grown = Grown(draw=data.draw)
    ends: dict[str, tuple[float, float]] = {}
    for name in ("x", "z"):
        low = data.draw(st.sampled_from([-3.0, 0.0, 1.0, 1 / 3, 0.7, 2.0 - 2**-23]))
        ends[name] = (low, low + data.draw(st.sampled_from([0.0, 0.1, 1.0])))
        grown.pool.append(grown.graph.input(name, SHAPE))
    for _ in range(data.draw(st.integers(0, 3))):
        grown.pool.append(data.draw(st.sampled_from(STEPS))(grown))
    op_type = data.draw(st.sampled_from(STEPPING))
    stepped = grown.op(op_type, grown.pool[-1], **({"to": 7} if op_type == "Cast" else {}))
    model = grown.graph.model(stepped)
    low, high = graph_bounds(GraphCopy(model), ends)[stepped]
    for feed in _feeds(data.draw(st.integers(0, 2**16)), ends):
        made = Session(model).run(feed)[stepped]
        numbers = made[np.isfinite(made)]
        if not made.size or np.abs(numbers).max(initial=0) > LARGEST:
            continue
        assert (numbers >= low).all(), (low, numbers.min())
        assert (numbers <= high).all(), (high, numbers.max())


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


def _feeds(seed: int, ends: dict[str, tuple[float, float]]) -> list[dict[str, npt.NDArray[Any]]]:
    rng = np.random.default_rng(seed)
    inside = [{name: rng.uniform(*e, SHAPE).astype(np.float32) for name, e in ends.items()} for _ in range(2)]
    corners = [{name: rng.choice(e, SHAPE).astype(np.float32) for name, e in ends.items()}]
    even = [{name: np.full(SHAPE, e[1], np.float32) for name, e in ends.items()}]
    return inside + corners + even


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_value_lies_within_its_bound(data: st.DataObject) -> None:
    grown = Grown(draw=data.draw)
    ends: dict[str, tuple[float, float]] = {}
    for name in ("x", "z"):
        low = data.draw(st.sampled_from([-10.0, -1.0, 0.0, 0.5]))
        ends[name] = (low, low + data.draw(st.sampled_from([0.5, 1.0, 10.0])))
        grown.pool.append(grown.graph.input(name, SHAPE))
    for _ in range(data.draw(st.integers(1, 6))):
        grown.pool.append(data.draw(st.sampled_from(STEPS))(grown))
    _checked(grown.graph.model(*grown.made), grown.made, _feeds(data.draw(st.integers(0, 2**16)), ends), ends)


def test_the_check_can_fail() -> None:
    graph = TinyGraph()
    graph.op("Neg", [graph.input("x", SHAPE)], "y")
    with pytest.raises(AssertionError):
        _checked(graph.model("y"), ["y"], [{"x": np.full(SHAPE, 3, np.float32)}], {"x": (0.0, 1.0)})
