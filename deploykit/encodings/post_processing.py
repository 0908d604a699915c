"""Finds the post-processing at the end of a graph that integers destroy, and the Concat that mixes unlike ranges.

It reads graph facts and ranges only; it changes nothing and knows no device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum

from deploykit.findings.records import Interval, Json, Names, Published, Record, Shape, published
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.nodes import reached
from deploykit.model.operators import QUANTIZERS, RANGES, ROLES, Trait, has, is_standard, ops

__all__ = [
    "NETWORK_OPS",
    "Harm",
    "PostProcessing",
    "concat_parts",
    "exclusion_around",
    "find_mixing",
    "find_post_processing",
    "output_of_shape",
]

NETWORK_OPS = ops(Trait.CONTROL_FLOW) | ROLES.keys() | {"Attention", "DeformConv", "Einsum", "GridSample", "Resize"}
"""Operators of the network: a node that leads to one is no post-processing."""

_MOVES = ops(Trait.REARRANGES)

UNLIKE = 4.0
"""Ranges whose magnitudes differ by more than this factor share a grid badly."""

_COORDINATE = 4.0
"""Arithmetic with a stored number of this size is about places, strides or sizes: no weight of a network is so large
behind its last layer."""

_MOST_BINS = 64
_UNKNOWN = (-math.inf, math.inf)


class Harm(StrEnum):
    """What an operation does that a grid of a few integers does not survive, or survives badly."""

    UNLIKE = "unlike-ranges"
    """A Concat puts values of unlike ranges on one grid: the smaller ones keep a handful of steps."""
    COORDINATES = "coordinates"
    """Values are moved to grid points or scaled to pixels: each sum is rounded to a step of the whole image."""
    EXPONENTIAL = "exponential"
    """An Exp makes one step of its operand a factor of its result."""
    EXPECTATION = "expectation"
    """The mean over bins that a Softmax weighs: many small chances are rounded, then added up."""
    CHOICE = "choice"
    """A TopK orders rounded scores, among which are ties. It does no harm by itself."""


class Operand(Published):
    """An operand and its range; infinite ends where nothing is known."""

    tensor: str
    low: float
    high: float

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def as_published(self) -> Json:
        """The operand and its range; an end that is not known is published as None."""
        return {"tensor": self.tensor, "range": [self.low, self.high]}

    def __str__(self) -> str:
        ends = (f"{value:.4g}" if math.isfinite(value) else "?" for value in (self.low, self.high))
        return f"{self.tensor} ({'..'.join(ends)})"


class Hurt(Published):
    """One node that integers hurt, the harm, and its operands with their ranges."""

    node: str
    harm: Harm
    parts: tuple[Operand, ...]


class PostProcessing(Published):
    """The nodes between the network and the outputs, by index, in those parts of the graph that integers hurt.

    They are closed: values enter from ``heads``, the last operators of the network before them (with a bias or a clamp
    that fuses with them), or from graph inputs. ``starts`` and ``ends`` are the first and last nodes by label.
    """

    nodes: frozenset[int]
    heads: frozenset[int]
    starts: Names
    ends: Names
    hurts: tuple[Hurt, ...]

    @property
    def harms(self) -> tuple[Harm, ...]:
        """The harms that its nodes suffer, each once."""
        return tuple(harm for harm in Harm if any(hurt.harm is harm for hurt in self.hurts))

    def tensors(self, facts: GraphFacts) -> Names:
        """The float tensors that its nodes make, in graph order."""
        made = [name for index in sorted(self.nodes) for name in facts.nodes[index].outputs]
        return tuple(name for name in made if name and facts.tensors[name].is_float)

    def __str__(self) -> str:
        where = f"{self.starts[0]} to {self.ends[-1]}" if len(self.nodes) > 1 else self.ends[0]
        return f"{len(self.nodes)} node{'s' if len(self.nodes) > 1 else ''} behind the network ({where})"

    def as_published(self) -> Json:
        """The number of nodes, where they start and end, and what hurts them."""
        return {**published(self, without=("heads",)), "nodes": len(self.nodes)}


def find_post_processing(facts: GraphFacts, known: Callable[[str], Interval | None]) -> PostProcessing | None:
    """The post-processing of a float graph that integers hurt; None where there is none.

    ``known`` gives the bounds of a tensor, stored ones among them, or the range it reached on data; None where it is
    unknown.
    """
    hurts = dict[int, Hurt]()
    nodes = set[int]()
    for group in _groups(facts):
        harmed = {index: hurt for index in group if (hurt := _hurt(facts, facts.nodes[index], known)) is not None}
        if any(hurt.harm is not Harm.CHOICE for hurt in harmed.values()):
            nodes |= group
            hurts |= harmed
    inside = [facts.nodes[index] for index in sorted(nodes)]
    made = {name for node in inside for name in node.outputs}
    entering = {  # the inputs from outside that are computed or fed
        node.index: [
            name
            for name in node.inputs
            if name in facts.inputs or (name not in made and facts.producer_of(name) and not facts.is_stored(name))
        ]
        for node in inside
    }
    # Back from where values enter to the nearest op of the network on every way.
    heads, queue = set[int](), [name for names in entering.values() for name in names]
    while queue:
        maker = facts.producer_of(queue.pop())
        if maker is None or maker.index in heads or maker.op_type == "Constant":
            continue
        heads.add(maker.index)
        if maker.op_type not in NETWORK_OPS:
            queue += [name for name in maker.inputs if name]
    found = PostProcessing(
        nodes=frozenset(nodes),
        heads=frozenset(heads),
        starts=tuple(node.label for node in inside if entering[node.index]),
        ends=tuple(node.label for node in inside if set(node.outputs) & set(facts.outputs)),
        hurts=tuple(hurts[index] for index in sorted(hurts)),
    )
    return found if found.starts and found.ends else None  # else constants, or what nobody asks for


def _groups(facts: GraphFacts) -> Iterator[set[int]]:
    """The nodes that no node of the network follows, constants left out, in groups that no tensor connects."""
    left = set[int]()
    for node in reversed(facts.nodes):
        if node.op_type == "Constant" or not is_standard(node) or _is_of_network(facts, node):
            continue
        if all(reader.index in left for name in node.outputs for reader in facts.consumers_of(name)):
            left.add(node.index)
    joined: dict[int, set[int]] = {index: set() for index in left}
    for index in left:
        for maker in filter(None, map(facts.producer_of, facts.nodes[index].inputs)):
            if maker.index in left:
                joined[index].add(maker.index)
                joined[maker.index].add(index)
    while left:
        group = set(reached([min(left)], joined.__getitem__))
        left -= group
        yield group


def _is_of_network(facts: GraphFacts, node: NodeFact) -> bool:
    """True for the network's operators, and for a bias or clamp that fuses with one; False for the mean over bins."""
    if node.op_type in NETWORK_OPS:
        return not _is_expectation(facts, node)
    layer = facts.producer_of(node.inputs[0]) if has(node, Trait.CLAMPS, Trait.RECTIFIES) else node
    if layer is None or layer.op_type in NETWORK_OPS:
        return layer is not None
    adds_stored = layer.op_type == "Add" and any(map(facts.is_stored, layer.inputs))
    return adds_stored and any(facts.producer_of(name, "MatMul") for name in layer.inputs)


