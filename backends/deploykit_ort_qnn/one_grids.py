"""Gives operators whose kernels take integers over as they are one grid for what they read and what they make.

With QAIRT 2.51 another grid behind them makes every value wrong by the ratio of the steps (rows of the atlas). Values
on the result's grid from the start are the same ones, rounded once instead of twice. It changes no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine, EncodingSet
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.operators import Trait, has, is_standard
from deploykit_ort_qnn.node_units import shares_grid

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["conversions_before_moves", "one_grids"]

_ONE_GRID = frozenset({"ScatterElements", "SpaceToDepth"})
"""Other operators that move values convert them: Concat, DepthToSpace, Pad, ScatterND are right over any grids."""


def one_grids(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings with the result's grid for what such an operator alone reads; and the tensors changed."""
    graph, entries, changed = view_of(model), dict(encodings.entries), list[str]()
    todo = [node for node in reversed(graph.nodes) if _is_concerned(node, encodings)]
    while todo:
        node = todo.pop(0)
        for _, name, wanted in _others(graph, replace(encodings, entries=entries), node):
            if not _is_read_here_alone(graph, name):
                continue
            entries[name] = replace(entries[name], value=wanted)
            changed.append(name)
            maker = graph.maker(name)
            if maker is not None and has(maker, Trait.CARRIES_GRID):
                todo.append(maker)
    return replace(encodings, entries=entries), tuple(changed)


def conversions_before_moves(model: ModelProto, encodings: EncodingSet) -> dict[tuple[str, int], Affine]:
    """The result's grid for inputs that are read elsewhere too: there they are converted for the one reader."""
    graph = view_of(model)
    return {
        (node.output[0], position): wanted
        for node in graph.nodes
        if _is_concerned(node, encodings)
        for position, _, wanted in _others(graph, encodings, node)
    }


def _is_concerned(node: NodeProto, encodings: EncodingSet) -> bool:
    return node.op_type in _ONE_GRID and is_standard(node) and node.output[0] in encodings


def _others(graph: GraphCopy, encodings: EncodingSet, node: NodeProto) -> Iterator[tuple[int, str, Affine]]:
    """Computed inputs with another grid than the result's, of the same width, and that of the result."""
    made = encodings.get(node.output[0])
    for position, name in enumerate(node.input):
        entry = encodings.get(name) if name and name not in graph.stored else None
        if entry is None or made is None or shares_grid(entry, made):
            continue
        value, wanted = entry.value, made.value
        if not isinstance(value, Affine) or not isinstance(wanted, Affine):
            continue
        if value.bits == wanted.bits and value.scale.size == wanted.scale.size == 1:
            yield position, name, wanted


def _is_read_here_alone(graph: GraphCopy, name: str) -> bool:
    return name not in graph.outputs and len(graph.readers(name)) == 1
