"""Which stored tensors a graph reads as weights, biases and norm parameters, seen through Q/DQ pairs where asked.

The roles are those by which AIMET tells parameters from activations. It reads no values.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from deploykit.findings.records import Record
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import BIAS, QUANTIZERS, ROLES, WEIGHT, is_standard
from deploykit.system.store import made_once

__all__ = [
    "ParameterUse",
    "bias_after_matmul",
    "integer_type",
    "parameter_uses",
    "quantizer_of",
    "stored_behind",
    "stored_behind_pairs",
]


class ParameterUse(Record, kw_only=False):
    """One stored tensor in one role. The axes are counted from the front; None where the op has no such axis."""

    name: str
    role: str
    node: NodeFact
    channel_axis: int | None = None
    block_axis: int | None = None


@made_once
def parameter_uses(facts: GraphFacts) -> Mapping[str, tuple[ParameterUse, ...]]:
    """Every stored tensor that is read as a parameter, with all its uses in graph order."""
    found = dict[str, list[ParameterUse]]()
    for node in facts.nodes:
        if not is_standard(node):
            continue
        for index, role in ROLES.get(node.op_type, {}).items():
            name, turned = (
                _stored_weight(facts, node, node.inputs[index]) if index < len(node.inputs) else (None, False)
            )
            if name is not None:
                channel, block = _axes(facts, node, name, turned=turned) if role == WEIGHT else (None, None)
                use = ParameterUse(name, role, node=node, channel_axis=channel, block_axis=block)
                found.setdefault(name, []).append(use)
        bias = bias_after_matmul(facts, node)
        if bias is not None:
            found.setdefault(bias, []).append(ParameterUse(bias, BIAS, node=node))
    return {name: tuple(uses) for name, uses in found.items()}


def _stored_weight(facts: GraphFacts, node: NodeFact, name: str) -> tuple[str | None, bool]:
    """The stored tensor behind an input, and whether a Transpose stands between; only MatMul looks through one."""
    stored = stored_behind(facts, name)
    if stored is not None or node.op_type != "MatMul":
        return stored, False
    turn = facts.producer_of(name, "Transpose")
    return (None, False) if turn is None else (stored_behind(facts, turn.inputs[0]), True)


def stored_behind(facts: GraphFacts, name: str, *, through: Container[str] = ("Identity",)) -> str | None:
    """The initializer or constant that a name stands for, looking through Identity; None for computed tensors."""
    name = facts.origin(name, through)
    return name if facts.is_stored(name) else None


def _axes(facts: GraphFacts, node: NodeFact, name: str, *, turned: bool) -> tuple[int | None, int | None]:
    """``(channel axis, block axis)`` of a weight as the op that reads it lays it out."""
    rank = facts.tensors[name].rank
    if node.op_type == "Conv":
        axes = (0, 1)
    elif node.op_type == "ConvTranspose":
        axes = (1, 0)
    elif node.op_type == "Gemm":
        axes = (0, 1) if node.attributes.get("transB") else (1, 0)
    elif node.op_type == "MatMul" and rank is not None and rank >= 2:
        axes = (rank - 2, rank - 1) if turned else (rank - 1, rank - 2)
    else:
        return None, None
    return axes if rank is not None and rank > max(axes) else (None, None)


def bias_after_matmul(facts: GraphFacts, node: NodeFact) -> str | None:
    """The rank-1 stored tensor that the only reader of a MatMul with a stored weight adds to its output."""
    if node.op_type != "MatMul" or len(node.inputs) < 2 or _stored_weight(facts, node, node.inputs[1])[0] is None:
        return None
    add = facts.only_reader(node.outputs[0], "Add")
    if add is None:
        return None
    others = [name for name in add.inputs if name != node.outputs[0]]
    if len(others) != 1:
        return None
    stored = stored_behind(facts, others[0])
    return stored if stored is not None and facts.tensors[stored].rank == 1 else None


def quantizer_of(facts: GraphFacts, name: str) -> NodeFact | None:
    """The DequantizeLinear that makes a tensor, else the first QuantizeLinear that reads it as data, else None."""
    producer = facts.producer_of(name, "DequantizeLinear")
    if producer is not None:
        return producer
    # Once for all: a stored tensor may have ten thousand readers, each of which asks this.
    first = facts.once(
        "quantizers",
        lambda: {node.inputs[0]: node for node in reversed(facts.nodes) if node.op_type == "QuantizeLinear"},
    )
    return first.get(name)


def integer_type(facts: GraphFacts, node: NodeFact) -> str:
    """The integer type of a Q/DQ pair: that of its zero point, else of the quantized tensor; "" when unknown."""
    integers = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    types = (facts.tensor(name).dtype for name in (*node.inputs[2:3], integers))
    return next(filter(None, types), "")


def stored_behind_pairs(facts: GraphFacts, name: str) -> str | None:
    """The stored tensor behind a name, through quantizers and Identity; None for computed ones and unknown names."""
    return stored_behind(facts, name, through=(*QUANTIZERS, "Identity"))
