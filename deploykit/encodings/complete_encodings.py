"""Gives encodings to tensors whose grid follows exactly from a neighbour's, so that whole node groups are quantized.

Only two conclusions are drawn, both exact: data movement keeps the grid, and the input of a Relu may have the grid of
its output. It reads no values and invents no range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.operators import Trait, data_outputs, has

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["complete_encodings"]


def complete_encodings(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, dict[str, str]]:
    """The encodings with every entry that follows, and for each new tensor the one it was taken from.

    Tensors named as float stay float; per-channel and per-block entries are never carried.
    """
    graph = view_of(model)
    entries, origin = dict(encodings.entries), dict[str, str]()
    floats = encodings.floats
    for source, target in _forward(graph):
        _carry(entries, origin, source, target, floats)
    for source, target in _backward(graph):
        _carry(entries, origin, source, target, floats)
    # What went backward may go forward again, into the other consumers.
    for source, target in _forward(graph):
        _carry(entries, origin, source, target, floats)
    return replace(encodings, entries=entries), origin


def _carry(
    entries: dict[str, Encoding], origin: dict[str, str], source: str, target: str, floats: frozenset[str]
) -> None:
    entry = entries.get(source)
    if entry is None or target in entries or target in floats:
        return
    value = entry.value
    if isinstance(value, Affine) and value.granularity == "per-tensor" and value.bits in (8, 16):
        entries[target] = Encoding(name=target, value=value, is_param=False)
        origin[target] = source


def _forward(graph: GraphCopy) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        if has(node, Trait.CARRIES_GRID) and node.input:
            yield from ((node.input[0], name) for name in data_outputs(node, node.output))


def _backward(graph: GraphCopy) -> Iterator[tuple[str, str]]:
    for node in reversed(graph.nodes):
        if not node.input or node.input[0] in graph.stored:
            continue
        name = node.input[0]
        alone = graph.only_reader(name) is not None
        if has(node, Trait.CARRIES_GRID) and (name in graph.makers or alone):
            yield from ((output, name) for output in data_outputs(node, node.output))
        elif node.op_type == "Relu" and alone:
            yield node.output[0], name
