"""Derives int32 encodings of biases from what their op's input and weight are quantized to, as AIMET does.

A bias is added to an int32 accumulator whose step is input scale times weight scale, so that is its scale; for norms,
written out or not, and for recurrent ops it is the finest that holds the largest value. No entry is made where input or
weight is float or not quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from deploykit.encodings.movement import ReadValues
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Lpbq, Value
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import BIAS, WEIGHT, Trait, has
from deploykit.model.parameters import ParameterUse, parameter_uses, stored_behind
from deploykit.model.patterns import find_blocks

__all__ = ["FINEST_SCALE", "DerivedBiases", "derive_biases", "effective_entry"]

FINEST_SCALE = 0.01 / (2**32 - 1)
"""AIMET's floor for an int32 scale: the grid still reaches from -0.005 to 0.005."""

_LARGEST_SCALE = 1e298
_FINEST_FLOAT16 = 2.0**-14


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedBiases:
    """New entries in graph order, and for every other bias without an entry the reason why it gets none."""

    entries: tuple[Encoding, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)


Made: TypeAlias = "Affine | str"
"""A value, or the reason why there is none."""


def derive_biases(encodings: EncodingSet, facts: GraphFacts, *, read_values: ReadValues) -> DerivedBiases:
    """Int32 entries for all biases that have none; place the encodings first.

    ``read_values`` is asked for the biases of norms only (and of weights whose channels run along an unusual axis),
    since their scale comes from their values.
    """
    uses = parameter_uses(facts)
    weights = {use.node.index: use for found in uses.values() for use in found if use.role == WEIGHT}
    entries: list[Encoding] = []
    skipped: dict[str, str] = {}
    cases = [
        _Case(encodings, facts, use, weights.get(use.node.index), len(uses[use.name]), read_values, use.node.inputs[0])
        for use in _biases(uses)
    ]
    for case in (*cases, *_written_out(encodings, facts, read_values)):
        use = case.use
        if use.name in encodings or use.name in encodings.float_tensors or use.name in skipped:
            continue
        made = _derive(case)
        if isinstance(made, str):
            skipped[use.name] = made
        else:
            entries.append(Encoding(name=use.name, value=made, is_param=use.name in uses))
    return DerivedBiases(entries=tuple(entries), skipped=skipped)


def _biases(uses: Mapping[str, tuple[ParameterUse, ...]]) -> Iterator[ParameterUse]:
    """The first use of every bias, in graph order."""
    firsts = [next((use for use in found if use.role == BIAS), None) for found in uses.values()]
    yield from sorted((use for use in firsts if use is not None), key=lambda use: use.node.index)


def _written_out(encodings: EncodingSet, facts: GraphFacts, read_values: ReadValues) -> Iterator[_Case]:
    """The biases of norms that the graph writes out node by node."""
    for block in find_blocks(facts):
        bias, scale = (stored_behind(facts, name) if name else None for name in (block.bias, block.scale))
        if block.kind == "LayerNormalization" and bias is not None and scale is not None:
            node = facts.nodes[block.nodes[-1]]
            use = ParameterUse(name=bias, role=BIAS, node=node)
            weight = ParameterUse(name=scale, role=WEIGHT, node=node)
            yield _Case(encodings, facts, use, weight, 1, read_values, block.source)


@dataclass(frozen=True, slots=True)
class _Case:
    """One bias with everything its scale may depend on."""

    encodings: EncodingSet
    facts: GraphFacts
    use: ParameterUse
    weight: ParameterUse | None
    uses: int
    read_values: ReadValues
    source: str

    @property
    def node(self) -> NodeFact:
        return self.use.node

    def entry_of_input(self) -> Encoding | None:
        return effective_entry(self.encodings, self.facts, self.source)

    def entry_of_weight(self) -> Encoding | None:
        """The stored weight's own entry, or what a computed second input is quantized to."""
        if self.weight is not None:
            return self.encodings.get(self.weight.name)
        return effective_entry(self.encodings, self.facts, self.node.inputs[1])


def effective_entry(encodings: EncodingSet, facts: GraphFacts, name: str) -> Encoding | None:
    """The entry of a tensor, or the nearest one upstream over ops that keep the grid; None when there is none."""
    for _ in range(len(facts.nodes) + 1):
        entry = encodings.get(name)
        if entry is not None or name in encodings.float_tensors:
            return entry
        producer = facts.producer_of(name)
        if producer is None or not producer.inputs or not _keeps_grid(facts, producer):
            return None
        name = producer.inputs[0]
    return None