def _is_expectation(facts: GraphFacts, node: NodeFact) -> bool:
    """True for the product of a Softmax's result with one short stored row of numbers."""
    if not has(node, Trait.LINEAR) or len(node.inputs) < 2 or not facts.is_stored(node.inputs[1]):
        return False
    sizes = facts.static_shape(node.inputs[1]) or ()
    if max(sizes, default=0) != math.prod(sizes) or math.prod(sizes) > _MOST_BINS:
        return False
    return facts.maker_behind(node.inputs[0], _MOVES, "Softmax") is not None


def _hurt(facts: GraphFacts, node: NodeFact, known: Callable[[str], Interval | None]) -> Hurt | None:
    """The harm that integers do at one node; None where they do none."""
    if not facts.tensors[node.outputs[0]].is_float:
        return None
    parts = [_part(facts, name, known) for name in node.inputs if name and facts.tensors[name].is_float]
    harm: Harm | None = None
    if node.op_type == "Concat":
        # Judged by the ranges where all are known; else unlike, since some operators bound theirs and others do not.
        sizes = [part.magnitude for part in parts if math.isfinite(part.magnitude)]
        unlike = sizes and (len(sizes) < len(parts) or max(sizes) > UNLIKE * min(sizes))
        harm = Harm.UNLIKE if unlike else None
    elif node.op_type == "Exp":
        harm = Harm.EXPONENTIAL
    elif node.op_type == "TopK":
        harm = Harm.CHOICE
    elif _is_expectation(facts, node):
        harm = Harm.EXPECTATION
    elif has(node, Trait.COMBINES):
        stored = [_part(facts, name, known) for name in node.inputs if facts.is_stored(name)]
        harm = Harm.COORDINATES if any(math.inf > part.magnitude >= _COORDINATE for part in stored) else None
    return None if harm is None else Hurt(node=node.label, harm=harm, parts=tuple(parts))


