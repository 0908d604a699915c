"""Interval arithmetic: what a rule is given about one node, and the rules of all operators.

The tables map an operator type to the rule for its first output. Every bound holds in exact arithmetic; ``ranges``
deals with what float32 rounds beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from onnx import NodeProto

from deploykit.findings.records import Doubles, Interval, Numbers, OpenShape
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, operand
from deploykit.model.operators import FLOATS, INTEGER_RANGES, RANGES, Trait, ops
from deploykit.model.values import dtype_name, element_count

__all__ = [
    "ANYTHING",
    "FUNCTIONS",
    "RISING",
    "SELECTIONS",
    "SUMS",
    "ZERO",
    "Case",
    "absolute",
    "both",
    "clip_bounds",
    "hull",
    "inverse",
    "numbers_in",
    "product",
    "total",
]

ANYTHING: Interval = (-math.inf, math.inf)
ZERO: Interval = (0.0, 0.0)

# Stored tensors with more elements are not read: 16 MB in float32.
_WORTH_READING = 1 << 22


def numbers_in(graph: GraphCopy, name: str) -> Numbers | None:
    """The stored numbers of a tensor; None where it holds none, is computed, or is too large to read."""
    tensor = graph.stored.get(graph.origin(name)) if name else None
    if tensor is None or element_count(tensor, name) > _WORTH_READING:
        return None
    value = graph.array(name)
    return None if value is None or not value.size or value.dtype.kind not in "fiub" else value


class Case(Struct, frozen=True):
    """One node, its graph, and the bounds of the graph's tensors."""

    graph: GraphCopy
    node: NodeProto
    bounds: Mapping[str, Interval]

    def name(self, index: int) -> str:
        """The name of an operand, "" where it is left out."""
        return operand(self.node, index)

    def of(self, index: int) -> Interval:
        """The bounds of an operand."""
        return self.bounds.get(self.name(index), ANYTHING)

    @property
    def operands(self) -> list[Interval]:
        """The bounds of all operands that are not left out."""
        return [self.bounds.get(name, ANYTHING) for name in self.node.input if name]

    def shape(self, index: int) -> OpenShape:
        """The shape of an operand."""
        return self.graph.shape(self.name(index))

    def array(self, index: int) -> Numbers | None:
        """The finite stored values of an operand in double precision; None where there are none or too many to read."""
        value = numbers_in(self.graph, self.name(index))
        wide = None if value is None else value.astype(np.float64)
        return wide if wide is not None and np.isfinite(wide).all() else None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute of the node, or the default."""
        return attribute(self.node, name, default)

    def count(self, axes: Iterable[int] | None) -> int | None:
        """How many elements of the first operand lie along some axes together (all for None).

        None where that is not known.
        """
        shape = self.shape(0)
        if shape is None:
            return None
        chosen = range(len(shape)) if axes is None else list(axes)
        if any(not -len(shape) <= axis < len(shape) or not isinstance(shape[axis], int) for axis in chosen):
            return None
        return math.prod(int(shape[axis] or 0) for axis in chosen)

    def reduced(self) -> int | None:
        """How many elements a reduction combines into one; None where that is not known."""
        axes = self.get("axes")
        if axes is None and self.name(1):
            stored = self.array(1)
            if stored is None:
                return None
            axes = [int(axis) for axis in stored.ravel()]
        return None if not axes and self.get("noop_with_empty_axes", 0) else self.count(axes or None)


Rule: TypeAlias = Callable[[Case], Interval]
"""A function that gives the bounds of a node's first output."""


