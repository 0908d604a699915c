"""Which activations Quark quantizes when some nodes stay in float: worked out on the graph, before anything runs.

Observed with amd-quark 0.11.2, 0.12.post1 and 0.13: most operators quantize what they read and what they make; some
pass on what they get, so that behind a float node they stay in float as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["PASSIVE", "activation_types"]

PASSIVE = frozenset(
    {
        "Clip",
        "Gather",
        "HardSigmoid",
        "Identity",
        "MaxPool",
        "Relu",
        "Reshape",
        "Resize",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that put no quantizer on a float input; Identity is removed altogether."""


def activation_types(facts: GraphFacts, excluded: Collection[int], integer: str) -> Mapping[str, str]:
    """``integer`` or ``float32`` for every float activation that a node makes.

    Left out are tensors behind a float node that both quantizing and other nodes read: they exist in both forms.
    """
    types: dict[str, str] = {}
    for node in facts.nodes:
        for name in node.outputs:
            fact = facts.tensors.get(name)
            if fact is None or fact.is_weight or fact.dtype not in ("float", "float16"):
                continue
            kind = integer if _makes_integers(facts, node, excluded, types, integer) else _border(facts, name, excluded)
            if kind:
                types[name] = integer if kind != "float32" else kind
    return types


def in_float16(facts: GraphFacts, excluded: Collection[int], types: Mapping[str, str]) -> Mapping[str, str]:
    """The same where what is left out stays float16: a value at the border exists in both forms, and is left out."""
    borders = {
        name
        for node in facts.nodes
        for name in node.outputs
        if any((reader.index in excluded) is not (node.index in excluded) for reader in facts.consumers_of(name))
    }
    return {name: "float16" if kind == "float32" else kind for name, kind in types.items() if name not in borders}


def _makes_integers(
    facts: GraphFacts, node: NodeFact, excluded: Collection[int], types: Mapping[str, str], integer: str
) -> bool:
    if node.index in excluded:
        return False
    if node.op_type not in PASSIVE:
        return True
    source = node.inputs[0]
    if source in facts.inputs:
        return any(_quantizes(reader, excluded) for reader in facts.consumers_of(source))
    return types.get(source) == integer


def _border(facts: GraphFacts, name: str, excluded: Collection[int]) -> str:
    """What becomes of a float value by its readers: ``integer``, ``float32``, or "" when they differ."""
    readers = [_quantizes(reader, excluded) for reader in facts.consumers_of(name)]
    if readers and all(readers) and name not in facts.outputs:
        return "integer"
    return "" if any(readers) else "float32"


def _quantizes(node: NodeFact, excluded: Collection[int]) -> bool:
    return node.index not in excluded and node.op_type not in PASSIVE
