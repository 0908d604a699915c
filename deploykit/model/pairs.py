"""Looks through QuantizeLinear and DequantizeLinear in the facts of a graph: what they quantize, and into which type.

It reads no values: scales and zero points are read where somebody needs them (``encodings.qdq_graph`` reads them all).
"""

from __future__ import annotations

from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["QUANTIZERS", "integer_type", "producer_before_pairs", "quantizer_of", "stored_behind_pairs"]

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def quantizer_of(facts: GraphFacts, name: str) -> NodeFact | None:
    """The DequantizeLinear that makes a tensor, else the first QuantizeLinear that reads it as data, else None."""
    producer = facts.producer_of(name)
    if producer is not None and producer.op_type == "DequantizeLinear":
        return producer
    readers = facts.consumers_of(name)
    return next((node for node in readers if node.op_type == "QuantizeLinear" and node.inputs[0] == name), None)


def integer_type(facts: GraphFacts, node: NodeFact) -> str:
    """The type between the two halves of a pair: that of the zero point, else of the integers; "" when unknown."""
    integers = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    known = (facts.tensors.get(name) for name in (*node.inputs[2:3], integers))
    return next((fact.dtype for fact in known if fact is not None and fact.dtype), "")


def stored_behind_pairs(facts: GraphFacts, name: str) -> str | None:
    """The stored tensor behind a name, through quantizers and Identity; None for computed ones and unknown names."""
    for _ in range(len(facts.nodes) + 1):
        fact = facts.tensors.get(name)
        if fact is None or fact.is_weight:
            return None if fact is None else name
        producer = facts.producer_of(name)
        if producer is None or producer.op_type not in (*QUANTIZERS, "Identity"):
            return None
        name = producer.inputs[0]
    return None


def producer_before_pairs(facts: GraphFacts, name: str) -> NodeFact | None:
    """The node that makes a tensor, seen through quantizers."""
    node = facts.producer_of(name)
    while node is not None and node.op_type in QUANTIZERS:
        node = facts.producer_of(node.inputs[0])
    return node
