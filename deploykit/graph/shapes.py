"""Questions about shapes: what is not static, what has too many dimensions, how large something is.

It reads collected shapes and infers none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from deploykit.graph.facts import GraphFacts, TensorFact, TensorRole

__all__ = ["DynamicDim", "dynamic_inputs", "dynamic_tensors", "high_rank_tensors", "shape_text", "tensor_bytes"]

_BYTES = {"float": 4, "float16": 2, "bfloat16": 2, "double": 8, "bool": 1}
_BYTES |= {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicDim:
    """One dimension that is not a number: ``axis`` counts from the front, None where not even the rank is known."""

    tensor: str
    axis: int | None
    symbol: str | None

    @property
    def label(self) -> str:
        """The dimension as people name it: its symbol, or its position."""
        if self.axis is None:
            return "an unknown rank"
        return f"dimension {self.axis}" + (f" ({self.symbol})" if self.symbol else " (unnamed)")


def dynamic_inputs(facts: GraphFacts) -> tuple[DynamicDim, ...]:
    """Every dimension of a graph input that is not fixed, in graph order."""
    return tuple(dim for name in facts.inputs for dim in _dynamic_dims(facts.tensors[name]))


def dynamic_tensors(facts: GraphFacts) -> tuple[str, ...]:
    """The computed tensors whose shape is known to depend on something: a symbol or a number only known at run time.

    Tensors about which nothing could be inferred are left out.
    """
    computed = (fact for fact in facts.tensors.values() if fact.role is TensorRole.ACTIVATION)
    return tuple(fact.name for fact in computed if fact.shape is not None and not fact.is_static)


def high_rank_tensors(facts: GraphFacts, limit: int) -> tuple[TensorFact, ...]:
    """The tensors with more than ``limit`` dimensions that a node makes, reads or the graph takes in."""
    return tuple(fact for fact in facts.tensors.values() if fact.rank is not None and fact.rank > limit)


def tensor_bytes(fact: TensorFact) -> int | None:
    """The size of a tensor in bytes in its own type, None where type or shape are not known."""
    size = _BYTES.get(fact.dtype)
    if size is None or fact.shape is None or not fact.is_static:
        return None
    return size * math.prod(dim for dim in fact.shape if isinstance(dim, int))


def shape_text(fact: TensorFact) -> str:
    """A shape as people write it: 1 x 3 x height x ?; "unknown" where the rank is."""
    if fact.shape is None:
        return "unknown"
    return " x ".join("?" if dim is None else str(dim) for dim in fact.shape) or "a scalar"


def _dynamic_dims(fact: TensorFact) -> Iterable[DynamicDim]:
    if fact.shape is None:
        return [DynamicDim(tensor=fact.name, axis=None, symbol=None)]
    return [
        DynamicDim(tensor=fact.name, axis=axis, symbol=dim if isinstance(dim, str) else None)
        for axis, dim in enumerate(fact.shape)
        if not isinstance(dim, int)
    ]
