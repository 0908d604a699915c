"""Partitions a graph at precision borders into segments that are wholly float or wholly quantized, and cuts it there.

Segments follow each other; their kinds alternate. Each node gets the earliest level whose parity is its kind, which
makes as few segments as the graph's order allows. Then quantized groups are turned float while that makes the whole
cheaper: two borders less often outweigh a few ops in float. A float op is never turned quantized, for lack of an
encoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from onnx import ModelProto, NodeProto, helper

from deploykit.encodings.cut import infer_types, part_of
from deploykit.encodings.float_sets import float_nodes
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.findings.records import Names, Record, replace
from deploykit.model.facts import GraphFacts, static_tensors, with_static
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import reached

__all__ = ["Partition", "Segment", "partition", "split_model", "whole_as_cut"]


class SegmentCosts(Record):
    """The costs that are weighed, in bytes moved: one more segment, a byte that crosses, an op that becomes float.

    An op that becomes float costs ``changed_op`` and the bytes of its outputs and its weights. Editorial values.
    """

    segment: float = 50_000.0
    crossing_byte: float = 1.0
    changed_op: float = 10_000.0
    changed_byte: float = 1.0


class SegmentRange(Record):
    """One segment: node indices in graph order, its kind, and the tensors it takes in and hands on."""

    nodes: tuple[int, ...]
    is_float: bool
    inputs: Names
    outputs: Names


class Partition(Record):
    """The segments in the order in which they run.

    ``changed`` are indices of nodes that run in float though they could be quantized.
    """

    segments: tuple[SegmentRange, ...]
    changed: tuple[int, ...]


def partition(
    facts: GraphFacts,
    floats: Collection[str],
    *,
    absorbed: Collection[str] = frozenset(),
    max_segments: int | None = None,
    costs: SegmentCosts | None = None,
) -> Partition:
    """Cut the graph into segments for a set of float tensors, at most ``max_segments`` where given.

    ``absorbed`` are tensors inside fused pairs, which are never cut. With a maximum, cheap groups are turned float
    until it holds; one float segment always remains possible.
    """
    facts = with_static(facts)
    # Nodes that must be float: those that touch a float activation, and their partners in fused pairs.
    forced = set(float_nodes(facts, floats))
    for name in [*absorbed, *reversed(list(absorbed))]:
        fact = facts.tensors[name]
        pair = {*fact.consumers, *(() if fact.producer is None else (fact.producer,))}
        if pair & forced:
            forced |= pair
    draft = _Levelling(facts, costs or SegmentCosts(), frozenset(forced))
    best = _improve(draft, draft.levels(frozenset()), lambda way: way.cost)
    while max_segments is not None and best.count > max(max_segments, 1):
        fewer = _improve(draft, best, lambda way: way.count, enough=max_segments)
        if fewer is best:  # no group saves a segment: take the cheapest; in the end all is one float segment
            options = [draft.levels(best.changed | group) for group in draft.groups(best)]
            fewer = min(options, key=lambda option: (option.cost, sorted(option.changed)))
        best = fewer
    return draft.finish(best)


def _improve(draft: _Levelling, best: _Levels, weight: Callable[[_Levels], float], *, enough: int = 0) -> _Levels:
    """Turn groups float until none lowers the weight or ``enough`` segments remain; the most promising group is first.

    Each group is weighed again before it is taken.
    """
    while best.count > enough:
        options = ((draft.levels(best.changed | group), sorted(group)) for group in draft.groups(best))
        promising = sorted((o for o in options if weight(o[0]) < weight(best)), key=lambda o: (o[0].cost, o[1]))
        start = best
        for _, group in promising:
            again = draft.levels(best.changed | frozenset(group))
            if weight(again) < weight(best) and best.count > enough:
                best = again
        if best is start:
            break
    return best


class _Levels(Record):
    """One way to cut: a level per node.

    Even levels are float where ``first_float`` says so, odd ones are of the other kind.
    """

    changed: frozenset[int]
    level: Mapping[int, int]
    first_float: bool
    count: int
    cost: float

    def is_float(self, level: int) -> bool:
        return self.first_float == (level % 2 == 0)


class _Levelling:
    """The graph with its forced float nodes; weighs sets of nodes that are turned float in addition."""

    def __init__(self, facts: GraphFacts, costs: SegmentCosts, forced: frozenset[int]) -> None:
        self.facts, self.costs, self.forced = facts, costs, forced
        # What each node reads: its own inputs, then what the bodies of its loops and branches take from outside.
        self.reads = {node.index: dict.fromkeys(name for name in node.inputs if name) for node in facts.nodes}
        for name, fact in facts.tensors.items():
            for index in fact.consumers:
                self.reads[index].setdefault(name)
        before = {index: tuple(self._makers(names)) for index, names in self.reads.items()}
        is_static = static_tensors(facts).issuperset
        needed = reached(self._makers(facts.outputs), before.__getitem__)
        live = {index for index in needed if not is_static(filter(None, facts.nodes[index].outputs))}
        self.working = sorted(live)
        self.before = {index: tuple(maker for maker in before[index] if maker in live) for index in self.working}
        made = ((index, name) for index in self.working for name in facts.nodes[index].outputs)
        self.data = {index for index, name in made if facts.is_data(name) and not facts.is_stored(name)}
        # (maker, readers, bytes) of every computed tensor that some node reads.
        self.edges = [
            (fact.producer, readers, self._bytes(name))
            for name, fact in facts.tensors.items()
            if fact.producer in live and (readers := [index for index in fact.consumers if index in live])
        ]

    def _makers(self, names: Iterable[str]) -> Iterator[int]:
        facts = filter(None, map(self.facts.tensors.get, names))
        return (fact.producer for fact in facts if fact.producer is not None)

    def _bytes(self, name: str) -> int:
        """The bytes of a tensor at two per element: values have 16 bits on either side.

        Unknown dimensions count as 1.
        """
        shape = self.facts.tensors[name].shape or ()
        return 2 * math.prod(dim if isinstance(dim, int) else 1 for dim in shape)

    def levels(self, changed: frozenset[int]) -> _Levels:
        """The cheaper of the two ways to cut: with a float or with a quantized level first."""
        return min((self._from(changed, first) for first in (False, True)), key=lambda way: way.cost)

    def _from(self, changed: frozenset[int], first_float: bool) -> _Levels:
        level = dict[int, int]()
        for index in self.working:
            lowest = max([level[maker] for maker in self.before[index]], default=0)
            kind = self._kind(index, changed)
            fits = kind is None or kind == (first_float == (lowest % 2 == 0))
            level[index] = lowest if fits else lowest + 1
        used = len(set(level.values()))
        crossing = sum(len({level[r] for r in readers} - {level[made]}) * size for made, readers, size in self.edges)
        cost = used * self.costs.segment + crossing * self.costs.crossing_byte
        for index in changed:
            node = self.facts.nodes[index]
            stored = filter(self.facts.is_stored, node.inputs)
            moved = sum(self._bytes(name) for name in (*stored, *node.outputs) if name)
            cost += self.costs.changed_op + self.costs.changed_byte * moved
        return _Levels(changed=changed, level=level, first_float=first_float, count=used, cost=cost)

    def _kind(self, index: int, changed: frozenset[int]) -> bool | None:
        """True for float, False for quantized, None for nodes without float data (shapes, indices)."""
        if index in self.forced or index in changed:
            return True
        return False if index in self.data else None

    def groups(self, way: _Levels) -> list[frozenset[int]]:
        """Connected groups of quantized nodes on one level, and all quantized nodes of each level together."""
        found = dict[frozenset[int], None]()
        for level in sorted(set(way.level.values())):
            if way.is_float(level):
                continue
            at_level = (index for index, at in way.level.items() if at == level)
            members = {index for index in at_level if self._kind(index, way.changed) is False}
            neighbours: dict[int, set[int]] = {index: set() for index in members}
            for index in members:
                for other in members.intersection(self.before[index]):
                    neighbours[index].add(other)
                    neighbours[other].add(index)
            left = set(members)
            while left:
                part = frozenset(reached([min(left)], neighbours.__getitem__))
                left -= part
                found[part] = None
            if members:
                found[frozenset(members)] = None
        return list(found)

    def finish(self, way: _Levels) -> Partition:
        """The levels as segments with their inputs and outputs."""
        segments, tensors = [], self.facts.tensors
        for level in sorted(set(way.level.values())):
            nodes = sorted(index for index, at in way.level.items() if at == level)
            made = {name for index in nodes for name in self.facts.nodes[index].outputs if name}
            fed = (name for index in nodes for name in self.reads[index] if name not in made and name in tensors)
            leaving = [
                name
                for name in made
                if tensors[name].is_output or any(way.level.get(i, level) != level for i in tensors[name].consumers)
            ]
            segments.append(
                SegmentRange(
                    nodes=tuple(nodes),
                    is_float=way.is_float(level),
                    inputs=tuple(dict.fromkeys(name for name in fed if not tensors[name].is_weight)),
                    outputs=tuple(sorted(leaving)),
                )
            )
        return Partition(segments=tuple(segments), changed=tuple(sorted(way.changed)))


class Segment(Record):
    """One part of the whole: an ordinary model. ``encodings`` is None for a float segment.

    ``name`` is fit for files and graphs: a number and the kind. ``changed`` are labels of ops that run in float here
    though the encodings would allow them to be quantized.
    """

    name: str
    is_float: bool
    model: ModelProto
    encodings: EncodingSet | None
    inputs: Names
    outputs: Names
    nodes: Names
    changed: Names


def split_model(model: ModelProto, encodings: EncodingSet, cut: Partition) -> tuple[Segment, ...]:
    """The segments of a partition of this model's facts, in the order in which they run."""
    graph = view_of(model)
    types = infer_types(graph)
    segments = []
    for number, span in enumerate(cut.segments):
        name = f"segment_{number}_{'float' if span.is_float else 'quantized'}"
        whole = [item.name for item in model.graph.output if item.name in span.outputs]
        outputs = dict.fromkeys((*whole, *span.outputs))  # outputs of the whole model first, in its order
        part = part_of(graph, span.nodes, list(outputs), name=name, types=types)
        segments.append(
            Segment(
                name=name,
                is_float=span.is_float,
                model=part,
                encodings=None if span.is_float else encodings.only(GraphCopy(part, copy=False).tensor_names),
                inputs=tuple(item.name for item in part.graph.input),
                outputs=tuple(item.name for item in part.graph.output),
                nodes=tuple(graph.nodes[index].name for index in span.nodes),
                changed=tuple(graph.nodes[index].name for index in span.nodes if index in set(cut.changed)),
            )
        )
    return tuple(segments)


