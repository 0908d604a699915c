"""Takes single rows by Slice and Reshape instead of Gather, where a Concat follows. Values and grids stay.

It knows no version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import label
from deploykit.model.shape_inference import infer

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["sliced_rows"]


def sliced_rows(model: ModelProto, encodings: EncodingSet) -> tuple[ModelProto, EncodingSet, tuple[str, ...]]:
    """The model with such Gathers of one stored index as Slices, its encodings, and the names of those Gathers.

    QAIRT 2.36.1 computes 13 to 20 dB behind LayerNormalization, Gather and Concat where the Concat has another grid.
    """
    graph = GraphCopy(model)
    static, shapes, names = graph.static(), infer(graph.model).types, list[str]()
    for node in [node for node in graph.nodes if node.op_type == "Gather" and node.input[0] not in static]:
        shape = shapes.get(node.input[0], ("", None))[1] or ()
        index = graph.array(node.input[1])
        sizes = tuple(size for size in shape if isinstance(size, int))
        if index is None or index.size != 1 or not sizes or len(sizes) < len(shape):
            continue
        if any(reader.op_type == "Concat" for reader in graph.readers(node.output[0])):
            encodings = _slice(graph, node, sizes, (int(index.reshape(())), index.shape), encodings)
            names.append(label(node))
    kept = keep_entries(encodings, graph)
    assert kept is not None
    return (graph.model, kept, tuple(names)) if names else (model, encodings, ())


def _slice(
    graph: GraphCopy,
    node: NodeProto,
    sizes: tuple[int, ...],
    index: tuple[int, tuple[int, ...]],
    encodings: EncodingSet,
) -> EncodingSet:
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0) % len(sizes)
    (number, dims), made = index, node.output[0]
    row = graph.fresh(f"{made}_row")
    start, end, axes = (
        graph.store(f"{row}_{what}", np.asarray([value], np.int64))
        for what, value in (("start", number % sizes[axis]), ("end", number % sizes[axis] + 1), ("axis", axis))
    )
    shape = graph.store(f"{made}_shape", np.asarray((*sizes[:axis], *dims, *sizes[axis + 1 :]), np.int64))
    steps = [
        helper.make_node("Slice", [node.input[0], start, end, axes], [row], name=node.name),
        helper.make_node("Reshape", [row, shape], [made], name=graph.fresh(f"{made}_shaped")),
    ]
    graph.replace_nodes([node], {graph.index_of(node): steps})
    shared = share_entry(encodings, made, [row])
    assert shared is not None
    return shared
