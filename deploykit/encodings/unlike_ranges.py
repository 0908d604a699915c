"""Finds the Concat that brings tensors of different ranges under one scale, and the nodes to leave out around it.

It reads graph facts only; no values, no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, ops
from deploykit.model.parameters import QUANTIZERS, producer_before_pairs

__all__ = ["Mixing", "exclusion_around", "find_mixing", "output_of_shape"]

_TRANSPARENT = frozenset({*QUANTIZERS, "Identity", "Cast", "Relu", "Dropout"})
_HEAVY = ops(Trait.LINEAR, Trait.INTEGER_LINEAR, Trait.RECURRENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """A Concat whose operands end up under one scale.

    ``parts`` are its operands with the slices they fill along ``axis``. ``starts`` and ``ends`` name a closed subgraph
    around it that can stay in float; ``starts`` is empty where some of its nodes have no name.
    """

    concat: NodeFact
    axis: int
    parts: tuple[tuple[str, int, int], ...]
    starts: tuple[str, ...]
    ends: tuple[str, ...]

    def part_of(self, start: int, stop: int) -> tuple[str, ...]:
        """The operands that fill at least one of the slices ``start`` to ``stop`` (excluded)."""
        return tuple(name for name, first, end in self.parts if first < stop and start < end)

    @property
    def exclusion(self) -> str:
        """The subgraph as ``START,START:END``, the form that ``--exclude-subgraph`` takes; "" without names."""
        return f"{','.join(self.starts)}:{','.join(self.ends)}" if self.starts else ""


def output_of_shape(facts: GraphFacts, name: str, shape: tuple[int, ...]) -> str | None:
    """The graph output called ``name``, else the only one, else the only one of that shape."""
    if name in facts.outputs:
        return name
    if len(facts.outputs) == 1:
        return facts.outputs[0]
    fitting = [output for output in facts.outputs if facts.tensors[output].shape == shape]
    return fitting[0] if len(fitting) == 1 else None


def find_mixing(facts: GraphFacts, output: str, axis: int) -> Mixing | None:
    """The Concat along ``axis`` that makes ``output``, seen through quantizers and casts; None when there is none."""
    node = facts.producer_of(output)
    while node is not None and node.op_type in _TRANSPARENT:
        node = facts.producer_of(node.inputs[0])
    if node is None or node.op_type != "Concat":
        return None
    fact = facts.tensors.get(node.outputs[0])
    rank = fact.rank if fact is not None and fact.rank is not None else None
    along = int(node.attributes.get("axis", 0))
    along = along + rank if along < 0 and rank is not None else along
    if along != axis:
        return None
    parts = tuple(_parts(facts, node, along))
    if not parts:
        return None
    starts, ends = exclusion_around(facts, node)
    return Mixing(concat=node, axis=along, parts=parts, starts=starts, ends=ends)


def _parts(facts: GraphFacts, concat: NodeFact, axis: int) -> Iterator[tuple[str, int, int]]:
    """Operands with their slices; nothing at all as soon as one length is unknown."""
    lengths = []
    for name in concat.inputs:
        fact = facts.tensors.get(name)
        length = fact.shape[axis] if fact is not None and fact.shape is not None and axis < len(fact.shape) else None
        if not isinstance(length, int):
            return
        lengths.append(length)
    position = 0
    for name, length in zip(concat.inputs, lengths, strict=True):
        yield name, position, position + length
        position += length


def exclusion_around(facts: GraphFacts, end: NodeFact) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A closed subgraph that ends in ``end`` and reaches back to the nearest heavy operators, as (starts, ends).

    Closed: every way from a graph input into ``end`` passes one of the starts. Quantizers are looked through, so that
    names of a quantized graph are those of the float one. Empty where a start has no name.
    """
    region, queue = {end.index}, [end]
    starts: dict[int, NodeFact] = {}
    while queue:
        node = queue.pop()
        for tensor in node.inputs:
            before = producer_before_pairs(facts, tensor)
            if before is None:
                if tensor in facts.inputs:
                    starts[node.index] = node
            elif before.op_type in _HEAVY:
                starts[node.index] = node
            elif before.index not in region:
                region.add(before.index)
                queue.append(before)
    names = tuple(starts[index].name for index in sorted(starts))
    usable = bool(names) and all(names) and bool(end.name) and end.index not in starts
    return (names, (end.name,)) if usable else ((), ())
