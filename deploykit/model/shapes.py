"""Questions about shapes: what is not static, what has too many dimensions, how large something is.

It reads collected shapes and infers none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deploykit.model.element_types import BITS
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact, TensorRole
from deploykit.model.ops import Trait, has

__all__ = [
    "DynamicDim",
    "data_shaped_nodes",
    "dynamic_inputs",
    "dynamic_tensors",
    "shape_text",
    "tensor_bytes",
]


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


def data_shaped_nodes(facts: GraphFacts) -> Iterator[tuple[NodeFact, str]]:
    """The nodes whose output has a size that depends on values, each with what that means; in graph order.

    A size that is computed counts where it makes a difference: its reader's output is not static although every
    input of the graph is.
    """
    fixed = not dynamic_inputs(facts)
    for node in facts.nodes:
        if has(node, Trait.SIZED_BY_VALUES):
            yield node, "the size of its output depends on the data"
        elif fixed and has(node, Trait.SIZED_BY_INPUT):
            sizes = node.inputs if node.op_type == "Range" else node.inputs[1:2]
            computed = [name for name in sizes if _is_known_at_run_time(facts, name)]
            if computed and not all(facts.tensors[name].is_static for name in node.outputs if name in facts.tensors):
                yield node, f"its size comes from {computed[0]}, which is known at run time only"


def _is_known_at_run_time(facts: GraphFacts, name: str) -> bool:
    fact = facts.tensors.get(name)
    return fact is not None and fact.role in (TensorRole.ACTIVATION, TensorRole.INPUT)


def dynamic_tensors(facts: GraphFacts) -> tuple[str, ...]:
    """The computed tensors whose shape is known to depend on something: a symbol or a number only known at run time.

    Tensors about which nothing could be inferred are left out.
    """
    computed = (fact for fact in facts.tensors.values() if fact.role is TensorRole.ACTIVATION)
    return tuple(fact.name for fact in computed if fact.shape is not None and not fact.is_static)


def tensor_bytes(fact: TensorFact) -> int | None:
    """The size of a tensor in bytes in its own type, None where type or shape are not known."""
    bits = BITS.get(fact.dtype)
    if bits is None or fact.shape is None or not fact.is_static:
        return None
    return (bits * math.prod(dim for dim in fact.shape if isinstance(dim, int)) + 7) // 8


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
