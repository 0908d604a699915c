"""Copies per-tensor encodings over ops that only move, select or clip data, in both directions, as AIMET does.

Which ops those are and in which order they give was observed on AIMET 2.42. Nothing is computed here, and a tensor that
is meant to be float neither gives nor takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from deploykit.encodings.formats.differences import compare_values
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float8, Value
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, data_outputs, has
from deploykit.model.parameters import parameter_uses

__all__ = ["copy_over_movement"]

_ALL = -1
_DATA_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Clip": (0, 1, 2),
    "Concat": (_ALL,),
    "Dropout": (0, 1),
    "Max": (_ALL,),
    "MaxRoiPool": (0, 1),
    "Min": (_ALL,),
    "Pad": (0, 2),
    "Scatter": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Where": (1, 2),
}
"""Input positions whose entries AIMET compares, where it is not the first alone."""

_FAR_BELOW = -20.0

ReadValues = Callable[[str], "Array | None"]
"""Gives the values of a stored tensor, or None when they cannot be had."""


def copy_over_movement(
    encodings: EncodingSet, facts: GraphFacts, *, read_values: ReadValues | None = None
) -> tuple[Encoding, ...]:
    """The entries that follow from data movement, in the order in which they were found.

    Every op gives the entry of its inputs to its outputs when all inputs share it, and that of its outputs to an input
    that nothing else reads; the graph is walked forwards, then backwards. Per-channel entries do not travel, since
    axes move too. ``read_values`` is only asked for scalars, to tell a masked Softmax, whose ReduceMin AIMET leaves
    alone; without it no such ReduceMin is recognised.
    """
    floats = encodings.floats
    known: dict[str, Value] = {e.name: e.value for e in encodings if e.name not in floats}
    copying = (node for node in facts.nodes if has(node, Trait.AIMET_COPIES, Trait.AIMET_JOINS))
    moving = [node for node in copying if not _is_masked_minimum(facts, node, read_values)]
    found: dict[str, Value] = {}
    for node in (*moving, *reversed(moving)):
        for name, value in _derived(facts, node, known, floats):
            found[name] = known[name] = value
    params = parameter_uses(facts)
    return tuple(Encoding(name=name, value=value, is_param=name in params) for name, value in found.items())


def _derived(
    facts: GraphFacts, node: NodeFact, known: Mapping[str, Value], floats: Iterable[str]
) -> Iterable[tuple[str, Value]]:
    """What one op gives: first from its outputs to its inputs, then from its inputs to its outputs."""
    inputs, outputs = _data_inputs(node), data_outputs(node, node.outputs)
    if not inputs or not outputs:
        return []
    given: dict[str, Value] = {}
    if _agree(outputs, known):
        value = known.get(outputs[0])
        takers = [name for name in inputs if name not in known and len(facts.consumers_of(name)) == 1]
        given.update((name, value) for name in takers if value is not None and _travels(value))
    # A padded tensor takes its input's entry whatever the padding is quantized to.
    if node.op_type == "Pad" or _agree(inputs, known):
        value = known.get(inputs[0])
        given.update((name, value) for name in outputs if value is not None and _travels(value) and name not in known)
    return [(name, value) for name, value in given.items() if name not in floats]


def _data_inputs(node: NodeFact) -> tuple[str, ...]:
    positions = _DATA_INPUTS.get(node.op_type, (0,))
    return tuple(n for i, n in enumerate(node.inputs) if n and (i in positions or _ALL in positions))


def _travels(value: Value) -> bool:
    return isinstance(value, Affine | Float8) and value.granularity == "per-tensor"


def _agree(names: tuple[str, ...], known: Mapping[str, Value]) -> bool:
    """True for one name, and for several that all have the same entry."""
    first = known.get(names[0])
    others = [known.get(name) for name in names[1:]]
    return all(first is not None and other is not None and _same(first, other) for other in others)


def _same(first: Value, second: Value) -> bool:
    return first is second or not compare_values(first, second)


def _is_masked_minimum(facts: GraphFacts, node: NodeFact, read_values: ReadValues | None) -> bool:
    """True for ReduceMin in ``Softmax(Where(mask, x, ReduceMin(x) + far))``: tool chains match that as one op."""
    if node.op_type != "ReduceMin" or read_values is None:
        return False
    add = _only_reader(facts, node, "Add")
    where = _only_reader(facts, add, "Where")
    softmax = _only_reader(facts, where, "Softmax")
    if add is None or softmax is None or softmax.attributes.get("axis", -1) not in (-1, 3):
        return False
    return _is_last_axis(node, read_values) and any(
        _scalar(name, read_values) <= _FAR_BELOW for name in add.inputs if name != node.outputs[0]
    )


def _only_reader(facts: GraphFacts, node: NodeFact | None, op_type: str) -> NodeFact | None:
    readers = facts.consumers_of(node.outputs[0]) if node is not None else ()
    return readers[0] if len(readers) == 1 and readers[0].op_type == op_type else None


def _is_last_axis(node: NodeFact, read_values: ReadValues) -> bool:
    if len(node.inputs) > 1:
        return _scalar(node.inputs[1], read_values) in (-1.0, 3.0)
    return list(node.attributes.get("axes", ())) in ([-1], [3])


def _scalar(name: str, read_values: ReadValues) -> float:
    """The value of a stored scalar; NaN, which compares with nothing, for everything else."""
    values = read_values(name)
    return float(values.flat[0]) if values is not None and values.size == 1 else float("nan")