def _keeps_grid(facts: GraphFacts, node: NodeFact) -> bool:
    if node.op_type == "Cast":
        ends = [facts.tensors.get(name) for name in (node.inputs[0], node.outputs[0])]
        return all(fact is not None and fact.is_float for fact in ends)
    return has(node, Trait.AIMET_COPIES)


def _derive(case: _Case) -> Made:
    data, weight = case.entry_of_input(), case.entry_of_weight()
    for entry, what in ((data, "input"), (weight, "weight")):
        if entry is None:
            return f"the {what} of {case.node.label} is not quantized"
        if not isinstance(entry.value, Affine | Lpbq):
            return f"the {what} of {case.node.label} is {entry.dtype}"
    assert data is not None and weight is not None
    if not _is_settled(weight.value):
        return f"the weight of {case.node.label} is not placed on the graph"
    if has(case.node, Trait.RECURRENT) and weight.value.granularity != "per-tensor":
        return f"{case.node.op_type} joins the biases of all its gates, and their weights do not share a scale"
    if has(case.node, Trait.LINEAR) and _channels_fit(case, weight.value):
        return _analytic(case, data.value, weight.value)
    return _statistical(case, weight.value)


def _is_settled(value: Value) -> bool:
    return getattr(value, "placed", True)


def _channels_fit(case: _Case, weight: Value) -> bool:
    """True when the weight's scales run along the output channels, which are the bias's elements."""
    if weight.granularity == "per-tensor" or case.weight is None:
        return True
    assert isinstance(weight, Affine | Lpbq)
    blocks_fit = weight.block_axis is None or weight.block_axis == case.weight.block_axis
    return weight.axis == case.weight.channel_axis and blocks_fit


def _analytic(case: _Case, data: Value, weight: Value) -> Made:
    """Input scale times weight scale: per channel, of the largest block, and of the channel scale of LPBQ."""
    if case.uses > 1:
        return f"several ops add it, {case.node.label} among them, and each would need another scale"
    if not isinstance(data, Affine) or data.granularity != "per-tensor":
        return f"the input of {case.node.label} is not quantized per tensor"
    assert isinstance(weight, Affine | Lpbq)
    if isinstance(weight, Lpbq):
        # Observed: AIMET keeps the channel scales of LPBQ in double, and only the input's in float32.
        with np.errstate(over="ignore", under="ignore"):
            scale = np.asarray(data.scale.astype(np.float32).astype(np.float64) * weight.channel_scale)
    else:
        scale = _single_product(data.scale, weight.scale)
    if weight.block_axis is not None:
        scale = scale.max(axis=weight.block_axis)
    return _int32(scale.reshape(-1) if scale.ndim else scale)


def _single_product(first: Array, second: Array) -> Array:
    """The product in float32, as AIMET computes it; in double where float32 would underflow or overflow."""
    with np.errstate(over="ignore", under="ignore"):
        single = first.astype(np.float32) * second.astype(np.float32)
        exact = np.asarray(first * second)
    return np.where(np.isfinite(single) & (single >= np.finfo(np.float32).tiny), single.astype(np.float64), exact)


def _statistical(case: _Case, weight: Value) -> Made:
    """The finest scale that holds the bias: of all its values, or of each where the weight is per channel."""
    values = case.read_values(case.use.name)
    if values is None:
        return f"the scale comes from its values, and {case.use.name!r} cannot be read"
    fact = case.facts.tensors[case.use.name]
    floor = max(FINEST_SCALE, _FINEST_FLOAT16 if fact.dtype == "float16" else 0.0)
    scale = np.maximum(np.abs(values.astype(np.float64)) / 2**31, floor)
    if not np.isfinite(scale).all():
        return f"{case.use.name!r} holds values that are not finite"
    return _int32(np.asarray(scale.max()) if weight.granularity == "per-tensor" else scale.reshape(-1))


def _int32(scale: Array) -> Made:
    if not ((scale > 0) & (scale < _LARGEST_SCALE)).all():
        return f"the product of the scales, {float(scale.flat[0]):g}, is no usable scale"
    axis = 0 if scale.ndim else None
    return Affine(bits=32, signed=True, scale=scale, zero_point=np.zeros(scale.shape), symmetric=True, axis=axis)
