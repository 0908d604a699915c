"""Turns a partition into models: one per segment, with its own encodings and the names of the whole.

It runs nothing and decides no cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onnx import helper

from deploykit.encodings.cutting import infer_types, part_of
from deploykit.encodings.segments import Partition, SegmentRange
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.model.graph import GraphCopy, view_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["Segment", "split_model", "whole_as_cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of the whole: an ordinary model. ``encodings`` is None for a float segment.

    ``name`` is fit for files and graphs: a number and the kind. ``changed`` are labels of ops that run in float here
    though the encodings would allow them to be quantized.
    """

    name: str
    is_float: bool
    model: ModelProto
    encodings: EncodingSet | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    changed: tuple[str, ...] = ()


def split_model(model: ModelProto, encodings: EncodingSet, cut: Partition) -> tuple[Segment, ...]:
    """The segments of a partition of this model's facts, in the order in which they run."""
    graph = view_of(model)
    types = infer_types(model)
    segments = []
    for number, span in enumerate(cut.segments):
        name = f"segment_{number}_{'float' if span.is_float else 'quantized'}"
        part = part_of(graph, span.nodes, _ordered(model, span), name=name, types=types)
        segments.append(
            Segment(
                name=name,
                is_float=span.is_float,
                model=part,
                encodings=None if span.is_float else _entries_of(part, encodings),
                inputs=tuple(item.name for item in part.graph.input),
                outputs=tuple(item.name for item in part.graph.output),
                nodes=tuple(graph.nodes[index].name for index in span.nodes),
                changed=tuple(graph.nodes[index].name for index in span.nodes if index in set(cut.changed)),
            )
        )
    return tuple(segments)


def _ordered(model: ModelProto, span: SegmentRange) -> list[str]:
    """A segment's outputs: those of the whole first, in its order."""
    whole = [item.name for item in model.graph.output if item.name in span.outputs]
    return [*whole, *(name for name in span.outputs if name not in whole)]


def _entries_of(part: ModelProto, encodings: EncodingSet) -> EncodingSet:
    names = _tensors(part)
    entries = {name: entry for name, entry in encodings.entries.items() if name in names}
    return replace(encodings, entries=entries, float_tensors=encodings.float_tensors & names)


def _tensors(part: ModelProto) -> set[str]:
    graph = part.graph
    made = {name for node in graph.node for name in node.output if name}
    return made | {item.name for item in graph.input} | {tensor.name for tensor in graph.initializer}


def whole_as_cut(
    model: ModelProto, encodings: EncodingSet, cut: Partition, segments: tuple[Segment, ...]
) -> tuple[ModelProto, EncodingSet]:
    """The uncut model with quantizers where the chain has them: what the chain must equal.

    Entries of tensors that only float segments have fall away. A tensor that enters a quantized segment from an input
    or from a float segment is quantized for that segment's ops only, so it gets a copy that they read.
    """
    entries: dict[str, Encoding] = {}
    for segment in segments:
        entries.update(segment.encodings.entries if segment.encodings is not None else {})
    graph = GraphCopy(model)
    quantized = [index for span in cut.segments if not span.is_float for index in span.nodes]
    made = {name for index in quantized for name in graph.nodes[index].output} | graph.static()
    renamed = {
        name: graph.fresh(f"{name}::entering") for name in entries if name not in made and name in graph.tensor_names
    }
    _read_copies(graph, quantized, renamed)
    moved = {renamed.get(n, n): replace(e, name=renamed.get(n, n)) for n, e in entries.items()}
    return graph.model, replace(encodings, entries=moved, float_tensors=frozenset())


def _read_copies(graph: GraphCopy, positions: list[int], renamed: dict[str, str]) -> None:
    first: dict[str, int] = {}
    for index in sorted(positions):
        node = graph.nodes[index]
        for place, name in enumerate(node.input):
            if name in renamed:
                first.setdefault(name, index)
                node.input[place] = renamed[name]
    copies: dict[int, list[NodeProto]] = {}
    for name, index in first.items():
        copies.setdefault(index, []).append(helper.make_node("Identity", [name], [renamed[name]]))
    graph.replace_nodes((), copies)
