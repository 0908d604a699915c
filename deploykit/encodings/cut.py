"""Takes models apart along tensors and joins parts again; cuts graphs that share weights into parts alike.

Names stay the same everywhere. No weight is read; sizes and encodings are decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from deploykit.errors import UsageError
from deploykit.findings.records import Names, Record
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import copy_of, empty_like, names_read, reached
from deploykit.model.operators import QUANTIZERS
from deploykit.model.weights import element_type

__all__ = [
    "CutPart",
    "chain_models",
    "crossing_tensors",
    "cut_alike",
    "cut_model",
    "infer_types",
    "large_weights",
    "part_of",
]


def infer_types(graph: GraphCopy) -> dict[str, ValueInfoProto]:
    """Type and shape of every tensor ONNX can infer, by name."""
    declared = {item.name: item for item in (*graph.model.graph.output, *graph.model.graph.input)}
    known = ((name, dtype, shape) for name, (dtype, shape) in graph.types.items() if dtype)
    return declared | {n: helper.make_tensor_value_info(n, element_type(dtype), shape) for n, dtype, shape in known}


def crossing_tensors(graph: GraphCopy, later: Collection[int]) -> Names:
    """Activations made outside the nodes at ``later`` positions and read by them, in order of reading."""
    inside = {name for index in later for name in graph.nodes[index].output} | graph.static()
    found = dict[str, None]()
    for index in sorted(later):
        for name in names_read(graph.nodes[index]):
            if name not in inside and name not in graph.stored and name in graph.makers:
                found[name] = None
    return tuple(found)


def part_of(
    graph: GraphCopy,
    positions: Iterable[int],
    outputs: Sequence[str],
    *,
    name: str,
    types: dict[str, ValueInfoProto] | None = None,
) -> ModelProto:
    """The model of the nodes at some positions: inputs are what they read from outside, outputs as asked.

    Every part gets its own copy of the stored values that it reads, and of the nodes that only compute constants.
    """
    known = infer_types(graph) if types is None else types
    nodes = [graph.nodes[index] for index in sorted(positions)]
    # Every part makes its own constants: first come the nodes that only compute these.
    static = graph.static()
    makers = {id(graph.makers[name]) for name in _behind(graph, nodes) if name in static and name in graph.makers}
    # Asking each node of the graph for its outputs takes most of the time of an audit, which cuts hundreds of parts.
    fixed = [node for node in graph.nodes if id(node) in makers] if makers else []
    nodes = [*fixed, *(node for node in nodes if node.op_type != "Constant" and id(node) not in makers)]
    made = {out for node in nodes for out in node.output}
    read = dict.fromkeys(name for node in nodes for name in names_read(node))
    read.update(dict.fromkeys(n for n in outputs if n not in made))
    part = empty_like(graph.model)
    part.producer_name, part.graph.name = graph.model.producer_name, name
    part.graph.node.extend(nodes)
    part.graph.initializer.extend(t for t in graph.model.graph.initializer if t.name in read)
    stored = {t.name for t in part.graph.initializer}
    outside = [n for n in read if n not in made and n not in stored and (n in graph.makers or n in graph.inputs)]
    part.graph.input.extend(known.get(n, ValueInfoProto(name=n)) for n in outside)
    part.graph.output.extend(known.get(n, ValueInfoProto(name=n)) for n in outputs)
    part.graph.value_info.extend(known[n] for n in sorted(made) if n in known and n not in outputs)
    return part


def _behind(graph: GraphCopy, nodes: Iterable[NodeProto]) -> Iterator[str]:
    """The tensors that nodes read and, for constants that nodes compute, the tensors behind them."""
    static, makers = graph.static(), graph.makers
    read = (name for node in nodes for name in names_read(node))
    return reached(read, lambda name: makers[name].input if name in static and name in makers else ())


def cut_model(model: ModelProto, later: Collection[int]) -> tuple[ModelProto, ModelProto]:
    """(head, tail): the tail has the nodes at ``later`` positions, which must be closed under their readers.

    The head's outputs are what the tail reads and the original outputs it makes itself; the tail makes the others, and
    reads original inputs where it needs them.
    """
    graph = view_of(model)
    types = infer_types(graph)
    made_later = {name for index in later for name in graph.nodes[index].output}
    wanted = [item.name for item in model.graph.output]
    kept = [name for name in wanted if name not in made_later]
    head_outputs = list(dict.fromkeys([*crossing_tensors(graph, later), *kept]))
    earlier = [index for index in range(len(graph.nodes)) if index not in later]
    head = part_of(graph, earlier, head_outputs, name=model.graph.name, types=types)
    tail_outputs = [name for name in wanted if name in made_later]
    tail = part_of(graph, later, tail_outputs, name=f"{model.graph.name}_tail", types=types)
    GraphCopy(head, copy=False).prune()
    return head, tail


def chain_models(first: ModelProto, second: ModelProto) -> ModelProto:
    """One model that runs both, the second reading what the first makes; equal names are the same tensor."""
    chained = copy_of(first)
    made = {out for node in first.graph.node for out in node.output}
    stored = {t.name for t in first.graph.initializer}
    inputs = {item.name for item in first.graph.input}
    chained.graph.node.extend(n for n in second.graph.node if not made & set(n.output))
    chained.graph.initializer.extend(t for t in second.graph.initializer if t.name not in stored)
    chained.graph.input.extend(i for i in second.graph.input if i.name not in made | stored | inputs)
    del chained.graph.output[:]
    chained.graph.output.extend(second.graph.output)
    chained.graph.output.extend(o for o in first.graph.output if o.name not in {i.name for i in second.graph.input})
    return chained


_SMALL = 1024
"""A stored tensor of fewer elements is a constant of the graph (a shape, a scale) and no weight."""

_ENTRANCES = (*QUANTIZERS, "Cast", "Identity")
"""Operators that may stand between an input of the model and its readers; every part that reads it repeats them."""


class CutPart(Record):
    """One part of one graph: an ordinary model with the names of the whole.

    ``weights`` are the large weights it reads.
    """

    model: ModelProto
    weights: Names

    @property
    def inputs(self) -> Names:
        """The names of its inputs."""
        return tuple(item.name for item in self.model.graph.input)

    @property
    def outputs(self) -> Names:
        """The names of its outputs."""
        return tuple(item.name for item in self.model.graph.output)


def large_weights(model: ModelProto) -> dict[str, int]:
    """The number of elements of every stored tensor that is a weight rather than a constant, by name."""
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    return {name: size for name, size in sizes.items() if size >= _SMALL}


def cut_alike(models: Sequence[ModelProto], count: int, sizes: Mapping[str, int]) -> tuple[tuple[CutPart, ...], ...]:
    """``count`` parts of every model, in the order in which they run; ``sizes`` are bytes of weights, by name.

    UsageError where the first model has no place to cut, or another model has none that leaves its weights in the same
    parts.
    """
    graphs = [GraphCopy(model) for model in models]
    for graph in graphs:
        graph.prune()  # a part cannot begin at a node that leads to no output
    walks = [_Walk(graph, sizes) for graph in graphs]
    first = walks[0]
    places = first.even_places(count)
    parts = []
    for walk in walks:
        shared = first.first_read.keys() & walk.first_read.keys()
        before = [{name for name in shared if first.first_read[name] < place} for place in places]
        found = places if walk is first else [walk.place_after(names, shared) for names in before]
        starts = _pair_up(walk, found)
        walk = _Walk(walk.graph, sizes)
        bounds = [0, *(walk.made[name] for name in starts), len(walk.own)]
        types = infer_types(walk.graph)
        spans = enumerate(pairwise(bounds), 1)
        parts.append(tuple(_part(walk, begin, end, number, types) for number, (begin, end) in spans))
    return tuple(parts)


class _Walk:
    """A graph's nodes in the order in which they run, without those that every part repeats.

    A place is the number of such nodes that run before it.
    """

    def __init__(self, graph: GraphCopy, sizes: Mapping[str, int]) -> None:
        self.graph, self.sizes = graph, sizes
        static = graph.static()
        # The model's inputs and what is made of them alone on the way in.
        self.entering = set(graph.inputs)
        for node in graph.nodes:
            read, *rest = node.input or [""]
            if node.op_type in _ENTRANCES and read in self.entering and {*rest} <= static | {""}:
                self.entering.update(node.output)
        repeated = static | self.entering
        self.own = [index for index, node in enumerate(graph.nodes) if not repeated.issuperset(node.output)]
        nodes = [graph.nodes[index] for index in self.own]
        # The weights behind the inputs of each node.
        self.weights = [tuple(name for name in _behind(graph, [node]) if name in sizes) for node in nodes]
        self.first_read: dict[str, int] = {}
        for at, names in enumerate(self.weights):
            for name in names:
                self.first_read.setdefault(name, at)
        self.made = {name: at for at, node in enumerate(nodes) for name in node.output if name}
        self.last_read = {name: at for at, node in enumerate(nodes) for name in names_read(node)}

    def _open_places(self) -> list[tuple[int, int]]:
        """(number of tensors that cross, place) for every place where the graph may be cut."""
        steps = [0] * (len(self.own) + 1)
        shut = set[int]()
        for name, at in self.made.items():
            last = self.last_read.get(name, -1)
            if last <= at:
                continue
            steps[at + 1] += 1
            steps[last + 1] -= 1
            # No cut lies between an operator and its QuantizeLinear, nor between the QuantizeLinear and its
            # DequantizeLinear.
            made_by = self.graph.makers[name].op_type
            quantized = any(node.op_type == "QuantizeLinear" for node in self.graph.readers(name))
            if made_by == "QuantizeLinear" or (quantized and made_by != "DequantizeLinear"):
                shut.update(range(at + 1, last + 1))
        crossing = accumulate(steps)
        return [
            (count, place) for place, count in enumerate(crossing) if 0 < place < len(self.own) and place not in shut
        ]

    def even_places(self, count: int) -> list[int]:
        """The places between ``count`` parts of like size; UsageError where there are none."""
        before = [0]
        for at, names in enumerate(self.weights):
            before.append(before[-1] + sum(self.sizes[name] for name in names if self.first_read[name] == at))
        share, places = before[-1] / count, [0]
        for number in range(1, count):
            later = [
                (crossing, abs(before[place] - share * number), place)
                for crossing, place in self._open_places()
                if before[places[-1]] < before[place] < before[-1]  # every part has weights of its own
            ]
            if not later:
                raise UsageError(
                    f"the graph {self.graph.model.graph.name!r} cannot be cut into {count} parts",
                    why="so many weights are not read one after the other",
                    next="ask for fewer parts",
                )
            near = [row for row in later if row[1] <= share / 2]  # none where one weight is larger than a part
            places.append(min(near)[2] if near else min(later, key=lambda row: row[1:])[2])
        return places[1:]

    def place_after(self, weights: set[str], shared: Iterable[str]) -> int:
        """The place with exactly these of the shared weights before it where the fewest tensors cross.

        UsageError where there is no such place.
        """
        first = max((self.first_read[name] for name in weights), default=-1)
        last = min((self.first_read[name] for name in shared if name not in weights), default=len(self.own))
        near = [(crossing, place) for crossing, place in self._open_places() if first < place <= last]
        if not near:
            raise UsageError(
                f"the graph {self.graph.model.graph.name!r} cannot be cut where the first one is",
                why="it reads the weights that they share in another order",
                next="package the graphs one by one",
            )
        return min(near)[1]


def _pair_up(walk: _Walk, places: Sequence[int]) -> list[str]:
    """Give every reader behind a place a Q/DQ pair of its own.

    Returns the first tensor that is made behind each place.
    """
    graph, starts = walk.graph, []
    new = dict[int, list[NodeProto]]()
    for place in reversed(places):
        start = graph.nodes[walk.own[place]]
        behind = [graph.nodes[index] for index in walk.own[place:]]
        behind += [node for nodes in new.values() for node in nodes]
        crossing = [name for name, at in walk.made.items() if at < place <= walk.last_read.get(name, -1)]
        makers = (graph.makers[name] for name in crossing)
        pairs = [made for node in makers if node.op_type == "DequantizeLinear" for made in _pair(graph, node, behind)]
        new[walk.own[place]] = pairs
        starts.append((pairs[0] if pairs else start).output[0])
    graph.replace_nodes((), new)
    return starts[::-1]


def _pair(graph: GraphCopy, maker: NodeProto, readers: Iterable[NodeProto]) -> list[NodeProto]:
    """A second copy of the Q/DQ pair that makes a tensor, for some of its readers; [] where none of them reads it."""
    name, quantizer = maker.output[0], graph.makers[maker.input[0]]
    whole, again = graph.fresh(f"{name}::q"), graph.fresh(f"{name}::dq")
    rewired = False
    for node in readers:
        for at, read in enumerate(node.input):
            if read == name:
                node.input[at], rewired = again, True
    if not rewired:  # only a body reads it, and goes on doing so
        return []
    first = helper.make_node("QuantizeLinear", [name, *quantizer.input[1:]], [whole], name=graph.fresh(f"{whole}/Q"))
    second = helper.make_node("DequantizeLinear", [whole, *maker.input[1:]], [again], name=graph.fresh(f"{again}/DQ"))
    for made, like in ((first, quantizer), (second, maker)):
        made.attribute.extend(like.attribute)
        made.domain = like.domain
    return [first, second]


def _part(walk: _Walk, first: int, last: int, number: int, types: dict[str, ValueInfoProto]) -> CutPart:
    """The part between two places, with the nodes that stand between the model's inputs and the part's own nodes."""
    graph = walk.graph
    positions = set(walk.own[first:last])
    made = {name: None for index in walk.own[first:last] for name in graph.nodes[index].output if name}
    asked = [item.name for item in graph.model.graph.output]
    kept = [name for name in asked if name in made or (first == 0 and name not in walk.made)]
    later = [name for name in made if walk.last_read.get(name, -1) >= last and name not in kept]
    where = {name: index for index, node in enumerate(graph.nodes) for name in node.output}
    todo = [*kept, *(name for index in positions for name in names_read(graph.nodes[index]))]
    while todo:
        name = todo.pop()
        if name in walk.entering | {*kept} and name in where and where[name] not in positions:
            positions.add(where[name])
            todo += graph.nodes[where[name]].input
    model = part_of(graph, positions, [*kept, *later], name=f"{graph.model.graph.name}_{number}", types=types)
    weights = dict.fromkeys(name for names in walk.weights[first:last] for name in names)
    return CutPart(model=model, weights=tuple(weights))
