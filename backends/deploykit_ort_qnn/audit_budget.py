"""Which kernels of a model are run where not all of them need to be: those that something is said of, then the rest.

The choice follows from the model and the atlas alone, never from what was measured before or from a clock, so that two
machines look at the same kernels. It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeVar

from deploykit_ort_qnn.bench.inputs import COVERING
from deploykit_ort_qnn.excerpts import PAIR
from deploykit_qualcomm.atlas.rows import operators

if TYPE_CHECKING:
    from deploykit.model.facts import GraphFacts, NodeFact
    from deploykit_ort_qnn.audit_units import Kernel

__all__ = ["affordable", "within_reach"]

_SECONDS = 15.0
"""Of processor time, estimated: what a check or a package may take for kernels that nobody asked for by name."""
_EACH = 0.03
"""Seconds for a kernel of any size: the share that it has of a compilation and of a run."""
_PER_VALUE = 1e-6
"""Seconds for each value that goes in, and for each that is stored."""
_ALIKE = 4
"""Times over the budget that nodes are cut out of the model: equal ones are one kernel, which only then is seen."""

T = TypeVar("T")


def within_reach(facts: GraphFacts, suspects: Set[str]) -> tuple[frozenset[str], int]:
    """Labels of the operators worth being cut out, and how many are not: no large model is taken apart as a whole."""
    values = [(node, _of_node(facts, node)) for node in facts.nodes if node.op_type not in (*PAIR, "Constant")]

    def urgency(node: NodeFact) -> tuple[bool, ...]:
        return (node.label not in suspects, node.op_type not in operators())

    sized = [(node, _seconds(given, stored)) for node, (given, stored) in values if given]
    near = [(node, seconds) for node, seconds in sized if seconds <= _SECONDS]
    chosen = _filled(near, urgency, _ALIKE * _SECONDS)
    return frozenset(node.label for node in chosen), len(sized) - len(chosen)


def affordable(kernels: Sequence[Kernel], suspects: Set[str]) -> tuple[Kernel, ...]:
    """Those that fit into the budget, in the order of the model: all of them where that is little enough.

    Suspects come first, alone before among neighbours, then operators that a row of the atlas is about under other
    conditions; of kernels that are as urgent the cheaper ones.
    """

    def urgency(kernel: Kernel) -> tuple[bool, ...]:
        is_known = not operators().isdisjoint(kernel.operators)
        return (suspects.isdisjoint(kernel.nodes), kernel.place != "alone", not is_known)

    sized = [(kernel, 0.0 if kernel.why else _seconds(*_of_kernel(kernel))) for kernel in kernels]
    chosen = {kernel.prefix for kernel in _filled(sized, urgency, _SECONDS)}
    return tuple(kernel for kernel in kernels if kernel.prefix in chosen)


def _filled(sized: Iterable[tuple[T, float]], urgency: Callable[[T], Any], budget: float) -> list[T]:
    """The most urgent first, of as urgent ones the cheapest, while the budget lasts."""
    chosen = []
    for one, seconds in sorted(sized, key=lambda pair: (urgency(pair[0]), pair[1])):
        if seconds <= budget:
            budget -= seconds
            chosen.append(one)
    return chosen


def _seconds(given: int, stored: int) -> float:
    return _EACH + _PER_VALUE * (given + stored)


def _of_kernel(kernel: Kernel) -> tuple[int, int]:
    given: int = sum(values.size for sample in kernel.samples for values in sample.values())
    return given, sum(math.prod(tensor.dims) for tensor in kernel.model.graph.initializer)


def _of_node(facts: GraphFacts, node: NodeFact) -> tuple[int, int]:
    """Values that would go into an operator, in all sets together, and those that it has stored; 0 where not known."""
    given = stored = 0
    for name in filter(None, node.inputs):
        fact, maker = facts.tensors.get(name), facts.producer_of(name)
        size = math.prod(dim if isinstance(dim, int) else 0 for dim in fact.shape or ()) if fact is not None else 0
        source = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else name
        if source in facts.tensors and facts.tensors[source].is_weight:
            stored += size
        else:
            given += COVERING * size
    return given, stored