def both(a: Interval, b: Interval) -> Interval:
    """The intersection of two intervals; the first interval where they do not meet."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else a


def hull(*intervals: Interval) -> Interval:
    """The smallest interval around all of them; ``ANYTHING`` when there are none."""
    return (min(low for low, _ in intervals), max(high for _, high in intervals)) if intervals else ANYTHING


def product(a: Interval, b: Interval) -> Interval:
    """The interval of all products; zero times an infinite end is zero."""
    corners = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]
    return min(corners), max(corners)


def total(a: Interval, b: Interval) -> Interval:
    """The interval of all sums."""
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def _dipping(lowest: float, case: Case) -> Interval:
    """The bounds of x times a gate between 0 and 1, which falls to ``lowest`` and then rises as x does."""
    low, high = case.of(0)
    return max(lowest, min(low, 0.0)), max(high, 0.0)


def _negative(a: Interval) -> Interval:
    return -a[1], -a[0]


def _mul(case: Case) -> Interval:
    if case.name(0) != case.name(1):
        return product(case.of(0), case.of(1))
    low, high = absolute(case.of(0))
    return low * low, high * high


def absolute(a: Interval) -> Interval:
    """The interval of all magnitudes."""
    low, high = a
    return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _div(case: Case) -> Interval:
    low, high = product(case.of(0), inverse(case.of(1)))
    if case.graph.dtype(case.name(0)) not in FLOATS:  # integers are cut towards zero
        low = math.floor(low) if math.isfinite(low) else low
        high = math.ceil(high) if math.isfinite(high) else high
    return low, high


def inverse(b: Interval) -> Interval:
    """The interval of 1 / b, open above where b begins at zero.

    ``ANYTHING`` where zero lies elsewhere in b: 1 / +0 tops every bound.
    """
    low, high = b
    if low > 0 or high < 0:
        return 1 / high, 1 / low
    return (1 / high, math.inf) if low == 0 and high > 0 else ANYTHING


def _pow(case: Case) -> Interval:
    exponent = case.graph.scalar(case.name(1))
    low, high = case.of(0)
    if exponent is None:
        return ANYTHING
    if exponent == 0:
        return 1.0, 1.0
    if not float(exponent).is_integer():
        low, high = max(low, 0.0), max(high, 0.0)  # of negative numbers it is NaN
    elif exponent % 2 == 0:
        low, high = absolute((low, high))
    elif exponent < 0 and low <= 0 <= high:
        return ANYTHING
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
    low, high = (graph.scalar(operand(node, at)) for at in (1, 2))
    return (-math.inf if low is None else low), (math.inf if high is None else high)


def _cast(case: Case) -> Interval:
    low, high = case.of(0)
    to = dtype_name(case.get("to", 0))
    if to == "bool":
        return 0.0, 1.0
    if to in FLOATS:
        return low, high
    whole = INTEGER_RANGES.get(to)
    if whole is None or not (math.isfinite(low) and math.isfinite(high)):
        return ANYTHING
    if low < whole[0] or high > whole[1]:
        low, high = whole  # beyond what the type holds a Cast wraps around or gives anything
    return float(math.trunc(low)), float(math.trunc(high))


def _sum(case: Case) -> Interval:
    found = ZERO
    for each in case.operands:
        found = total(found, each)
    return found


def _mod(case: Case) -> Interval:
    """The bounds of Mod: fmod has the sign of the dividend, Mod that of the divisor.

    Both are smaller than the divisor.
    """
    most = absolute(case.of(1))[1]
    if case.get("fmod", 0):
        low, high = case.of(0)
        return max(-most, min(low, 0.0)), min(most, max(high, 0.0))
    low, high = case.of(1)
    return (0.0 if low >= 0 else -most), (0.0 if high <= 0 else most)


def _leaky(case: Case) -> Interval:
    low, high = case.of(0)
    slope = float(case.get("alpha", 0.01))
    ends = [value if value >= 0 else slope * value for value in (low, high)]
    return hull(*((end, end) for end in (*ends, *([0.0] if low < 0 < high else []))))


def _prelu(case: Case) -> Interval:
    """The bounds of max(x, 0) + slope * min(x, 0)."""
    low, high = case.of(0)
    return total((max(low, 0.0), max(high, 0.0)), product(case.of(1), (min(low, 0.0), min(high, 0.0))))


def _log_softmax(case: Case) -> Interval:
    low, high = case.of(0)
    length = case.count([int(case.get("axis", -1 if case.graph.opset >= 13 else 1))])
    if length is None or case.graph.opset < 13 or not math.isfinite(low) or not math.isfinite(high):
        return -math.inf, 0.0
    return low - high - math.log(max(length, 1)), 0.0


def _dequantize(case: Case) -> Interval:
    """The bounds of (q - zero) * scale, where both are stored scalars; else ``ANYTHING``."""
    scale = case.graph.scalar(case.name(1))
    zero = case.graph.scalar(case.name(2)) if case.name(2) else 0.0
    if scale is None or zero is None:
        return ANYTHING
    return product(total(case.of(0), (-zero, -zero)), (scale, scale))


def _quantize(case: Case) -> Interval:
    """The range of the zero point's type: values beyond it saturate."""
    zero = case.graph.stored.get(case.graph.origin(case.name(2))) if case.name(2) else None
    low, high = INTEGER_RANGES.get("uint8" if zero is None else dtype_name(zero.data_type), ANYTHING)
    return float(low), float(high)


