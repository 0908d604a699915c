"""Gives operators the grids that their kernels compute rightly with: a wider Log, a Softmax in steps that it knows.

Only grids change, by less than what the kernel would lose; which those are was measured. It changes no model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.operators import Trait, has
from deploykit.model.range_functions import clip_bounds
from deploykit_ort_qnn.node_units import shares_grid, with_grids
from deploykit_qualcomm.softmax_steps import whole_step

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    "LOG_RANGE",
    "clipped_ends",
    "rounded_softmaxes",
    "whole_hardsigmoids",
    "whole_softmax_steps",
    "widen_logs",
]

LOG_RANGE = 4.0
"""Least range of a 16-bit Log's output: below it the kernel of QAIRT 2.51 answers the range's minimum everywhere."""

_ROUNDED = Affine(bits=16, signed=False, scale=np.asarray(2.0**-15), zero_point=np.asarray(2.0**15), symmetric=True)


def widen_logs(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with every 16-bit Log's output over a range that its kernel knows, and the tensors changed."""
    entries, changed = dict(encodings.entries), list[str]()
    for node in model.graph.node:
        entry = encodings.get(node.output[0]) if node.op_type == "Log" else None
        if entry is None or not isinstance(entry.value, Affine) or entry.value.bits != 16:
            continue
        value = _at_least(entry.value, LOG_RANGE)
        if value is not entry.value:
            entries[node.output[0]] = replace(entry, value=value)
            changed.append(node.output[0])
    return replace(encodings, entries=entries), tuple(changed)


def _at_least(value: Affine, wanted: float) -> Affine:
    """The same grid type over a range of at least ``wanted``, grown downward."""
    low, high = float(value.minimum.min()), float(value.maximum.max())
    if high - low >= wanted:
        return value
    # A little more than needed, so that rounding the zero point cannot take it below again.
    low = high - wanted * 1.001
    scale = (high - low) / (2**value.bits - 1)
    zero = float(np.clip(round(value.lowest - low / scale), value.lowest, value.highest))
    return replace(value, scale=np.asarray(scale), zero_point=np.asarray(zero), symmetric=None)


def clipped_ends(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with results of Clips on grids that end where the Clip ends; and the tensors changed.

    Behind a convolution the bounds are lost: only the ends of the result's grid cut off (QAIRT 2.51: 1 to 18 dB with
    bounds inside of the grid). Values beyond the bounds do not occur, so that nothing is lost by a finer grid.
    """
    graph, grids = view_of(model), dict[str, Affine]()
    for node in graph.nodes:
        entry = encodings.get(node.output[0]) if node.op_type == "Clip" else None
        if entry is None or not isinstance(entry.value, Affine) or entry.value.scale.size != 1:
            continue
        value, bounds = entry.value, clip_bounds(graph, node)
        low, high = max(float(value.minimum.min()), min(bounds[0], 0.0)), min(float(value.maximum.max()), bounds[1])
        step = float(value.scale.min())
        if high > 0 and (low > float(value.minimum.min()) + step or high < float(value.maximum.max()) - step):
            grids[entry.name] = affine_for_range(low, high, GridKind(bits=value.bits, signed=value.signed))
    return with_grids(graph, encodings, grids)


def whole_softmax_steps(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with inputs of Softmaxes in steps that the kernel takes as they are; and the tensors changed.

    The tensor itself gets them, from where it is computed on: a conversion in front of a Softmax is folded away, and
    with it the step (seen with QAIRT 2.51 behind Add, Mul and Transpose).
    """
    graph, grids = view_of(model), dict[str, Affine]()
    for node in graph.nodes:
        if node.op_type != "Softmax" or not all(_is_integer(encodings, name) for name in (*node.input, *node.output)):
            continue
        entry = encodings.entries[node.input[0]]
        assert isinstance(entry.value, Affine)
        step = whole_step(entry.value)
        if step is not None:
            grids[_origin(graph, encodings, entry)] = _with_step(entry.value, step)
    return with_grids(graph, encodings, grids)


def _origin(graph: GraphCopy, encodings: EncodingSet, entry: Encoding) -> str:
    """The tensor that one was moved from and shares its grid with."""
    name = entry.name
    while True:
        maker = graph.maker(name)
        if maker is None or not has(maker, Trait.CARRIES_GRID) or not shares_grid(encodings.get(maker.input[0]), entry):
            return name
        name = maker.input[0]


def rounded_softmaxes(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with results of 16-bit Softmaxes on a grid to which the kernel rounds; and the tensors changed.

    To a grid of 0 to 1 it cuts off, half a step too little on average, which whatever adds up such results collects.
    With steps of 2^-15 around the middle of the type it rounds; an error is as large then, and 0 on average.
    """
    graph = view_of(model)
    made = [node.output[0] for node in graph.nodes if node.op_type == "Softmax" and node.output[0] not in graph.outputs]
    grids = {name: _ROUNDED for name in made if _is_from_0_to_1(encodings.get(name))}
    return with_grids(graph, encodings, grids)


def whole_hardsigmoids(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with results of 16-bit HardSigmoids on the grid from 0 to 1; and the tensors changed.

    QAIRT 2.36.1 computes 6 to 26 dB on grids that end elsewhere, 93 dB on this one.
    """
    graph = view_of(model)
    grids = {
        node.output[0]: affine_for_range(0.0, 1.0, GridKind(bits=16, signed=False))
        for node in graph.nodes
        if node.op_type == "HardSigmoid" and _is_wide(encodings.get(node.output[0]))
    }
    return with_grids(graph, encodings, grids)


def _is_wide(entry: Encoding | None) -> bool:
    value = None if entry is None else entry.value
    return isinstance(value, Affine) and value.bits == 16 and value.scale.size == 1


def _is_from_0_to_1(entry: Encoding | None) -> bool:
    value = None if entry is None else entry.value
    if not isinstance(value, Affine) or value.scale.size != 1 or value.bits != 16:
        return False
    return float(value.minimum.min()) == 0 and 1 - 2.0**-15 <= float(value.maximum.max()) <= 1 + 2.0**-15


def _is_integer(encodings: EncodingSet, name: str) -> bool:
    entry = encodings.get(name)
    return entry is not None and isinstance(entry.value, Affine) and entry.value.scale.size == 1


def _with_step(value: Affine, step: float) -> Affine:
    """The grid with a larger step, over the same range and a little more."""
    scale, below = float(value.scale.reshape(())), float(value.zero_point.reshape(())) - value.lowest
    zero = value.lowest + round(below * scale / step)
    return replace(value, scale=np.asarray(step), zero_point=np.asarray(float(zero)))
