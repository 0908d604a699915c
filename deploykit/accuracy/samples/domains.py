"""Which values an input may hold, as far as the graph, its quantizers or the encodings say; the rest stays unknown.

Nothing is run. Limits that a reader enforces (an index, a stored grid) count before what a comparison suggests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.samples.claims import Claim, Rank, ReadConstant, Walk, stored_integers
from deploykit.encodings.values import Affine, EncodingSet, Float8
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, is_standard, ops

if TYPE_CHECKING:
    from deploykit.encodings.values import Value

__all__ = ["Domain", "EncodedRange", "encoded_range", "input_domains"]

_KEEPS = ops(Trait.PERMUTES) | {"Cast"}
"""Ops behind an input that leave every value as it is, so that an entry of their result is one of the input."""

_FLOAT8_LARGEST = {"float8e4m3fn": 448.0, "float8e5m2": 57344.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The values from ``low`` to ``high``, both included; an end that the graph does not state is None.

    ``why`` says in words what the graph states and ``node`` where. ``is_mask`` is a choice between 0 and 1.
    """

    low: int | None
    high: int | None
    why: str
    node: str = ""
    is_mask: bool = False

    @property
    def known(self) -> bool:
        """True when both ends are stated, so that legal values can be made."""
        return self.low is not None and self.high is not None


def input_domains(facts: GraphFacts, read: ReadConstant) -> dict[str, Domain]:
    """The domain of every integer and bool input. ``read`` is asked for constants beside the paths of these inputs."""
    walk = Walk(facts, read)
    chosen = [name for name in facts.inputs if not facts.tensors[name].is_float]
    return {name: _domain(facts.tensors[name].dtype, walk.claims(name)) for name in chosen}


def _domain(dtype: str, claims: tuple[Claim, ...]) -> Domain:
    if dtype == "bool":
        return Domain(low=0, high=1, why="it is of type bool", is_mask=True)
    rank = max((claim.rank for claim in claims), default=Rank.UNKNOWN)
    heard = [claim for claim in claims if claim.rank == rank]
    if rank is Rank.LOOKS_LIKE and any(claim.rank is Rank.UNKNOWN for claim in claims):
        rank, heard = Rank.UNKNOWN, [claim for claim in claims if claim.rank is Rank.UNKNOWN]
    if not heard:
        return Domain(low=0, high=1, why="nothing in the graph looks at its values")
    if rank is Rank.UNKNOWN:
        return Domain(low=None, high=None, why=heard[0].why, node=heard[0].node)
    low, high = _within(dtype, max(claim.low for claim in heard), min(claim.high for claim in heard))
    tightest = min(heard, key=lambda claim: (claim.high - claim.low, claim.node))
    if low is not None and high is not None and low > high:
        why = f"what its readers state excludes each other ({'; '.join(claim.why for claim in heard)})"
        return Domain(low=None, high=None, why=why, node=tightest.node)
    is_mask = rank in (Rank.MASK, Rank.LOOKS_LIKE) and (low, high) == (0, 1)
    return Domain(low=low, high=high, why=tightest.why, node=tightest.node, is_mask=is_mask)


def _within(dtype: str, low: float, high: float) -> tuple[int | None, int | None]:
    """Whole numbers inside the claimed ones, within what the type holds; None for an open end."""
    least, most = stored_integers(dtype) or (-math.inf, math.inf)
    start = max(low, least) if math.isfinite(low) else low
    end = min(high, most) if math.isfinite(high) else high
    return (math.ceil(start) if math.isfinite(start) else None, math.floor(end) if math.isfinite(end) else None)


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
