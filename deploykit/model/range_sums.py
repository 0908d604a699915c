"""Bounds of operators that add many products or normalize: linear ones by their stored weights, sums by counts.

Where weights are too large to read, or computed, the number of summands bounds the result instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deploykit.model.range_functions import ANYTHING, ZERO, Case, Interval, Rule, hull, product, total

__all__ = ["SUMS"]

_Array = npt.NDArray[np.float64]


def _signed_sums(weights: _Array, axes: tuple[int, ...]) -> tuple[_Array, _Array]:
    """The sums of positive and of negative weights along some axes."""
    return np.maximum(weights, 0).sum(axis=axes), np.minimum(weights, 0).sum(axis=axes)


def _weighted(positive: _Array, negative: _Array, offsets: _Array | float, values: Interval) -> Interval:
    """The hull of sums whose weights add up to ``positive`` and ``negative``, element by element."""

    def part(weights: _Array, end: float) -> _Array:
        return np.where(weights == 0, 0.0, weights * end)

    low, high = values
    with np.errstate(invalid="ignore", over="ignore"):
        least = float(np.min(part(positive, low) + part(negative, high) + offsets))
        most = float(np.max(part(positive, high) + part(negative, low) + offsets))
    return (-math.inf if math.isnan(least) else least), (math.inf if math.isnan(most) else most)


def _scaled(factors: _Array, offsets: _Array, values: Interval) -> Interval:
    """The hull of ``factor * value + offset`` over paired factors and offsets."""
    return _weighted(np.maximum(factors, 0), np.minimum(factors, 0), offsets, values)


def _with_bias(case: Case, positive: _Array, negative: _Array, values: Interval) -> Interval:
    """Weighted values plus operand 2: channel by channel where it is stored and fits, else by its bounds."""
    if not case.name(2):
        return _weighted(positive, negative, 0.0, values)
    bias = case.array(2)
    if bias is not None and bias.size in (1, positive.size):
        return _weighted(positive, negative, bias.ravel(), values)
    return total(_weighted(positive, negative, 0.0, values), case.of(2))


def _conv(case: Case) -> Interval:
    weights = case.array(1)
    if weights is None or weights.ndim < 3:
        return ANYTHING
    positive, negative = _signed_sums(weights, tuple(range(1, weights.ndim)))
    padded = any(case.get("pads", ())) or case.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return _with_bias(case, positive, negative, hull([case.of(0), ZERO]) if padded else case.of(0))


def _conv_transpose(case: Case) -> Interval:
    """Each result adds some of the products, so that zero always counts among the values."""
    weights, groups = case.array(1), int(case.get("group", 1))
    if weights is None or weights.ndim < 3 or weights.shape[0] % groups:
        return ANYTHING
    split = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
    positive, negative = _signed_sums(split, (1, *range(3, split.ndim)))
    return _with_bias(case, positive.ravel(), negative.ravel(), hull([case.of(0), ZERO]))


def _gemm(case: Case) -> Interval:
    weights, alpha, beta = case.array(1), float(case.get("alpha", 1.0)), float(case.get("beta", 1.0))
    if weights is not None and weights.ndim == 2:
        positive, negative = _signed_sums(weights.T if case.get("transB", 0) else weights, (0,))
        if case.name(2) and alpha == beta == 1.0:
            return _with_bias(case, positive, negative, case.of(0))
        summed = _weighted(positive, negative, 0.0, case.of(0))
    else:
        shape = case.shape(0)
        length = None if shape is None or len(shape) != 2 else shape[0 if case.get("transA", 0) else 1]
        summed = _of_count(product(case.of(0), case.of(1)), length)
    scaled = product(summed, (alpha, alpha))
    return total(scaled, product(case.of(2), (beta, beta))) if case.name(2) else scaled


def _matmul(case: Case) -> Interval:
    right, left = case.array(1), case.array(0)
    if right is not None and right.ndim >= 1:
        return _weighted(*_signed_sums(right, (max(right.ndim - 2, 0),)), 0.0, case.of(0))
    if left is not None and left.ndim >= 1:
        return _weighted(*_signed_sums(left, (left.ndim - 1,)), 0.0, case.of(1))
    shape = case.shape(0)
    return _of_count(product(case.of(0), case.of(1)), shape[-1] if shape else None)


def _of_count(each: Interval, count: int | str | None) -> Interval:
    """The sum of ``count`` values; of an unknown number only the sign is known."""
    if isinstance(count, int):
        return product((float(count), float(count)), each)
    return (0.0 if each[0] >= 0 else -math.inf), (0.0 if each[1] <= 0 else math.inf)


def _largest(case: Case) -> float:
    return max(map(abs, case.of(0)))


def _reduce_l2(case: Case) -> Interval:
    count = case.reduced()
    return 0.0, math.inf if count is None else math.sqrt(count) * _largest(case)


def _reduce_sum(case: Case) -> Interval:
    if case.get("noop_with_empty_axes", 0) and case.reduced() is None:
        return ANYTHING  # nothing may be added up at all
    return _of_count(case.of(0), case.reduced())


def _log_sum_exp(case: Case) -> Interval:
    (low, high), count = case.of(0), case.reduced()
    return low, math.inf if count is None else high + math.log(max(count, 1))


def _cumulated(case: Case) -> Interval:
    axis = case.graph.scalar(case.name(1))
    count = None if axis is None else case.count([int(axis)])
    return hull([ZERO, case.of(0), _of_count(case.of(0), count)])


def _normalized(case: Case, count: int | None, *, bias: bool = True) -> Interval:
    """Values of mean 0 and mean square 1 (or less, by epsilon) over ``count`` elements, scaled and shifted.

    Of n such values none exceeds sqrt(n).
    """
    largest = math.inf if count is None else math.sqrt(count)
    shifts = bias and bool(case.name(2))
    scale = case.array(1)
    if scale is not None:
        shift = case.array(2) if shifts else np.zeros_like(scale)
        if shift is not None and scale.shape == shift.shape:
            return _scaled(scale, shift, (-largest, largest))
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
    return _scaled(factor, shift - factor * mean, case.of(0)) if np.isfinite(factor).all() else ANYTHING


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
    "ReduceSum": _reduce_sum,
    "ReduceSumSquare": lambda case: _of_count((0.0, _largest(case) * _largest(case)), case.reduced()),
}
"""Operator type -> bounds of its first output."""
