"""Layers that are quantized while they run, as ONNX Runtime's ``quantize_dynamic`` writes them."""

from __future__ import annotations

from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["dynamically_quantized"]

_INTEGER = frozenset({"ConvInteger", "MatMulInteger"})


def dynamically_quantized(facts: GraphFacts) -> frozenset[str]:
    """Labels of the nodes of whole chains: DynamicQuantizeLinear, MatMulInteger or ConvInteger, Cast, Mul.

    A DynamicQuantizeLinear belongs to them where every reader of its integers does, and the model does not give them.
    """
    whole: set[str] = set()
    for first in facts.nodes:
        if first.op_type != "DynamicQuantizeLinear":
            continue
        readers = facts.consumers_of(first.outputs[0])
        inside = [reader.label for reader in readers if reader.op_type in _INTEGER and _scaled(facts, reader)]
        whole.update(inside)
        if readers and len(inside) == len(readers) and first.outputs[0] not in facts.outputs:
            whole.add(first.label)
    return frozenset(whole)


def _scaled(facts: GraphFacts, integer: NodeFact) -> bool:
    """Whether the sums become floats in one Cast, and that is multiplied by a scale."""
    casts = facts.consumers_of(integer.outputs[0])
    if len(casts) != 1 or casts[0].op_type != "Cast":
        return False
    after = facts.consumers_of(casts[0].outputs[0])
    return len(after) == 1 and after[0].op_type == "Mul"
