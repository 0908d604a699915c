"""Gives grids to tensors that a file leaves out because the device computes them inside one operator.

The provider fuses less than the device: where it meets no pair it makes the operators around it float, or refuses them.
Ranges come from ``quantization.inferring``; what nothing tells stays float, and no range is made up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from deploykit.encodings.backward import Evidence
from deploykit.encodings.coverage import absorbing_fusions
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.parameters import bias_after_matmul

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Observer", "fused_grids"]

Observer: TypeAlias = "Callable[[ModelProto], Evidence]"
"""What the user's data tells about a model; asked only where grids are missing."""

_NARROW = 8
_STATISTICS = frozenset({"Exp", "InstanceNormalization", "ReduceMean", "ReduceSum"})
"""What a norm or a Softmax is made of: 8 bits cannot hold squares and exponentials beside what they come from."""


def fused_grids(
    model: ModelProto, encodings: EncodingSet, observer: Observer | None
) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with an entry for every tensor inside a fused operator, and the names of those that are new.

    An operator gets all of its entries or none: with half of them the border to float would only move.
    """
    facts = facts_of(model)
    missing: dict[str, list[str]] = {}
    fusions = absorbing_fusions(facts, encodings)
    for name in (name for name in facts.tensors if name in fusions):  # what is inside one has no order of its own
        fusion = fusions[name]
        if name in fusion.inside and facts.tensors[name].is_float and not _before_bias(facts, encodings, name):
            missing.setdefault(fusion.result, []).append(name)
    missing = {result: names for result, names in missing.items() if _can_be_integer(facts, encodings, result, names)}
    if not missing:
        return encodings, ()
    wanted = [name for names in missing.values() for name in names]
    evidence = Evidence() if observer is None else observer(model)
    inferred = infer_entries(model, facts, encodings, wanted, evidence=evidence)
    unknown = {tensor.name for tensor in inferred.open}
    made = [name for names in missing.values() if unknown.isdisjoint(names) for name in names]
    if not made:
        return encodings, ()
    entries = {name: inferred.encodings.entries[name] for name in made}
    return replace(encodings, entries={**encodings.entries, **entries}), tuple(made)


def _before_bias(facts: GraphFacts, encodings: EncodingSet, name: str) -> bool:
    """True between a MatMul and a bias of int32, or without an entry as AIMET leaves it out up to version 1.0.0.

    ONNX Runtime makes one layer of the two, with the exact sum: a grid between them costs up to 15 dB.
    """
    maker = facts.producer_of(name)
    bias = None if maker is None else bias_after_matmul(facts, maker)
    if bias is None or bias in encodings.floats:
        return False
    entry = encodings.get(bias)
    return entry is None or (isinstance(entry.value, Affine) and entry.value.bits == 32)


def _can_be_integer(facts: GraphFacts, encodings: EncodingSet, result: str, names: list[str]) -> bool:
    """True where the result is an integer, wide enough for what is computed on the way to it."""
    entry = encodings.get(result)
    if entry is None or not isinstance(entry.value, Affine):
        return False
    makers = [facts.producer_of(name) for name in names]
    return entry.value.bits > _NARROW or all(node is None or node.op_type not in _STATISTICS for node in makers)