def _recurrent(case: Case) -> Interval:
    """The bounds of hidden states that start at zero or at a given state, with sigmoid and tanh as activations."""
    if case.get("activations") or case.get("clip"):
        return ANYTHING
    return hull((-1.0, 1.0), *([case.of(5)] if case.name(5) else []))


def _hard_sigmoid(case: Case) -> Interval:
    alpha, beta = float(case.get("alpha", 0.2)), float(case.get("beta", 0.5))
    low, high = total(product((alpha, alpha), case.of(0)), (beta, beta))
    return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def _elu(alpha: float, gamma: float, case: Case) -> Interval:
    """The bounds of Elu and Selu; the numbers are their defaults (ONNX operator documentation)."""
    bend, scale = float(case.get("alpha", alpha)), float(case.get("gamma", gamma))
    if bend < 0 or scale < 0:
        return ANYTHING
    low, high = (scale * (value if value > 0 else bend * math.expm1(value)) for value in case.of(0))
    return low, high


def _rounded(function: Callable[[float], int], value: float) -> float:
    return float(function(value)) if math.isfinite(value) else value


RISING: Mapping[str, Callable[[float], float]] = {
    "Atan": math.atan,
    "Ceil": partial(_rounded, math.ceil),
    "Erf": math.erf,
    "Exp": lambda x: math.inf if x > 709 else math.exp(x),
    "Floor": partial(_rounded, math.floor),
    "Log": lambda x: -math.inf if x <= 0 else x if math.isinf(x) else math.log(x),
    "Relu": lambda x: max(x, 0.0),
    "Round": partial(_rounded, round),
    "Sigmoid": lambda x: 0.0 if x < -700 else 1.0 / (1.0 + math.exp(-x)),
    "Sign": lambda x: math.copysign(1.0, x) if x else 0.0,
    "Softplus": lambda x: x if x > 700 else math.log1p(math.exp(x)),
    "Softsign": lambda x: math.copysign(1.0, x) if math.isinf(x) else x / (1 + abs(x)),
    "Sqrt": lambda x: math.sqrt(x) if x > 0 else 0.0,
    "Tanh": math.tanh,
}
"""Functions that never fall: the bounds of the result are the function's values at the bounds of the operand."""


def _rising(function: Callable[[float], float]) -> Rule:
    return lambda case: (function(case.of(0)[0]), function(case.of(0)[1]))


FUNCTIONS: Mapping[str, Rule] = {
    **{name: _rising(function) for name, function in RISING.items()},
    **{name: lambda _case: (0.0, 1.0) for name in ops(Trait.LOGICAL)},
    "Abs": lambda case: absolute(case.of(0)),
    "Acos": lambda _case: (0.0, math.pi),
    "Add": lambda case: total(case.of(0), case.of(1)),
    "Asin": lambda _case: (-math.pi / 2, math.pi / 2),
    "Cast": _cast,
    "Clip": _clip,
    "Cos": lambda _case: RANGES["Cos"],
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Elu": partial(_elu, 1.0, 1.0),
    "GRU": _recurrent,
    "Gelu": partial(_dipping, -0.17004075057125412),  # below the least value of x * Phi(x) and of its tanh form
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": partial(_dipping, -0.375),
    "LSTM": _recurrent,
    "LeakyRelu": _leaky,
    "LogSoftmax": _log_softmax,
    "LpNormalization": lambda _case: (-1.0, 1.0),
    "Max": lambda case: (max(low for low, _ in case.operands), max(high for _, high in case.operands)),
    "Mean": lambda case: product(_sum(case), (1 / len(case.operands),) * 2),
    "Min": lambda case: (min(low for low, _ in case.operands), min(high for _, high in case.operands)),
    "Mish": partial(_dipping, -0.30884),
    "Mod": _mod,
    "Mul": _mul,
    "Neg": lambda case: _negative(case.of(0)),
    "PRelu": _prelu,
    "Pow": _pow,
    "QuantizeLinear": _quantize,
    "RNN": _recurrent,
    "Reciprocal": lambda case: inverse(case.of(0)),
    "Selu": partial(_elu, 1.67326319, 1.05070102),
    "Sin": lambda _case: RANGES["Sin"],
    "Softmax": lambda _case: RANGES["Softmax"],
    "Sub": lambda case: ZERO if case.name(0) == case.name(1) else total(case.of(0), _negative(case.of(1))),
    "Sum": _sum,
}
"""Operators that compute element by element, and recurrent ones."""


