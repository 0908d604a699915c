"""Takes sequences of tensors out of a graph where it is settled which tensor each place holds.

Exports of ``torch.split``, ``unbind`` and ``chunk`` split into a sequence and pick places of it; Split and the tensors
themselves say the same. Sequences that come from outside or leave the graph stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, captured_names, label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_SIZES_ARE_AN_INPUT = 13
"""From this opset on Split takes sizes, and Squeeze and Unsqueeze take axes, as an input."""

_MOST_PARTS = 1024


def match(model: ModelProto) -> MatchResult:
    """The readers of sequences, when every sequence of the graph is settled; else the first one that is not."""
    graph = view_of(model)
    if not any("Sequence" in node.op_type for node in graph.nodes):
        return MatchResult(reason="nothing works on a sequence of tensors")
    resolved = _Resolved(graph)
    try:
        resolved.walk()
    except NoMatchError as error:
        return MatchResult(refusals=(Refusal(nodes=(error.node,), reason=error.reason),), reason=error.reason)
    labels = tuple(label(node) for node in resolved.gone)
    why = "it is settled which tensor each place holds"
    return MatchResult(sites=(Site(nodes=labels, tensors=tuple(resolved.sequences), why=why),))


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Let the tensors take the places of the sequences."""
    graph = GraphCopy(model)
    resolved = _Resolved(graph)
    resolved.walk()
    for source, made in resolved.moved:
        encodings = share_entry(encodings, source, [made])
    steps = {graph.index_of(node): nodes for node, nodes in resolved.gone_for}
    graph.replace_nodes(resolved.gone, steps)
    note = f"{len(matched.sites[0].nodes)} nodes on sequences became nodes on tensors"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


