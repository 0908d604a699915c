"""Interval arithmetic: what a rule is given about one node, and the rules of element-wise and recurrent operators.

Every bound holds in exact arithmetic; what float32 rounds beyond it is the business of ``ranges``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute
from deploykit.model.operators import RANGES, Trait, ops
from deploykit.model.shape_inference import Shape
from deploykit.model.values import element_count

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = [
    "ANYTHING",
    "FUNCTIONS",
    "SILU_LOWEST",
    "Case",
    "Interval",
    "Rule",
    "both",
    "clip_bounds",
    "hull",
    "product",
    "scaled_hull",
    "total",
    "weighted",
]

Interval: TypeAlias = tuple[float, float]
ANYTHING: Interval = (-math.inf, math.inf)

_WORTH_READING = 1 << 22
"""Stored tensors with more elements are not read: 16 MB in float32."""


@dataclass(frozen=True, slots=True)
class Case:
    """One node with what is known of its operands. ``types`` has (dtype, shape) of the graph's computed tensors."""

    graph: GraphCopy
    node: NodeProto
    bounds: Mapping[str, Interval]
    types: Mapping[str, tuple[str, Shape]]

    def name(self, index: int) -> str:
        """The name of an operand, "" where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def of(self, index: int) -> Interval:
        """The bounds of an operand."""
        return self.bounds.get(self.name(index), ANYTHING)

    @property
    def operands(self) -> list[Interval]:
        """The bounds of all operands that are there."""
        return [self.bounds.get(name, ANYTHING) for name in self.node.input if name]

    def shape(self, index: int) -> tuple[int | None, ...] | None:
        """The shape of an operand, None in place of dimensions that are not numbers."""
        return self.shape_of(self.name(index))

    def shape_of(self, name: str) -> tuple[int | None, ...] | None:
        """The shape of any tensor."""
        stored = self.graph.stored.get(name)
        found: Shape = tuple(stored.dims) if stored is not None else self.types.get(name, ("", None))[1]
        return None if found is None else tuple(dim if isinstance(dim, int) else None for dim in found)

    def is_float(self, name: str) -> bool:
        """True where a tensor is known to hold floats."""
        stored = self.graph.stored.get(name)
        if stored is not None:
            return stored.data_type in (stored.FLOAT, stored.FLOAT16, stored.BFLOAT16, stored.DOUBLE)
        return self.types.get(name, ("", None))[0] in ("float", "float16", "bfloat16", "double")

    def array(self, index: int) -> npt.NDArray[Any] | None:
        """The finite stored values of an operand in double precision; None where there are none or too many to read."""
        name = self.name(index)
        tensor = self.graph.stored.get(self.graph.origin(name)) if name else None
        if tensor is None or element_count(tensor, name) > _WORTH_READING:
            return None
        value = self.graph.array(name)
        if value is None or not value.size or value.dtype.kind not in "fiub":
            return None
        wide = value.astype(np.float64)
        return wide if bool(np.isfinite(wide).all()) else None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute of the node, or the default."""
        return attribute(self.node, name, default)

    def count(self, axes: Iterable[int] | None) -> int | None:
        """How many elements of the first operand are taken together along some axes (all of them for None)."""
        shape = self.shape(0)
        if shape is None:
            return None
        chosen = range(len(shape)) if axes is None else axes
        if any(not -len(shape) <= axis < len(shape) for axis in chosen):
            return None
        dims = [shape[axis] for axis in chosen]
        return None if any(dim is None for dim in dims) else math.prod(dim for dim in dims if dim is not None)

    def reduced_axes(self) -> list[int] | None:
        """The axes of a reduction, [] for all of them; None where they are computed."""
        axes = self.get("axes")
        if axes is None and self.name(1):
            stored = self.array(1)
            return None if stored is None else [int(axis) for axis in stored.ravel()]
        return [] if axes is None else [int(axis) for axis in axes]


Rule: TypeAlias = Callable[[Case], Interval]
"""The bounds of a node's first output."""


def both(a: Interval, b: Interval) -> Interval:
    """What lies in both; the first where that is nothing."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else a


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval around all of them; anything when there are none."""
    found = list(intervals)
    return (min(low for low, _ in found), max(high for _, high in found)) if found else ANYTHING