def _part(facts: GraphFacts, name: str, known: Callable[[str], Interval | None]) -> Operand:
    """A tensor with its known range, else with that of a bounded operator seen through ops that only move values."""
    seen = name
    low, high = known(seen) or _UNKNOWN
    while not (math.isfinite(low) and math.isfinite(high)):
        if seen in facts.scalars:
            low = high = facts.scalars[seen]
            break
        maker = facts.producer_of(seen)
        if maker is None or not is_standard(maker):
            break
        if maker.op_type in RANGES:
            low, high = RANGES[maker.op_type]
            break
        if not has(maker, Trait.REARRANGES, Trait.SELECTS):
            break
        seen = maker.inputs[0]
        low, high = known(seen) or _UNKNOWN
    return Operand(tensor=name, low=low, high=high)


_TRANSPARENT = frozenset({*QUANTIZERS, "Identity", "Cast", "Relu", "Dropout"})
_HEAVY = ops(Trait.LINEAR, Trait.INTEGER_LINEAR, Trait.RECURRENT)


class Mixing(Record):
    """A Concat whose operands end up under one scale.

    ``parts`` are its operands with the slices they fill along ``axis``. ``starts`` and ``ends`` name a closed subgraph
    around it that can stay in float; ``starts`` is empty where one of its nodes has no name.
    """

    concat: NodeFact
    axis: int
    parts: tuple[tuple[str, int, int], ...]
    starts: Names
    ends: Names

    def part_of(self, start: int, stop: int) -> Names:
        """The operands that fill at least one of the slices ``start`` to ``stop`` (excluded)."""
        return tuple(name for name, first, end in self.parts if first < stop and start < end)

    @property
    def exclusion(self) -> str:
        """The subgraph as ``START,START:END``, the form that ``--exclude-subgraph`` takes; "" without names."""
        return f"{','.join(self.starts)}:{','.join(self.ends)}" if self.starts else ""


def output_of_shape(facts: GraphFacts, name: str, shape: Shape) -> str | None:
    """The graph output called ``name``, else the only one, else the only one of that shape, else None."""
    if name in facts.outputs:
        return name
    if len(facts.outputs) == 1:
        return facts.outputs[0]
    fitting = [output for output in facts.outputs if facts.tensors[output].shape == shape]
    return fitting[0] if len(fitting) == 1 else None


def find_mixing(facts: GraphFacts, output: str, axis: int) -> Mixing | None:
    """The Concat along ``axis`` that makes ``output``, seen through quantizers and casts; None when there is none."""
    node = facts.maker_behind(output, _TRANSPARENT, "Concat")
    if node is None:
        return None
    along = node.axis()
    along += facts.tensor(node.outputs[0]).rank or 0 if along < 0 else 0
    if along != axis:
        return None
    parts = concat_parts(facts, node)
    if not parts:
        return None
    starts, ends = exclusion_around(facts, node)
    return Mixing(concat=node, axis=along, parts=parts, starts=starts, ends=ends)


def concat_parts(facts: GraphFacts, concat: NodeFact) -> tuple[tuple[str, int, int], ...]:
    """The operands of a Concat, each with the slices that it fills along its axis; () where a length is not known."""
    axis, position = concat.axis(), 0
    parts = list[tuple[str, int, int]]()
    for name in concat.inputs:
        shape = facts.tensor(name).shape or ()
        length = shape[axis] if -len(shape) <= axis < len(shape) else None
        if not isinstance(length, int):
            return ()
        parts.append((name, position, position + length))
        position += length
    return tuple(parts)


def exclusion_around(facts: GraphFacts, end: NodeFact) -> tuple[Names, Names]:
    """A closed subgraph that ends in ``end`` and reaches back to the nearest heavy operators, as (starts, ends).

    Closed: every way from a graph input into ``end`` passes one of the starts. Quantizers are looked through, so that
    names of a quantized graph are those of the float one. Empty where a start has no name.
    """
    region, queue = {end.index}, [end]
    starts = dict[int, NodeFact]()
    while queue:
        node = queue.pop()
        for tensor in node.inputs:
            before = facts.maker_behind(tensor, QUANTIZERS)
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
