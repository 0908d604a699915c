"""Takes If, Loop and sequences out of a graph where fixed shapes settle what runs and what each sequence holds.

Exports of scripted code ask for ranks and sizes at run time; once the inputs have fixed shapes, the answers are fixed.
Conditions and counts that depend on the values of inputs stay. Exports of ``torch.split``, ``unbind`` and ``chunk``
split into a sequence and pick places of it; a Split and its outputs say the same. Sequences that come from outside or
leave the graph stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from deploykit.encodings.values import EncodingSet
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, bodies, label, names_read, operand
from deploykit.model.operators import is_standard
from deploykit.rewrites.contract import (
    Match,
    MatchResult,
    ModelLook,
    NearMiss,
    NodeSteps,
    NoMatchError,
    Rewritten,
    Site,
    Transform,
    rewrite,
    rewritten,
)
from deploykit.rewrites.fold import fold

__all__ = ()


# A loop that becomes more nodes than this would make a graph that compilers take minutes for.
_MOST_NODES = 4096


def _settled_branches(graph: ModelLook) -> MatchResult:
    """The If and Loop nodes of the main graph whose conditions and counts are settled."""
    if not any(node.op_type in ("If", "Loop") for node in graph.nodes):
        return MatchResult(reason="no node runs another graph")
    ready = _ready(graph)[0]
    if not ready:
        return MatchResult(reason="the conditions depend on the values of inputs")
    return MatchResult((Site(tuple(map(label, ready)), tensors=(), why="fixed shapes settle the conditions"),))


def _inline(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Replace settled nodes by the nodes of their bodies, again while these hold further ones."""
    graph = GraphCopy(model)
    count = 0
    # A protobuf file nests about thirty bodies at most, and each turn goes through all nodes.
    for _ in range(max(4, min(32, (1 << 17) // len(graph.nodes)))):
        ready, known, rounds = _ready(graph)
        if not ready:
            break
        count += len(ready)
        steps = dict[int, list[NodeProto]]()
        for node in ready:
            if node.op_type == "If":
                body = attribute(node, "then_branch" if known[node.input[0]] else "else_branch")
                made = _inlined(graph, body, node.output, {})
            else:
                made = _unrolled(graph, node, rounds[id(node)], [])
            steps[graph.index_of(node)] = list(made)
        graph.replace_nodes(ready, steps)
    note = f"{count} branches and loops became straight lines ({', '.join(matched.sites[0].nodes[:2])} …)"
    return rewritten(graph, encodings, note)


def _ready(graph: GraphCopy | ModelLook) -> tuple[list[NodeProto], dict[str, float], dict[int, int]]:
    """The settled nodes, the conditions and counts that follow from fixed shapes, and the rounds of each Loop by id."""
    found = [node for node in graph.nodes if node.op_type in ("If", "Loop") and is_standard(node)]
    # The tensors that decide what runs: the condition of an If, the count and the condition of a Loop.
    asked = [name for node in found for name in node.input[: 1 if node.op_type == "If" else 2] if name]
    known = _folded(GraphCopy(graph.model), asked)
    # The condition of each round may be stored, or follow from a counter that is carried along, as Keras counts steps:
    # the rounds of all loops are laid out once, as many as there is room for.
    trial, ends, laid = GraphCopy(graph.model), dict[int, list[str]](), list[NodeProto]()
    room = 4 * _MOST_NODES - len(graph.nodes)
    for node in found:
        count, condition = known.get(node.input[0], 0), operand(node, 1)
        if node.op_type == "If" or (condition and known.get(condition) != 1):
            continue
        size = count * len(next(bodies(node)).node)
        if 0 < size <= min(room, _MOST_NODES):
            room -= int(size)
            laid += _unrolled(trial, node, int(count), ends.setdefault(id(node), []))
    trial.set_nodes([*trial.nodes, *laid])
    values = _folded(trial, [*chain(*ends.values())]) if laid else {}
    rounds = dict[int, int]()
    for key, names in ends.items():
        stops = ((number, name) for number, name in enumerate(names, 1) if values.get(name) != 1)
        number, name = next(stops, (len(names), ""))
        rounds[key] = number if not name or name in values else 0
    return [n for n in found if (n.input[0] in known if n.op_type == "If" else rounds.get(id(n)))], known, rounds


def _folded(graph: GraphCopy, asked: Sequence[str]) -> dict[str, float]:
    """Those of some numbers that follow from stored values and shapes; the graph holds nothing else then.

    A tensor that a branch reads from outside is folded so too.
    """
    # Without what runs a body: what a body reads from outside would have to stay.
    nodes = [node for node in graph.nodes if node.op_type not in ("If", "Loop")]
    del graph.model.graph.output[:]
    for name in dict.fromkeys(asked):
        nodes.append(helper.make_node("Identity", [name], [graph.fresh(f"{name}/asked")]))
        graph.model.graph.output.append(ValueInfoProto(name=nodes[-1].output[0]))
    graph.set_nodes(nodes)
    graph.prune()
    fold(graph)
    return {name: value for name in asked if (value := graph.scalar(name)) is not None}


def _unrolled(graph: GraphCopy, node: NodeProto, rounds: int, ends: list[str]) -> Iterator[NodeProto]:
    """The nodes of so many rounds of a Loop; ``ends`` gets the names of their conditions."""
    body = next(bodies(node))
    carried = len(node.input) - 2
    values = list(node.input[2:])
    stacked = [list[str]() for _ in body.output[1 + carried :]]
    for number in range(rounds):
        last = number == rounds - 1
        begin = graph.store(f"{label(node)}/round", number)
        fed = [begin, graph.store(f"{label(node)}/goes_on", np.asarray(True)), *values]
        renamed = dict(zip((item.name for item in body.input), fed, strict=False))  # stored ones come last
        values = [(last and name) or graph.fresh(f"{label(node)}/carried") for name in node.output[:carried]]
        given = [graph.fresh(f"{label(node)}/given") for _ in stacked]
        ends.append(graph.fresh(f"{label(node)}/end"))
        yield from _inlined(graph, body, [ends[-1], *values, *given], renamed)
        axes = graph.store(f"{label(node)}/axes", [0])
        for pieces, name in zip(stacked, given, strict=True):
            pieces.append(graph.fresh(f"{name}/row"))
            yield helper.make_node("Unsqueeze", [name, axes], [pieces[-1]], name=pieces[-1])
    for output, pieces in zip(node.output[carried:], stacked, strict=True):
        yield helper.make_node("Concat", pieces, [output], name=output, axis=0)


def _inlined(
    graph: GraphCopy, body: GraphProto, outputs: Sequence[str], renamed: dict[str, str]
) -> Iterator[NodeProto]:
    """The nodes of a body, renamed so that they make ``outputs``; "" stands for an output that nothing reads.

    A tensor that ``renamed`` does not rename gets a name that is free in the graph around it.
    """
    made = dict.fromkeys(name for node in body.node for name in node.output if name)
    copies = []
    for item, wanted in zip(body.output, outputs, strict=True):
        if item.name in made and item.name not in renamed:
            renamed[item.name] = wanted or graph.fresh(item.name)
        elif wanted:
            copies.append((item.name, wanted))
    for tensor in body.initializer:
        stored = graph.model.graph.initializer.add()
        stored.CopyFrom(tensor)
        stored.name = renamed.setdefault(tensor.name, graph.fresh(tensor.name))
    for name in made:
        renamed.setdefault(name, graph.fresh(name))
    for node in body.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        if copy.name:
            copy.name = graph.fresh(copy.name)
        _rename(copy, renamed)
        yield copy
    for name, wanted in copies:
        yield helper.make_node("Identity", [renamed.get(name, name)], [wanted], name=wanted)


def _rename(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Give tensors their new names in a node and in the bodies that it runs; ONNX lets no body reuse an outer name."""
    for names in (node.input, node.output):
        for at, name in enumerate(names):
            names[at] = renamed.get(name, name)
    for found in node.attribute:
        if found.type == AttributeProto.GRAPH:
            for inner in found.g.node:
                _rename(inner, renamed)
            for item in found.g.output:
                item.name = renamed.get(item.name, item.name)


@rewrite(
    "If",
    none="no If gives tensors of one fixed size from both of its branches",
    note="{} choices are made after both branches are computed",
)
def both_branches(look: ModelLook, node: NodeProto) -> Match:
    """Computes both branches of an If and takes the values of the one that is meant.

    What a branch does is seen in its outputs only, so that computing it for nothing changes no value.
    """
    if any(body.input for body in bodies(node)):
        raise NoMatchError("its branches do not give what it does")
    for name in filter(None, node.output):
        look.sizes(name)  # raises NoMatchError where the branches differ in a size: onnx then says nothing

    def write(to: NodeSteps) -> None:
        sides = list[list[str]]()
        for branch in ("then_branch", "else_branch"):
            sides.append([to.graph.fresh(f"{name}_{branch}") if name else "" for name in to.node.output])
            to.nodes += _inlined(to.graph, attribute(to.node, branch), sides[-1], {})
        for name, *both in zip(to.node.output, *sides, strict=True):
            if name:
                to.write("Where", [to.source, *both], name)

    if any(len(look.shape(node.input[0]) or ()) > len(look.sizes(name)) for name in node.output if name):
        raise NoMatchError("its condition has more dimensions than what it gives")
    return Match("its condition depends on the values of inputs", write)


inline_control_flow = Transform(
    "inline-control-flow",
    summary="Takes If and Loop out where fixed shapes settle which branch runs and how often.",
    find=_settled_branches,
    apply=_inline,
    ulps=4.0,  # ONNX Runtime fuses what stands in a straight line
)


# The most parts of one split: beyond, the graph grows more than it is worth.
_MOST_PARTS = 1024


class _Resolved(NodeSteps):
    """The tensors in each sequence, in graph order, and the nodes on tensors that replace nodes on sequences."""

    def __init__(self, model: ModelProto, encodings: EncodingSet | None = None) -> None:
        """Raises NoMatchError at the first sequence that is not settled."""
        super().__init__(GraphCopy(model), encodings)
        self.sequences: dict[str, list[str]] = {}
        self.written: list[tuple[NodeProto, list[NodeProto]]] = []
        for node in self.graph.nodes:
            self.start(node)
            if is_standard(node) and self._takes(node):
                self.written.append((node, self.nodes))
            elif self.sequences.keys() & names_read(node):
                raise NoMatchError(f"{node.op_type} reads a sequence as a whole", node=label(node))
        left = self.graph.outputs.intersection(self.sequences)
        if left:
            raise NoMatchError(f"{min(left)} is a sequence and an output of the model")

    def _takes(self, node: NodeProto) -> bool:
        """Follow one node; False where it neither makes nor reads a sequence in a way that is known."""
        made = node.output[0] if node.output else ""
        match node.op_type:
            case "SequenceConstruct" | "SequenceEmpty":
                self.sequences[made] = list(node.input)
            case "SequenceInsert":
                held = self._held(node)
                place = self._place(node, 2, len(held), len(held))
                self.sequences[made] = [*held[:place], node.input[1], *held[place:]]
            case "SequenceErase":
                held = self._held(node)
                place = self._place(node, 1, len(held), len(held) - 1)
                self.sequences[made] = [*held[:place], *held[place + 1 :]]
            case "SequenceAt":
                held = self._held(node)
                self._copy(held[self._place(node, 1, len(held), 0)], made)
            case "SequenceLength":
                self._copy(self.store(f"{made}_settled", len(self._held(node))), made)
            case "ConcatFromSequence":
                held, axis = self._held(node), int(attribute(node, "axis", 0))
                if attribute(node, "new_axis", 0):
                    held = [self._with_axis("Unsqueeze", name, axis, f"{made}_part") for name in held]
                self.end("Concat", held, axis=axis)
            case "SplitToSequence":
                self.sequences[made] = self._split(node)
            case _:
                return False
        return True

    def _split(self, node: NodeProto) -> list[str]:
        """The tensors of the parts, whose sizes are known; parts of size one lose their axis where the node says so."""
        source, axis = node.input[0], int(attribute(node, "axis", 0))
        shape = self.graph.shape(source)
        whole = None if shape is None else shape[axis]
        if not isinstance(whole, int):
            raise NoMatchError(f"the size of axis {axis} of {source} is not known", node=label(node))
        is_sized = bool(operand(node, 1))
        given = self.graph.array(node.input[1]) if is_sized else np.asarray(1)
        if given is None:
            raise NoMatchError(f"{node.input[1]} is not stored", node=label(node))
        step = int(given) if given.ndim == 0 else 0
        sizes = [min(step, whole - start) for start in range(0, whole, step)] if step else [int(size) for size in given]
        if not 0 < len(sizes) <= _MOST_PARTS:
            raise NoMatchError(f"it has {len(sizes)} parts, at most {_MOST_PARTS} are made", node=label(node))
        parts = [self.graph.fresh(f"{node.output[0]}_part{number}") for number in range(len(sizes))]
        self.share(source, *parts)
        self.listed("Split", source, "split", sizes, parts, axis=axis)
        if is_sized or attribute(node, "keepdims", 1):
            return parts
        return [self._with_axis("Squeeze", part, axis, f"{part}_flat") for part in parts]

    def _held(self, node: NodeProto) -> list[str]:
        if node.input[0] not in self.sequences:
            raise NoMatchError(f"what the sequence {node.input[0]} holds is not settled", node=label(node))
        return self.sequences[node.input[0]]

    def _place(self, node: NodeProto, at: int, size: int, default: int) -> int:
        if not operand(node, at):
            return default
        value = self.graph.array(node.input[at])
        if value is None:
            raise NoMatchError(f"the place {node.input[at]} is not stored", node=label(node))
        place = int(value.reshape(()))
        if not -size <= place <= max(size - 1, default):
            raise NoMatchError(f"the sequence has no place {place}", node=label(node))
        return place + size if place < 0 else place

    def _copy(self, source: str, made: str) -> None:
        self.write("Identity", [source], made, name=f"{made}_taken")
        self.share(source, made)

    def _with_axis(self, op_type: str, source: str, axis: int, name: str) -> str:
        made = self.listed(op_type, source, "axes", [axis], self.graph.fresh(name))
        self.share(source, made)
        return made


def _match(look: ModelLook) -> MatchResult:
    """The nodes on sequences, when every sequence of the graph is settled; else a refusal for the first that is not."""
    if not any("Sequence" in node.op_type for node in look.nodes):
        return MatchResult(reason="nothing works on a sequence of tensors")
    try:
        resolved = _Resolved(look.model)
    except NoMatchError as error:
        return MatchResult(refusals=(NearMiss((error.node,), error.reason),), reason=error.reason)
    nodes = tuple(label(node) for node, _ in resolved.written)
    why = "it is settled which tensor each place holds"
    return MatchResult((Site(nodes, tensors=tuple(resolved.sequences), why=why),))


def _apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Replace the nodes on sequences by nodes on tensors."""
    resolved = _Resolved(model, encodings)
    graph = resolved.graph
    old = [node for node, _ in resolved.written]
    graph.replace_nodes(old, {graph.index_of(node): nodes for node, nodes in resolved.written})
    note = f"{len(matched.sites[0].nodes)} nodes on sequences became nodes on tensors"
    return rewritten(graph, resolved.encodings, note)


resolve_sequences = Transform(
    "resolve-sequences",
    summary="Takes sequences of tensors out where it is settled which tensor each place holds.",
    find=_match,
    apply=_apply,
)