def product(a: Interval, b: Interval) -> Interval:
    """All products; zero times whatever an open end stands for is zero."""
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def total(a: Interval, b: Interval) -> Interval:
    """All sums."""
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def scaled_hull(factors: npt.NDArray[Any], offsets: npt.NDArray[Any], values: Interval) -> Interval:
    """The hull of ``factor * value + offset`` over paired factors and offsets."""
    positive, negative = np.maximum(factors, 0), np.minimum(factors, 0)
    return weighted(positive, negative, offsets, values)


def weighted(
    positive: npt.NDArray[Any], negative: npt.NDArray[Any], offsets: npt.NDArray[Any] | float, values: Interval
) -> Interval:
    """The hull of sums whose weights add up to ``positive`` and ``negative``, element by element."""
    low, high = values
    with np.errstate(invalid="ignore", over="ignore"):
        below = _part(positive, low) + _part(negative, high) + offsets
        above = _part(positive, high) + _part(negative, low) + offsets
    least, most = float(np.min(below)), float(np.max(above))
    return (-math.inf if math.isnan(least) else least), (math.inf if math.isnan(most) else most)


def _part(weights: npt.NDArray[Any], end: float) -> npt.NDArray[Any]:
    return np.where(weights == 0, 0.0, weights * end)


SILU_LOWEST = -0.27846454276107379
"""The least value of x * sigmoid(x), at x = -1.2785."""

_GELU_LOWEST = -0.17004075057125412
"""Below the least value of x * Phi(x) (-0.16997) and of its tanh form (-0.17004)."""

_MISH_LOWEST = -0.30884
_ZERO: Interval = (0.0, 0.0)


def _always(low: float, high: float) -> Rule:
    return lambda _case: (low, high)


def _rising(function: Callable[[float], float]) -> Rule:
    """A rule for a function that never falls."""
    return lambda case: (function(case.of(0)[0]), function(case.of(0)[1]))


def _dipping(lowest: float, rise: Callable[[float], float]) -> Rule:
    """A rule for x times a gate between 0 and 1: it falls to ``lowest`` and then rises as ``rise`` does."""

    def rule(case: Case) -> Interval:
        low, high = case.of(0)
        return max(lowest, min(low, 0.0)), rise(high)

    return rule


def _add(case: Case) -> Interval:
    return total(case.of(0), case.of(1))


def _sub(case: Case) -> Interval:
    low, high = case.of(1)
    return _ZERO if case.name(0) == case.name(1) else total(case.of(0), (-high, -low))


def _mul(case: Case) -> Interval:
    a, b = case.of(0), case.of(1)
    return _square(a) if case.name(0) == case.name(1) else product(a, b)


def _square(a: Interval) -> Interval:
    low, high = _absolute(a)
    return low * low, high * high


def _absolute(a: Interval) -> Interval:
    low, high = a
    return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _div(case: Case) -> Interval:
    low, high = product(case.of(0), _inverse(case.of(1)))
    if not case.is_float(case.name(0)):  # integers are cut towards zero
        low = math.floor(low) if math.isfinite(low) else low
        high = math.ceil(high) if math.isfinite(high) else high
    return low, high


def _inverse(b: Interval) -> Interval:
    """1 / b; no upper bound above a lower end at zero, none at all with a zero elsewhere: 1 / +0 tops everything."""
    low, high = b
    if low > 0 or high < 0:
        return 1 / high, 1 / low
    if low == 0 and high > 0:
        return 1 / high, math.inf
    return ANYTHING


def _pow(case: Case) -> Interval:
    exponent = case.graph.scalar(case.name(1))
    low, high = case.of(0)
    if exponent is None:
        return ANYTHING
    if exponent == 0:
        return 1.0, 1.0
    if float(exponent).is_integer():
        if exponent % 2 == 0:
            low, high = _absolute((low, high))
        elif exponent < 0 and low <= 0 <= high:
            return ANYTHING
        elif high <= 0 or low < 0:
            ends = sorted((_power(low, exponent), _power(high, exponent)))
            return ends[0], ends[1]
    else:
        low, high = max(low, 0.0), max(high, 0.0)  # of negative numbers it is NaN
    ends = sorted((_power(low, exponent), _power(high, exponent)))
    return ends[0], ends[1]


def _power(value: float, exponent: float) -> float:
    if value == 0 and exponent < 0:
        return math.inf
    try:
        return float(value**exponent)
    except OverflowError:
        return -math.inf if value < 0 and exponent % 2 == 1 else math.inf


