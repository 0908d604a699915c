"""Bounds of operators that add many products, normalize, move, select or join values; tables from type to rule.

Where weights are too large to read, or computed, the number of summands bounds the result instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deploykit.model.operators import Trait, ops
from deploykit.model.range_functions import ANYTHING, Case, Interval, Rule, hull, product, scaled_hull, total, weighted

__all__ = ["SELECTIONS", "SUMS"]

_Array = npt.NDArray[np.float64]


def _signed_sums(weights: _Array, axes: tuple[int, ...]) -> tuple[_Array, _Array]:
    """The sums of positive and of negative weights along some axes."""
    return np.maximum(weights, 0).sum(axis=axes), np.minimum(weights, 0).sum(axis=axes)


def _with_bias(case: Case, index: int, positive: _Array, negative: _Array, values: Interval) -> Interval:
    """Weighted values plus the bias: channel by channel where it is stored and fits, else by its bounds."""
    if not case.name(index):
        return weighted(positive, negative, 0.0, values)
    bias = case.array(index)
    if bias is not None and bias.size in (1, positive.size):
        return weighted(positive, negative, bias.ravel(), values)
    return total(weighted(positive, negative, 0.0, values), case.of(index))


def _conv(case: Case) -> Interval:
    weights = case.array(1)
    if weights is None or weights.ndim < 3:
        return ANYTHING
    positive, negative = _signed_sums(weights, tuple(range(1, weights.ndim)))
    padded = any(case.get("pads", ())) or case.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    values = hull([case.of(0), (0.0, 0.0)]) if padded else case.of(0)
    return _with_bias(case, 2, positive, negative, values)


def _conv_transpose(case: Case) -> Interval:
    """Each result adds some of the products, so that zero always counts among the values."""
    weights = case.array(1)
    if weights is None or weights.ndim < 3:
        return ANYTHING
    groups = int(case.get("group", 1))
    if weights.shape[0] % groups:
        return ANYTHING
    split = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
    positive, negative = _signed_sums(split, (1, *range(3, split.ndim)))
    return _with_bias(case, 2, positive.ravel(), negative.ravel(), hull([case.of(0), (0.0, 0.0)]))


def _gemm(case: Case) -> Interval:
    weights, alpha, beta = case.array(1), float(case.get("alpha", 1.0)), float(case.get("beta", 1.0))
    if weights is not None and weights.ndim == 2:
        if case.get("transB", 0):
            weights = weights.T
        positive, negative = _signed_sums(weights, (0,))
        summed = weighted(positive, negative, 0.0, case.of(0))
        if case.name(2) and alpha == beta == 1.0:
            return _with_bias(case, 2, positive, negative, case.of(0))
    else:
        shape = case.shape(0)
        length = None if shape is None or len(shape) != 2 else shape[0 if case.get("transA", 0) else 1]
        summed = _of_count(product(case.of(0), case.of(1)), length)
    scaled = product(summed, (alpha, alpha))
    return total(scaled, product(case.of(2), (beta, beta))) if case.name(2) else scaled


def _matmul(case: Case) -> Interval:
    right, left = case.array(1), case.array(0)
    if right is not None and right.ndim >= 1:
        return weighted(*_signed_sums(right, (max(right.ndim - 2, 0),)), 0.0, case.of(0))
    if left is not None and left.ndim >= 1:
        return weighted(*_signed_sums(left, (left.ndim - 1,)), 0.0, case.of(1))
    shape = case.shape(0)
    return _of_count(product(case.of(0), case.of(1)), shape[-1] if shape else None)


def _of_count(each: Interval, count: int | None) -> Interval:
    """The sum of ``count`` values; of an unknown number only the sign is known."""
    if count is not None:
        return product((float(count), float(count)), each)
    return (0.0 if each[0] >= 0 else -math.inf), (0.0 if each[1] <= 0 else math.inf)


def _reduced(case: Case) -> int | None:
    """How many elements a reduction takes together; None where that is not known."""
    axes = case.reduced_axes()
    if axes is None or (not axes and case.get("noop_with_empty_axes", 0)):
        return None
    return case.count(axes or None)


def _reduce_sum(case: Case) -> Interval:
    if case.get("noop_with_empty_axes", 0) and not case.reduced_axes():
        return ANYTHING
    return _of_count(case.of(0), _reduced(case))


def _reduce_l1(case: Case) -> Interval:
    return _of_count((0.0, _largest(case)), _reduced(case))


def _reduce_squares(case: Case) -> Interval:
    largest = _largest(case)
    return _of_count((0.0, largest * largest), _reduced(case))


def _reduce_l2(case: Case) -> Interval:
    count = _reduced(case)
    return 0.0, math.inf if count is None else math.sqrt(count) * _largest(case)


def _largest(case: Case) -> float:
    low, high = case.of(0)
    return max(abs(low), abs(high))


def _log_sum_exp(case: Case) -> Interval:
    low, high = case.of(0)
    count = _reduced(case)
    return low, math.inf if count is None else high + math.log(max(count, 1))


def _cumulated(case: Case) -> Interval:
    axis = case.graph.scalar(case.name(1))
    count = None if axis is None else case.count([int(axis)])
    return hull([(0.0, 0.0), case.of(0), _of_count(case.of(0), count)])


def _normalized(case: Case, count: int | None, *, bias: bool = True) -> Interval:
    """Values of mean 0 and mean square 1 (or less, by epsilon) over ``count`` elements, scaled and shifted.

    Of n such values none exceeds sqrt(n).
    """
    largest = math.inf if count is None else math.sqrt(count)
    scale, shift = case.array(1), case.array(2) if bias and case.name(2) else None
    if scale is not None and not (bias and case.name(2)):
        shift = np.zeros_like(scale)
    if scale is not None and shift is not None and scale.shape == shift.shape:
        return scaled_hull(scale, shift, (-largest, largest))
    scaled = product(case.of(1), (-largest, largest))
    return total(scaled, case.of(2)) if bias and case.name(2) else scaled


def _from_axis(case: Case) -> int | None:
    shape, axis = case.shape(0), int(case.get("axis", -1))
    return None if shape is None else case.count(range(axis % len(shape), len(shape)) if shape else None)


def _layer_norm(case: Case) -> Interval:
    return _normalized(case, _from_axis(case))


def _rms_norm(case: Case) -> Interval:
    return _normalized(case, _from_axis(case), bias=False)


def _instance_norm(case: Case) -> Interval:
    shape = case.shape(0)
    return _normalized(case, None if shape is None else case.count(range(2, len(shape))))


def _group_norm(case: Case) -> Interval:
    shape, groups = case.shape(0), int(case.get("num_groups", 1))
    count = None if shape is None else case.count(range(1, len(shape)))
    return _normalized(case, None if count is None else count // groups)


def _batch_norm(case: Case) -> Interval:
    scale, shift, mean, variance = (case.array(index) for index in range(1, 5))
    if scale is None or shift is None or mean is None or variance is None or case.get("training_mode", 0):
        return ANYTHING
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = scale / np.sqrt(variance + float(case.get("epsilon", 1e-5)))
    return scaled_hull(factor, shift - factor * mean, case.of(0)) if np.isfinite(factor).all() else ANYTHING


SUMS: Mapping[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "CumSum": _cumulated,
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "MatMul": _matmul,
    "RMSNormalization": _rms_norm,
    "ReduceL1": _reduce_l1,
    "ReduceL2": _reduce_l2,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSum": _reduce_sum,
    "ReduceSumSquare": _reduce_squares,
}
"""Operator type -> bounds of its first output."""


_ZERO: Interval = (0.0, 0.0)

_COPIES = ops(Trait.REARRANGES, Trait.SELECTS, Trait.AVERAGES) | {"MaxRoiPool"}
"""What they make lies between the least and the largest of their first operand."""

_WITH_ZERO = frozenset({"AveragePool", "MaxUnpool", "Trilu"})
"""The same, or zero, which stands for what is outside."""


def _same(case: Case) -> Interval:
    return case.of(0)


def _pad(case: Case) -> Interval:
    if case.get("mode", "constant") != "constant":
        return case.of(0)
    filled = float(case.get("value", 0.0))
    return hull([case.of(0), case.of(2) if case.name(2) else (filled, filled)])


def _scatter(case: Case) -> Interval:
    if case.get("reduction", "none") != "none":
        return ANYTHING
    return hull([case.of(0), case.of(2)])


def _grid_sample(case: Case) -> Interval:
    smooth = case.get("mode", "linear") in ("bicubic", "cubic")
    return ANYTHING if smooth else hull([case.of(0), _ZERO])


def _resize(case: Case) -> Interval:
    """Nearest and linear stay inside; cubic overshoots, and cropping fills in a value."""
    cropped = case.get("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return ANYTHING if cropped or case.get("mode", "nearest") == "cubic" else case.of(0)


def _index(case: Case) -> Interval:
    """A place along an axis."""
    shape, axis = case.shape(0), int(case.get("axis", 0))
    length = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return 0.0, math.inf if length is None else float(max(length - 1, 0))


def _one_hot(case: Case) -> Interval:
    return case.of(2)


def _where(case: Case) -> Interval:
    return hull([case.of(1), case.of(2)])


def _range(case: Case) -> Interval:
    return hull([case.of(0), case.of(1)])


def _natural(_case: Case) -> Interval:
    return 0.0, math.inf


SELECTIONS: Mapping[str, Rule] = {
    **dict.fromkeys(_COPIES, _same),
    **dict.fromkeys(_WITH_ZERO, lambda case: hull([case.of(0), _ZERO])),
    "ArgMax": _index,
    "ArgMin": _index,
    "Concat": lambda case: hull(case.operands),
    "GridSample": _grid_sample,
    "Hardmax": lambda _case: (0.0, 1.0),
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Resize": _resize,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Shape": _natural,
    "Size": _natural,
    "Where": _where,
}
"""Operator type -> bounds of its first output."""
