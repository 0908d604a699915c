"""Takes sequences of tensors out of a graph where it is settled which tensor each place holds.

Exports of ``torch.split``, ``unbind`` and ``chunk`` split into a sequence and pick places of it; Split and the tensors
themselves say the same. Sequences that come from outside or leave the graph stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, captured_names, label
from deploykit.model.operators import is_standard
from deploykit.rewrites.contract import (
    MatchResult,
    ModelLook,
    NearMiss,
    NodeSteps,
    NoMatchError,
    Rewritten,
    Site,
    Transform,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["resolve_sequences"]

# Parts of one split: beyond, the graph grows more than it is worth.
_MOST_PARTS = 1024


class _Resolved(NodeSteps):
    """What each sequence holds, in graph order, and the nodes on tensors that take the place of nodes on sequences."""

    def __init__(self, model: ModelProto, encodings: EncodingSet | None = None) -> None:
        """Raises NoMatchError at the first sequence that is not settled."""
        super().__init__(GraphCopy(model), encodings)
        self.sequences: dict[str, list[str]] = {}
        self.written: list[tuple[NodeProto, list[NodeProto]]] = []
        for node in self.graph.nodes:
            self.start(node)
            if is_standard(node) and self._takes(node):
                self.written.append((node, self.nodes))
            elif any(name in self.sequences for name in (*node.input, *captured_names(node))):
                raise NoMatchError(f"{node.op_type} reads a sequence as a whole", node=label(node))
        left = self.graph.outputs.intersection(self.sequences)
        if left:
            raise NoMatchError(f"{min(left)} is a sequence and an output of the model")

    def _takes(self, node: NodeProto) -> bool:
        """Follow one node; False where it is none on sequences."""
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
        """The parts of known sizes; those of size one lose their axis where they are asked to."""
        source, axis = node.input[0], int(attribute(node, "axis", 0))
        shape, given = self.graph.shape(source), np.asarray(1)
        whole = None if shape is None else shape[axis]
        if not isinstance(whole, int):
            raise NoMatchError(f"the size of axis {axis} of {source} is not known", node=label(node))
        is_sized = len(node.input) > 1 and bool(node.input[1])
        if is_sized:
            stored = self.graph.array(node.input[1])
            if stored is None:
                raise NoMatchError(f"{node.input[1]} is not stored", node=label(node))
            given = stored
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
        if len(node.input) <= at or not node.input[at]:
            return default
        value = self.graph.array(node.input[at])
        if value is None:
            raise NoMatchError(f"the place {node.input[at]} is not stored", node=label(node))
        place = int(value.reshape(()))
        return place + size if place < 0 else place

    def _copy(self, source: str, made: str) -> None:
        self.write("Identity", [source], made, name=f"{made}_taken")
        self.share(source, made)

    def _with_axis(self, op_type: str, source: str, axis: int, name: str) -> str:
        made = self.listed(op_type, source, "axes", [axis], self.graph.fresh(name))
        self.share(source, made)
        return made


def _match(look: ModelLook) -> MatchResult:
    """The readers of sequences, when every sequence of the graph is settled; else the first one that is not."""
    if not any("Sequence" in node.op_type for node in look.nodes):
        return MatchResult(reason="nothing works on a sequence of tensors")
    try:
        resolved = _Resolved(look.model)
    except NoMatchError as error:
        return MatchResult(refusals=(NearMiss(nodes=(error.node,), reason=error.reason),), reason=error.reason)
    nodes = tuple(label(node) for node, _ in resolved.written)
    why = "it is settled which tensor each place holds"
    return MatchResult(sites=(Site(nodes=nodes, tensors=tuple(resolved.sequences), why=why),))


def _apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Let the tensors take the places of the sequences."""
    resolved = _Resolved(model, encodings)
    graph = resolved.graph
    steps = {graph.index_of(node): nodes for node, nodes in resolved.written}
    graph.replace_nodes([node for node, _ in resolved.written], steps)
    note = f"{len(matched.sites[0].nodes)} nodes on sequences became nodes on tensors"
    return Rewritten(model=graph.model, encodings=keep_entries(resolved.encodings, graph), notes=(note,))


resolve_sequences = Transform(
    name="resolve-sequences",
    summary="Takes sequences of tensors out where it is settled which tensor each place holds.",
    find=_match,
    apply=_apply,
)