def _clip(case: Case) -> Interval:
    low, high = case.of(0)
    floor, ceiling = clip_bounds(case.graph, case.node)
    return min(max(low, floor), ceiling), min(max(high, floor), ceiling)


def clip_bounds(graph: GraphCopy, node: NodeProto) -> Interval:
    """The two bounds of a Clip node, infinite where absent or unknown."""
    if len(node.input) == 1 and graph.opset < 11:
        return float(attribute(node, "min", -math.inf)), float(attribute(node, "max", math.inf))
    low = graph.scalar(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    high = graph.scalar(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    return (-math.inf if low is None else low), (math.inf if high is None else high)


def _cast(case: Case) -> Interval:
    low, high = case.of(0)
    to = case.get("to")
    if to == 9:  # TensorProto.BOOL
        return 0.0, 1.0
    if to in _FLOAT_TYPES:
        return low, high
    kept = _INTEGER_RANGES.get(to)
    if kept is None or not (math.isfinite(low) and math.isfinite(high)):
        return ANYTHING
    if low < kept[0] or high > kept[1]:
        return kept  # beyond what the type holds a Cast wraps around or gives anything
    return float(math.ceil(low) if low < 0 else math.floor(low)), float(
        math.ceil(high) if high < 0 else math.floor(high)
    )


# Element types of onnx.proto, TensorProto.DataType.
_FLOAT_TYPES = frozenset({1, 10, 11, 16})
_INTEGER_RANGES: Mapping[int, Interval] = {
    **{number: (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) for number, bits in ((3, 8), (5, 16), (6, 32), (7, 64))},
    **{number: (0.0, 2.0**bits - 1) for number, bits in ((2, 8), (4, 16), (12, 32), (13, 64))},
}


def _max(case: Case) -> Interval:
    return max(low for low, _ in case.operands), max(high for _, high in case.operands)


def _min(case: Case) -> Interval:
    return min(low for low, _ in case.operands), min(high for _, high in case.operands)


def _sum(case: Case) -> Interval:
    found = _ZERO
    for operand in case.operands:
        found = total(found, operand)
    return found


def _mean(case: Case) -> Interval:
    low, high = _sum(case)
    return low / len(case.operands), high / len(case.operands)


def _mod(case: Case) -> Interval:
    """Of fmod the sign of the dividend, else that of the divisor; always smaller than the divisor."""
    most = _absolute(case.of(1))[1]
    if case.get("fmod", 0):
        low, high = case.of(0)
        return max(-most, min(low, 0.0)), min(most, max(high, 0.0))
    low, high = case.of(1)
    return (0.0 if low >= 0 else -most), (0.0 if high <= 0 else most)


def _leaky(case: Case) -> Interval:
    low, high = case.of(0)
    slope = float(case.get("alpha", 0.01))
    ends = [value if value >= 0 else slope * value for value in (low, high)]
    return hull([(end, end) for end in (*ends, *([0.0] if low < 0 < high else []))])


def _prelu(case: Case) -> Interval:
    """max(x, 0) + slope * min(x, 0)."""
    low, high = case.of(0)
    return total((max(low, 0.0), max(high, 0.0)), product(case.of(1), (min(low, 0.0), min(high, 0.0))))


def _log_softmax(case: Case) -> Interval:
    low, high = case.of(0)
    length = case.count([int(case.get("axis", -1 if case.graph.opset >= 13 else 1))])
    if length is None or case.graph.opset < 13 or not math.isfinite(low) or not math.isfinite(high):
        return -math.inf, 0.0
    return low - high - math.log(max(length, 1)), 0.0


def _dequantize(case: Case) -> Interval:
    """(q - zero) * scale, where both are stored scalars; quantized zero is read as a number."""
    scale = case.graph.scalar(case.name(1))
    zero = case.graph.scalar(case.name(2)) if case.name(2) else 0.0
    if scale is None or zero is None:
        return ANYTHING
    return product(total(case.of(0), (-zero, -zero)), (scale, scale))


def _quantize(case: Case) -> Interval:
    """What the type of the zero point holds: beyond it values saturate."""
    zero = case.graph.stored.get(case.graph.origin(case.name(2))) if case.name(2) else None
    return (0.0, 255.0) if zero is None else _INTEGER_RANGES.get(zero.data_type, ANYTHING)


def _recurrent(case: Case) -> Interval:
    """Hidden states of the usual activations (sigmoid and tanh), starting at zero or at a given state."""
    if case.get("activations") or case.get("clip"):
        return ANYTHING
    return hull([(-1.0, 1.0), *([case.of(5)] if case.name(5) else [])])


def _relu(value: float) -> float:
    return max(value, 0.0)


def _exp(value: float) -> float:
    return math.inf if value > 709 else math.exp(value)


def _log(value: float) -> float:
    if value <= 0:
        return -math.inf
    return math.inf if math.isinf(value) else math.log(value)


def _sigmoid(value: float) -> float:
    return 0.0 if value < -700 else 1.0 / (1.0 + math.exp(-value))


def _softplus(value: float) -> float:
    return value if value > 700 else math.log1p(math.exp(value))


def _sqrt(value: float) -> float:
    return math.sqrt(value) if value > 0 else 0.0


def _hard_sigmoid(case: Case) -> Interval:
    alpha, beta = float(case.get("alpha", 0.2)), float(case.get("beta", 0.5))
    low, high = total(product((alpha, alpha), case.of(0)), (beta, beta))
    return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def _elu(case: Case) -> Interval:
    alpha = float(case.get("alpha", 1.0))
    if alpha < 0:
        return ANYTHING
    low, high = (value if value > 0 else alpha * math.expm1(value) for value in case.of(0))
    return low, high


def _selu(case: Case) -> Interval:
    alpha, gamma = float(case.get("alpha", 1.67326319)), float(case.get("gamma", 1.05070102))
    if alpha < 0 or gamma < 0:
        return ANYTHING
    low, high = (gamma * (value if value > 0 else alpha * math.expm1(value)) for value in case.of(0))
    return low, high


def _softsign(value: float) -> float:
    return math.copysign(1.0, value) if math.isinf(value) else value / (1 + abs(value))


def _rounded(function: Callable[[float], int]) -> Rule:
    return _rising(lambda value: float(function(value)) if math.isfinite(value) else value)


FUNCTIONS: Mapping[str, Rule] = {
    **dict.fromkeys(ops(Trait.LOGICAL), _always(0.0, 1.0)),
    "Abs": lambda case: _absolute(case.of(0)),
    "Acos": _always(0.0, math.pi),
    "Add": _add,
    "Asin": _always(-math.pi / 2, math.pi / 2),
    "Atan": _rising(math.atan),
    "Cast": _cast,
    "Ceil": _rounded(math.ceil),
    "Clip": _clip,
    "Cos": _always(*RANGES["Cos"]),
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Elu": _elu,
    "Erf": _rising(math.erf),
    "Exp": _rising(_exp),
    "Floor": _rounded(math.floor),
    "GRU": _recurrent,
    "Gelu": _dipping(_GELU_LOWEST, _relu),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _dipping(-0.375, _relu),
    "LSTM": _recurrent,
    "LeakyRelu": _leaky,
    "Log": _rising(_log),
    "LogSoftmax": _log_softmax,
    "LpNormalization": _always(-1.0, 1.0),
    "Max": _max,
    "Mean": _mean,
    "Min": _min,
    "Mish": _dipping(_MISH_LOWEST, _relu),
    "Mod": _mod,
    "Mul": _mul,
    "Neg": lambda case: (-case.of(0)[1], -case.of(0)[0]),
    "PRelu": _prelu,
    "Pow": _pow,
    "QuantizeLinear": _quantize,
    "RNN": _recurrent,
    "Reciprocal": lambda case: _inverse(case.of(0)),
    "Relu": _rising(_relu),
    "Round": _rounded(round),
    "Selu": _selu,
    "Sigmoid": _rising(_sigmoid),
    "Sign": _rising(lambda value: math.copysign(1.0, value) if value else 0.0),
    "Sin": _always(*RANGES["Sin"]),
    "Softmax": _always(*RANGES["Softmax"]),
    "Softplus": _rising(_softplus),
    "Softsign": _rising(_softsign),
    "Sqrt": _rising(_sqrt),
    "Sub": _sub,
    "Sum": _sum,
    "Tanh": _rising(math.tanh),
}
"""Operator type -> bounds of its first output."""
