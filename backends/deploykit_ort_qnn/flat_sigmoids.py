"""Computes a Sigmoid on one row of values where its code would die between a sum or product and a linear layer.

The values and their grids stay as they are. It knows no version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.encodings.values import Affine
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import label
from deploykit.model.shape_inference import infer

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["flat_sigmoids"]

_ROWS = 16
"""Observed with QAIRT 2.36.1: 16, 32, 64, 128 rows die, on two emulators or while compiled; 8, 12, 15, 24, 48 do not.

All multiples are avoided, since nothing says why 48 is an exception.
"""


def flat_sigmoids(model: ModelProto, encodings: EncodingSet) -> tuple[ModelProto, EncodingSet, tuple[str, ...]]:
    """The model with such Sigmoids between two Reshapes, its encodings, and the names of those Sigmoids."""
    graph = GraphCopy(model)
    shapes, names = infer(graph.model).types, list[str]()
    for node in [node for node in graph.nodes if node.op_type == "Sigmoid"]:
        shape = shapes.get(node.input[0], ("", None))[1] or ()
        if _is_wide(encodings, node) and _dies(graph, node, shape):
            encodings = _flatten(graph, node.output[0], tuple(int(size or 0) for size in shape), encodings)
            names.append(label(node))
    kept = keep_entries(encodings, graph)
    assert kept is not None
    return (graph.model, kept, tuple(names)) if names else (model, encodings, ())


def _is_wide(encodings: EncodingSet, node: NodeProto) -> bool:
    entries = [encodings.get(name) for name in (node.input[0], node.output[0])]
    return all(e is not None and isinstance(e.value, Affine) and e.value.bits == 16 for e in entries)


def _dies(graph: GraphCopy, node: NodeProto, shape: tuple[object, ...]) -> bool:
    rows = shape[-2] if len(shape) > 1 and all(isinstance(size, int) for size in shape) else 0
    before = graph.maker(node.input[0], "Add", "Mul")
    if not isinstance(rows, int) or rows == 0 or rows % _ROWS or before is None or _is_linear(graph, before):
        return False
    readers = graph.readers(node.output[0])
    return any(_reads_weights(graph, one) for one in [*readers, *_behind_gates(graph, readers)])


def _behind_gates(graph: GraphCopy, readers: list[NodeProto]) -> list[NodeProto]:
    return [after for gate in readers if gate.op_type == "Mul" for after in graph.readers(gate.output[0])]


def _is_linear(graph: GraphCopy, node: NodeProto) -> bool:
    """True for the Add that is the bias of a linear layer."""
    makers = [graph.maker(name, "MatMul") for name in node.input]
    return node.op_type == "Add" and any(maker is not None and _reads_weights(graph, maker) for maker in makers)


def _reads_weights(graph: GraphCopy, node: NodeProto) -> bool:
    return node.op_type in ("MatMul", "Gemm") and node.input[1] in graph.stored


def _flatten(graph: GraphCopy, made: str, shape: tuple[int, ...], encodings: EncodingSet) -> EncodingSet:
    node = graph.makers[made]
    source, row, value = node.input[0], graph.fresh(f"{made}_row"), graph.fresh(f"{made}_flat")
    flat = graph.store(f"{row}_shape", np.asarray((*shape[:-2], 1, shape[-2] * shape[-1]), np.int64))
    whole = graph.store(f"{made}_shape", np.asarray(shape, np.int64))
    steps = [
        helper.make_node("Reshape", [source, flat], [row], name=row),
        helper.make_node("Sigmoid", [row], [value], name=node.name),
        helper.make_node("Reshape", [value, whole], [made], name=graph.fresh(f"{made}_rows")),
    ]
    graph.replace_nodes([node], {graph.index_of(node): steps})
    shared = share_entry(share_entry(encodings, source, [row]), made, [value])
    assert shared is not None
    return shared