def whole_as_cut(
    model: ModelProto, encodings: EncodingSet, cut: Partition, segments: tuple[Segment, ...]
) -> tuple[ModelProto, EncodingSet]:
    """The uncut model and its encodings, with quantizers where the chain of segments has them: the chain must equal it.

    Entries of tensors that only float segments have fall away. A tensor that enters a quantized segment from an input
    or from a float segment is quantized for that segment's ops only, so it gets a copy that they read.
    """
    entries = dict[str, Encoding]()
    for segment in segments:
        entries.update(segment.encodings.entries if segment.encodings is not None else {})
    graph = GraphCopy(model)
    quantized = sorted(index for span in cut.segments if not span.is_float for index in span.nodes)
    made = {name for index in quantized for name in graph.nodes[index].output} | graph.static()
    entering = [name for name in entries if name not in made and name in graph.tensor_names]
    renamed = {name: graph.fresh(f"{name}::entering") for name in entering}
    copies = dict[int, list[NodeProto]]()
    copied = set[str]()
    for index in quantized:
        node = graph.nodes[index]
        for place, name in enumerate(node.input):
            if name in renamed:
                if name not in copied:
                    copied.add(name)
                    copies.setdefault(index, []).append(helper.make_node("Identity", [name], [renamed[name]]))
                node.input[place] = renamed[name]
    graph.replace_nodes((), copies)
    moved = {renamed.get(n, n): replace(e, name=renamed.get(n, n)) for n, e in entries.items()}
    return graph.model, replace(encodings, entries=moved, float_tensors=frozenset())