class _Resolved:
    """What each sequence holds, in graph order, and the nodes on tensors that take the place of nodes on sequences."""

    def __init__(self, graph: GraphCopy) -> None:
        self.sequences: dict[str, list[str]] = {}
        self.gone_for: list[tuple[NodeProto, list[NodeProto]]] = []
        self.moved: list[tuple[str, str]] = []
        self._graph = graph
        self._shapes = {name: known[1] for name, known in infer(graph.model).types.items()}
        self._steps: list[NodeProto] = []

    @property
    def gone(self) -> list[NodeProto]:
        """The nodes on sequences."""
        return [node for node, _ in self.gone_for]

    def walk(self) -> None:
        """Every node once. Raises NoMatchError at the first sequence that is not settled."""
        for node in self._graph.nodes:
            take = _TAKEN.get(node.op_type) if is_standard(node) else None
            if take is not None:
                self._steps = []
                take(self, node)
                self.gone_for.append((node, self._steps))
            elif any(name in self.sequences for name in (*node.input, *captured_names(node))):
                raise NoMatchError(f"{node.op_type} reads a sequence as a whole", node=label(node))
        left = self._graph.outputs.intersection(self.sequences)
        if left:
            raise NoMatchError(f"{min(left)} is a sequence and an output of the model")

    def construct(self, node: NodeProto) -> None:
        """A sequence of tensors named one by one; an empty one has none."""
        self.sequences[node.output[0]] = list(node.input)

    def insert(self, node: NodeProto) -> None:
        """At a stored place, or at the end."""
        held = self._held(node)
        place = self._place(node, 2, len(held)) if len(node.input) > 2 and node.input[2] else len(held)
        self.sequences[node.output[0]] = [*held[:place], node.input[1], *held[place:]]

    def erase(self, node: NodeProto) -> None:
        """A stored place, or the last."""
        held = self._held(node)
        place = self._place(node, 1, len(held)) if len(node.input) > 1 and node.input[1] else len(held) - 1
        self.sequences[node.output[0]] = [*held[:place], *held[place + 1 :]]

    def at(self, node: NodeProto) -> None:
        """One tensor of a sequence: it goes on under the name of what picked it."""
        held = self._held(node)
        self._copy(held[self._place(node, 1, len(held))], node.output[0])

    def length(self, node: NodeProto) -> None:
        """A number that is stored."""
        stored = self._graph.store(f"{node.output[0]}_settled", np.asarray(len(self._held(node)), np.int64))
        self._copy(stored, node.output[0])

    def concat(self, node: NodeProto) -> None:
        """A Concat, of tensors with one axis more where a new one is asked for."""
        held, axis = self._held(node), int(attribute(node, "axis", 0))
        if attribute(node, "new_axis", 0):
            held = [self._with_axis("Unsqueeze", name, axis, f"{node.output[0]}_part") for name in held]
        self._steps.append(helper.make_node("Concat", held, list(node.output), name=node.name, axis=axis))

    def split(self, node: NodeProto) -> None:
        """A Split into parts of known sizes; those of size one lose their axis where they are asked to."""
        source, axis = node.input[0], int(attribute(node, "axis", 0))
        sizes = self._sizes(node, axis)
        parts = [self._graph.fresh(f"{node.output[0]}_part{number}") for number in range(len(sizes))]
        self.moved += [(source, part) for part in parts]
        self._steps.append(_split(self._graph, source, parts, axis, sizes))
        if len(node.input) < 2 or not node.input[1]:
            keeps = bool(attribute(node, "keepdims", 1))
            parts = parts if keeps else [self._with_axis("Squeeze", part, axis, f"{part}_flat") for part in parts]
        self.sequences[node.output[0]] = parts

    def _sizes(self, node: NodeProto, axis: int) -> list[int]:
        shape: Shape = self._shapes.get(node.input[0])
        whole = None if shape is None else shape[axis]
        if not isinstance(whole, int):
            raise NoMatchError(f"the size of axis {axis} of {node.input[0]} is not known", node=label(node))
        given: Any = np.asarray(1)
        if len(node.input) > 1 and node.input[1]:
            given = self._graph.array(node.input[1])
            if given is None:
                raise NoMatchError(f"{node.input[1]} is not stored", node=label(node))
        step = int(given) if given.ndim == 0 else 0
        sizes = [min(step, whole - start) for start in range(0, whole, step)] if step else [int(size) for size in given]
        if not 0 < len(sizes) <= _MOST_PARTS:
            raise NoMatchError(f"it has {len(sizes)} parts, at most {_MOST_PARTS} are made", node=label(node))
        return sizes

    def _held(self, node: NodeProto) -> list[str]:
        if node.input[0] not in self.sequences:
            raise NoMatchError(f"what the sequence {node.input[0]} holds is not settled", node=label(node))
        return self.sequences[node.input[0]]

    def _place(self, node: NodeProto, at: int, size: int) -> int:
        value = self._graph.array(node.input[at])
        if value is None:
            raise NoMatchError(f"the place {node.input[at]} is not stored", node=label(node))
        place = int(value.reshape(()))
        return place + size if place < 0 else place

    def _copy(self, source: str, made: str) -> None:
        self._steps.append(helper.make_node("Identity", [source], [made], name=f"{made}_taken"))
        self.moved.append((source, made))

    def _with_axis(self, op_type: str, source: str, axis: int, name: str) -> str:
        made = self._graph.fresh(name)
        self.moved.append((source, made))
        if self._graph.opset < _SIZES_ARE_AN_INPUT:
            self._steps.append(helper.make_node(op_type, [source], [made], name=made, axes=[axis]))
        else:
            stored = self._graph.store(f"{made}_axis", np.asarray([axis], np.int64))
            self._steps.append(helper.make_node(op_type, [source, stored], [made], name=made))
        return made


def _split(graph: GraphCopy, source: str, parts: list[str], axis: int, sizes: list[int]) -> NodeProto:
    if graph.opset < _SIZES_ARE_AN_INPUT:
        return helper.make_node("Split", [source], parts, name=parts[0], axis=axis, split=sizes)
    stored = graph.store(f"{parts[0]}_sizes", np.asarray(sizes, np.int64))
    return helper.make_node("Split", [source, stored], parts, name=parts[0], axis=axis)


_TAKEN: Mapping[str, Any] = {
    "SequenceConstruct": _Resolved.construct,
    "SequenceEmpty": _Resolved.construct,
    "SequenceInsert": _Resolved.insert,
    "SequenceErase": _Resolved.erase,
    "SequenceAt": _Resolved.at,
    "SequenceLength": _Resolved.length,
    "ConcatFromSequence": _Resolved.concat,
    "SplitToSequence": _Resolved.split,
}

transform = Transform(
    name="resolve-sequences",
    summary="Takes sequences of tensors out where it is settled which tensor each place holds.",
    match=match,
    apply=apply,
)