def _pad(case: Case) -> Interval:
    if case.get("mode", "constant") != "constant":
        return case.of(0)
    filled = float(case.get("value", 0.0))
    return hull(case.of(0), case.of(2) if case.name(2) else (filled, filled))


def _scatter(case: Case) -> Interval:
    return ANYTHING if case.get("reduction", "none") != "none" else hull(case.of(0), case.of(2))


def _resize(case: Case) -> Interval:
    """The bounds of Resize: nearest and linear stay inside; cubic overshoots, and cropping fills in a value."""
    cropped = case.get("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return ANYTHING if cropped or case.get("mode", "nearest") == "cubic" else case.of(0)


def _index(case: Case) -> Interval:
    """The bounds of an index along an axis."""
    length = case.count([int(case.get("axis", 0))])
    return 0.0, math.inf if length is None else float(max(length - 1, 0))


SELECTIONS: Mapping[str, Rule] = {
    # Results lie between the least and the largest of the first operand,
    **dict.fromkeys(ops(Trait.REARRANGES, Trait.SELECTS, Trait.AVERAGES), lambda case: case.of(0)),
    # or are zero, which stands for what is outside, and for an empty window.
    **dict.fromkeys(("AveragePool", "MaxRoiPool", "MaxUnpool", "Trilu"), lambda case: hull(case.of(0), ZERO)),
    "ArgMax": _index,
    "ArgMin": _index,
    "Concat": lambda case: hull(*case.operands),
    "GridSample": lambda case: ANYTHING if "cubic" in case.get("mode", "linear") else hull(case.of(0), ZERO),
    "Hardmax": lambda _case: (0.0, 1.0),
    "OneHot": lambda case: case.of(2),
    "Pad": _pad,
    "Range": lambda case: hull(case.of(0), case.of(1)),
    "Resize": _resize,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Shape": lambda _case: (0.0, math.inf),
    "Size": lambda _case: (0.0, math.inf),
    "Where": lambda case: hull(case.of(1), case.of(2)),
}
"""Operators that move, select, join or count values and compute none."""


def _weighted(weights: Doubles, axes: tuple[int, ...], values: Interval, offsets: Doubles | None = None) -> Interval:
    """The bounds of sums of weights times ``values`` along some axes, plus an offset for each sum."""
    sums = [side.sum(axis=axes) for side in (np.maximum(weights, 0), np.minimum(weights, 0))]
    added = 0.0 if offsets is None else offsets.reshape(sums[0].shape)
    ends = []
    with np.errstate(invalid="ignore", over="ignore"):
        for sides in (values, values[::-1]):  # the end for positive weights, and that for negative ones
            parts = [np.where(side == 0, 0.0, side * end) for side, end in zip(sums, sides, strict=True)]
            ends.append(parts[0] + parts[1] + added)
    return total((float(ends[0].min()), float(ends[1].max())), ZERO)  # a sum of both infinities is open


def _with_bias(case: Case, weights: Doubles, axes: tuple[int, ...], values: Interval) -> Interval:
    """The bounds of weighted sums plus operand 2, per channel where it is stored and fits, else by its bounds."""
    bias = case.array(2)
    if bias is not None and bias.size == math.prod(np.delete(weights.shape, axes)):
        return _weighted(weights, axes, values, bias)
    summed = _weighted(weights, axes, values)
    return total(summed, case.of(2)) if case.name(2) else summed


def _conv(case: Case) -> Interval:
    weights = case.array(1)
    if weights is None or weights.ndim < 3:
        return ANYTHING
    padded = any(case.get("pads", ())) or case.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return _with_bias(case, weights, tuple(range(1, weights.ndim)), hull(case.of(0), ZERO) if padded else case.of(0))


def _conv_transpose(case: Case) -> Interval:
    """The bounds of ConvTranspose: a result adds only some of the products, so zero always counts among the values."""
    weights, groups = case.array(1), int(case.get("group", 1))
    if weights is None or weights.ndim < 3 or weights.shape[0] % groups:
        return ANYTHING
    split = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
    return _with_bias(case, split, (1, *range(3, split.ndim)), hull(case.of(0), ZERO))


def _gemm(case: Case) -> Interval:
    weights, alpha, beta = case.array(1), float(case.get("alpha", 1.0)), float(case.get("beta", 1.0))
    if weights is not None and weights.ndim == 2:
        axes = (1 if case.get("transB", 0) else 0,)
        if case.name(2) and alpha == beta == 1.0:
            return _with_bias(case, weights, axes, case.of(0))
        summed = _weighted(weights, axes, case.of(0))
    else:
        shape = case.shape(0)
        length = None if shape is None or len(shape) != 2 else shape[0 if case.get("transA", 0) else 1]
        summed = _of_count(product(case.of(0), case.of(1)), length)
    scaled = product(summed, (alpha, alpha))
    return total(scaled, product(case.of(2), (beta, beta))) if case.name(2) else scaled


def _matmul(case: Case) -> Interval:
    right, left = case.array(1), case.array(0)
    if right is not None and right.ndim >= 1:
        return _weighted(right, (max(right.ndim - 2, 0),), case.of(0))
    if left is not None and left.ndim >= 1:
        return _weighted(left, (left.ndim - 1,), case.of(1))
    shape = case.shape(0)
    return _of_count(product(case.of(0), case.of(1)), shape[-1] if shape else None)


def _of_count(each: Interval, count: int | str | None) -> Interval:
    """The bounds of a sum of ``count`` values; where the count is not known, only its sign is."""
    if isinstance(count, int):
        return product((float(count), float(count)), each)
    return (0.0 if each[0] >= 0 else -math.inf), (0.0 if each[1] <= 0 else math.inf)


def _largest(case: Case) -> float:
    return max(map(abs, case.of(0)))


def _reduce_l2(case: Case) -> Interval:
    count = case.reduced()
    return 0.0, math.inf if count is None else math.sqrt(count) * _largest(case)


def _log_sum_exp(case: Case) -> Interval:
    (low, high), count = case.of(0), case.reduced()
    return low, math.inf if count is None else high + math.log(max(count, 1))


def _cumulated(case: Case) -> Interval:
    axis = case.graph.scalar(case.name(1))
    count = None if axis is None else case.count([int(axis)])
    return hull(ZERO, case.of(0), _of_count(case.of(0), count))


def _normalized(case: Case, count: int | None, *, bias: bool = True) -> Interval:
    """The bounds of values with mean 0 and mean square 1 over ``count`` elements, scaled and shifted.

    The mean square is less by epsilon. Of n such values none exceeds sqrt(n).
    """
    largest = math.inf if count is None else math.sqrt(count)
    shifts = bias and bool(case.name(2))
    scale = case.array(1)
    if scale is not None:
        shift = case.array(2) if shifts else np.zeros_like(scale)
        if shift is not None and scale.shape == shift.shape:
            return _weighted(scale, (), (-largest, largest), shift)
    scaled = product(case.of(1), (-largest, largest))
    return total(scaled, case.of(2)) if shifts else scaled


def _from_axis(case: Case) -> int | None:
    shape, axis = case.shape(0), int(case.get("axis", -1))
    return None if shape is None else case.count(range(axis % len(shape), len(shape)) if shape else None)


def _behind(case: Case, first: int) -> int | None:
    shape = case.shape(0)
    return None if shape is None else case.count(range(first, len(shape)))


def _group_norm(case: Case) -> Interval:
    count = _behind(case, 1)
    return _normalized(case, None if count is None else count // int(case.get("num_groups", 1)))


def _batch_norm(case: Case) -> Interval:
    scale, shift, mean, variance = (case.array(index) for index in range(1, 5))
    if scale is None or shift is None or mean is None or variance is None or case.get("training_mode", 0):
        return ANYTHING
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = scale / np.sqrt(variance + float(case.get("epsilon", 1e-5)))
    offset = shift - factor * mean
    return _weighted(factor, (), case.of(0), offset) if np.isfinite(factor).all() else ANYTHING


SUMS: Mapping[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "CumSum": _cumulated,
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": lambda case: _normalized(case, _behind(case, 2)),
    "LayerNormalization": lambda case: _normalized(case, _from_axis(case)),
    "MatMul": _matmul,
    "RMSNormalization": lambda case: _normalized(case, _from_axis(case), bias=False),
    "ReduceL1": lambda case: _of_count((0.0, _largest(case)), case.reduced()),
    "ReduceL2": _reduce_l2,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSum": lambda case: _of_count(case.of(0), case.reduced()),
    "ReduceSumSquare": lambda case: _of_count((0.0, _largest(case) * _largest(case)), case.reduced()),
}
"""Operators that add many products, or normalize.

Where weights are too large to read, or computed, the number of summands bounds the result instead.
"""
