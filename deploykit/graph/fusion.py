"""Tensors between two ops that tool chains compute as one: they have no type of their own, and AIMET no entry for them.

The pairs are those whose inner tensor AIMET 2.42 leaves out when it simulates an NPU. It reads no encodings.
"""

from __future__ import annotations

from collections.abc import Mapping

from deploykit.graph.facts import GraphFacts, NodeFact, TensorFact
from deploykit.graph.parameters import DEFAULT_DOMAINS, bias_after_matmul

__all__ = ["fused_tensors"]

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_TAKES_IN: Mapping[str, frozenset[str]] = {
    "BatchNormalization": _CONVOLUTIONS | {"Gemm"},
    "Clip": _CONVOLUTIONS | {"BatchNormalization", "Gemm"},
    "Relu": _CONVOLUTIONS | {"Add", "BatchNormalization", "Gemm", "MatMul"},
}
"""Reader -> makers that it is fused with; MatMul and the Add of its bias are told apart by what is added."""

_MOST_INPUTS = 5
"""What a BatchNormalization reads; looking through longer lists for every tensor in them would not be linear."""


def fused_tensors(facts: GraphFacts) -> dict[str, NodeFact]:
    """Every tensor inside a fused pair, with the node that takes it in: its only reader, and it is no output."""
    found = {}
    for tensor in facts.tensors.values():
        reader = _fusing_reader(facts, tensor)
        if reader is not None:
            found[tensor.name] = reader
    return found


def _fusing_reader(facts: GraphFacts, tensor: TensorFact) -> NodeFact | None:
    maker, readers = facts.producer_of(tensor.name), facts.consumers_of(tensor.name)
    if maker is None or len(readers) != 1 or tensor.is_output:
        return None
    reader = readers[0]
    if len(reader.inputs) > _MOST_INPUTS:
        return None
    if not {maker.domain, reader.domain} <= set(DEFAULT_DOMAINS) or reader.inputs.count(tensor.name) != 1:
        return None
    if bias_after_matmul(facts, maker) is not None:
        return reader
    makers = _TAKES_IN.get(reader.op_type, frozenset())
    return reader if maker.op_type in makers and reader.inputs[0] == tensor.name else None
