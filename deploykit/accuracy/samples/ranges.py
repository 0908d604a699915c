"""The range that the encodings or the graph's own quantizers give an input; where neither does, there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.samples.claims import ReadConstant, stored_integers
from deploykit.encodings.values import Affine, EncodingSet, Float8
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, is_standard, ops

if TYPE_CHECKING:
    from deploykit.encodings.values import Value

__all__ = ["EncodedRange", "encoded_range"]

_KEEPS = ops(Trait.PERMUTES) | {"Cast"}
"""Ops behind an input that leave every value as it is, so that an entry of their result is one of the input."""

_FLOAT8_LARGEST = {"float8e4m3fn": 448.0, "float8e5m2": 57344.0}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedRange:
    """Both ends, as arrays that broadcast to the input's shape, and where they are from, in words."""

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    why: str


def encoded_range(
    facts: GraphFacts, read: ReadConstant, encodings: EncodingSet | None, name: str
) -> EncodedRange | None:
    """The range of the input's entry, else of an entry or quantizer behind ops that only move its values."""
    own = None if encodings is None else encodings.get(name)
    if own is not None:
        return _of_value(own.value, facts.tensors[name].rank or 0, "its encoding")
    for tensor, node in _behind(facts, name):
        entry = None if encodings is None else encodings.get(tensor)
        if entry is not None and entry.value.granularity == "per-tensor":
            return _of_value(entry.value, 0, f"the encoding of {tensor!r}, which holds its values")
        if node.op_type == "QuantizeLinear":
            found = _of_quantizer(facts, read, node)
            if found is not None:
                return found
    return None


def _behind(facts: GraphFacts, name: str) -> Iterator[tuple[str, NodeFact]]:
    """Each tensor that holds the values of an input, with the node that makes it; quantizers included."""
    waiting = [name]
    while waiting:
        for node in facts.consumers_of(waiting.pop()):
            if not is_standard(node) or not node.outputs:
                continue
            if node.op_type in _KEEPS and not _cuts(facts, node):
                waiting.append(node.outputs[0])
                yield node.outputs[0], node
            elif node.op_type == "QuantizeLinear":
                yield node.outputs[0], node


def _cuts(facts: GraphFacts, node: NodeFact) -> bool:
    """True for a Cast that does not keep the values: to bool, or from floats to integers."""
    given, made = facts.tensors[node.inputs[0]], facts.tensors[node.outputs[0]]
    return made.dtype == "bool" or (given.is_float and not made.is_float)


def _of_value(value: Value, rank: int, why: str) -> EncodedRange | None:
    if isinstance(value, Float8):
        most = np.asarray(float(value.scale.min()) * _FLOAT8_LARGEST.get(value.dtype, 0.0))
        return EncodedRange(low=-most, high=most, why=why) if most > 0 else None
    if not isinstance(value, Affine):
        return None
    low, high = value.minimum, value.maximum
    if value.block_size is not None or (value.axis is None and value.scale.size > 1):
        low, high = np.asarray(low.max()), np.asarray(high.min())
    elif value.axis is not None and rank:
        along = [1] * rank
        along[value.axis] = -1
        low, high = low.reshape(along), high.reshape(along)
    else:
        low, high = low.reshape(()), high.reshape(())
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        return None
    return EncodedRange(low=low, high=high, why=why)


def _of_quantizer(facts: GraphFacts, read: ReadConstant, node: NodeFact) -> EncodedRange | None:
    """What a per-tensor QuantizeLinear with stored parameters can hold."""
    scale = read(node.inputs[1])
    has_zero = len(node.inputs) > 2 and bool(node.inputs[2])
    zero = read(node.inputs[2]) if has_zero else np.zeros(1)
    grid = stored_integers(facts.tensors[node.outputs[0]].dtype)
    if scale is None or zero is None or grid is None or scale.size != 1 or zero.size != 1:
        return None
    low, high = ((end - float(zero.reshape(()))) * float(scale.reshape(())) for end in grid)
    return EncodedRange(low=np.asarray(low), high=np.asarray(high), why=f"the quantizer behind it ({node.label})")
