"""Writes what the provider of an older wheel lacks with what it has; which one lacks what is the table's.

Each form is equal to what it replaces for every value that can occur, grids in ``_GRIDS`` excepted, which alone change.
It knows no version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from deploykit.encodings.place import keep_entries
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import label
from deploykit.model.ranges import ANYTHING, graph_bounds
from deploykit.model.shape_inference import infer
from deploykit_ort_qnn.channel_biases import channel_biases
from deploykit_ort_qnn.flat_sigmoids import flat_sigmoids
from deploykit_ort_qnn.kernel_grids import whole_hardsigmoids
from deploykit_ort_qnn.node_units import symmetric_operands
from deploykit_ort_qnn.sliced_rows import sliced_rows

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import ModelProto

__all__ = ["older_forms"]

_REASONS = {
    "mod": "this provider has no Mod: of what is never negative the remainder is a - (a / b) * b, in int32",
    "isnan": "this provider has no IsNaN: what lies on an integer grid is never NaN",
    "channel-bias": "this FullyConnected takes no bias with a scale per channel: a 1x1 Conv, which is the same, does",
    "allowzero": "this provider refuses a Reshape with allowzero; without a zero in its shape the two are the same",
    "reciprocal": "this provider has no Reciprocal: it divides one by the value",
    "bool-gather": "this compiler refuses a Gather of truth values (code 3110): they are gathered as int32",
    "gather-before-concat": "a row gathered in front of a Concat comes out wrong (13 to 20 dB); sliced it is right",
    "sigmoid-before-linear": "a Sigmoid between a sum or product and a linear layer dies; on one row it does not",
    "hardsigmoid-range": "a 16-bit HardSigmoid is right on the grid from 0 to 1 only (6 to 26 dB on any other)",
    "asymmetric-operand": "a stored 16-bit operand of a MatMul is taken with its 0 in the middle only (code 3110)",
}


def older_forms(
    model: ModelProto, encodings: EncodingSet, lacks: Collection[str]
) -> tuple[ModelProto, EncodingSet, Mapping[str, tuple[str, tuple[str, ...]]]]:
    """The model without the operators and forms in ``lacks`` where that is exact, and per form why and on which nodes.

    Nodes for which it is not exact stay: the provider then refuses them by name.
    """
    graph, done = GraphCopy(model), dict[str, tuple[str, tuple[str, ...]]]()
    for name, change in _FORMS.items():
        names = change(graph, encodings) if name in lacks else ()
        if names:
            done[f"without-{name}"] = _REASONS[name], names
    names, made = channel_biases(graph, encodings) if "channel-bias" in lacks else ((), {})
    if names:
        encodings = replace(encodings, entries={**encodings.entries, **made})
        done["without-channel-bias"] = _REASONS["channel-bias"], names
    kept = keep_entries(encodings, graph)
    assert kept is not None
    model, encodings = (graph.model, kept) if done else (model, encodings)
    for name, rewrite in _REWRITES.items():
        model, encodings, names = rewrite(model, encodings) if name in lacks else (model, encodings, ())
        if names:
            done[f"without-{name}"] = _REASONS[name], names
    for name, grids in _GRIDS.items():
        encodings, names = grids(model, encodings) if name in lacks else (encodings, ())
        if names:
            done[f"without-{name}"] = _REASONS[name], names
    return model, encodings, done


def _without_mod(graph: GraphCopy, _: EncodingSet) -> tuple[str, ...]:
    """The backend refuses to subtract int64, so the arithmetic is done in int32: the chip has no wider integers."""
    found = [node for node in graph.nodes if node.op_type == "Mod"]
    if not found:
        return ()
    bounds, types = graph_bounds(graph), infer(graph.model).types
    new, names = dict[int, list[NodeProto]](), list[str]()
    for node in found:
        kind = types.get(node.input[0], ("", None))[0]
        if kind in ("int32", "int64") and all(bounds.get(name, ANYTHING)[0] >= 0 for name in node.input):
            new[graph.index_of(node)] = _remainder(graph, node, wide=kind == "int64")
            names.append(label(node))
    if names:
        graph.replace_nodes([graph.nodes[index] for index in new], new)
    return tuple(names)


def _remainder(graph: GraphCopy, node: NodeProto, *, wide: bool) -> list[NodeProto]:
    (dividend, divisor), made = node.input, node.output[0]
    nodes = list[NodeProto]()

    def add(op_type: str, inputs: list[str], end: str = "", **settings: Any) -> str:
        name = end or graph.fresh(f"{made}_{op_type.lower()}")
        nodes.append(helper.make_node(op_type, inputs, [name], name=graph.fresh(f"{name}_node"), **settings))
        return name

    if wide:
        dividend, divisor = (add("Cast", [name], to=TensorProto.INT32) for name in (dividend, divisor))
    whole = add("Mul", [add("Div", [dividend, divisor]), divisor])
    rest = add("Sub", [dividend, whole], "" if wide else made)
    if wide:
        add("Cast", [rest], made, to=TensorProto.INT64)
    return nodes


def _without_isnan(graph: GraphCopy, encodings: EncodingSet) -> tuple[str, ...]:
    """Where(IsNaN(x), a, b) is b, and what read its result reads b."""
    names = []
    for node in graph.nodes:
        entry = encodings.get(node.input[0]) if node.op_type == "IsNaN" else None
        if entry is None or not isinstance(entry.value, Affine):
            continue
        choices = graph.readers(node.output[0])
        if all(reader.op_type == "Where" and reader.output[0] not in graph.outputs for reader in choices):
            names.append(label(node))
            for choice in choices:
                for reader, at in graph.uses(choice.output[0]):
                    reader.input[at] = choice.input[2]
    if names:
        graph.prune()
    return tuple(names)


def _without_allowzero(graph: GraphCopy, _: EncodingSet) -> tuple[str, ...]:
    names = []
    for node in graph.nodes:
        shape = graph.array(node.input[1]) if node.op_type == "Reshape" else None
        settings = [item for item in node.attribute if item.name == "allowzero" and item.i]
        if settings and shape is not None and 0 not in shape:
            node.attribute.remove(settings[0])
            names.append(label(node))
    return tuple(names)


def _without_reciprocal(graph: GraphCopy, _: EncodingSet) -> tuple[str, ...]:
    """The one is a constant beside integers, which gets the grid of its value later."""
    static = graph.static()
    found = [node for node in graph.nodes if node.op_type == "Reciprocal" and node.input[0] not in static]
    for node in found:
        one = graph.store(f"{node.output[0]}_one", np.asarray(1.0, np.float32))
        node.op_type = "Div"
        node.input[:] = [one, node.input[0]]
    return tuple(label(node) for node in found)


def _without_bool_gather(graph: GraphCopy, _: EncodingSet) -> tuple[str, ...]:
    """A flat index, since a Cast to truth values is refused on five dimensions; one that counts through needs none."""
    types, static = infer(graph.model).types, graph.static()
    new = dict[int, list[NodeProto]]()
    for node in graph.nodes:
        kind, shape = types.get(node.input[0], ("", None)) if node.op_type == "Gather" else ("", None)
        index = graph.array(node.input[1]) if kind == "bool" and node.input[0] not in static else None
        if index is not None and shape is not None and all(isinstance(size, int) for size in shape):
            new[graph.index_of(node)] = _numbers_gathered(graph, node, tuple(int(size or 0) for size in shape), index)
    found = [graph.nodes[index] for index in new]
    names = tuple(label(node) for node in found)
    if found:
        graph.replace_nodes(found, new)
    return names


def _numbers_gathered(
    graph: GraphCopy, node: NodeProto, shape: tuple[int, ...], index: npt.NDArray[Any]
) -> list[NodeProto]:
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0) % len(shape)
    source, made, nodes = node.input[0], node.output[0], list[NodeProto]()
    if index.size != shape[axis] or (index.reshape(-1) % shape[axis] != np.arange(index.size)).any():
        numbers, taken, flags = (graph.fresh(f"{made}_{end}") for end in ("numbers", "taken", "flags"))
        flat = graph.store(f"{made}_index", index.reshape(-1))
        nodes = [
            helper.make_node("Cast", [source], [numbers], name=numbers, to=TensorProto.INT32),
            helper.make_node("Gather", [numbers, flat], [taken], name=node.name, axis=axis),
            helper.make_node("Cast", [taken], [flags], name=flags, to=TensorProto.BOOL),
        ]
        source = flags
    shaped = graph.store(f"{made}_shape", np.asarray((*shape[:axis], *index.shape, *shape[axis + 1 :]), np.int64))
    return [*nodes, helper.make_node("Reshape", [source, shaped], [made], name=graph.fresh(f"{made}_shaped"))]


_FORMS: Mapping[str, Callable[[GraphCopy, EncodingSet], tuple[str, ...]]] = {
    "mod": _without_mod,
    "isnan": _without_isnan,
    "allowzero": _without_allowzero,
    "reciprocal": _without_reciprocal,
    "bool-gather": _without_bool_gather,
}

_REWRITES: Mapping[str, Callable[[ModelProto, EncodingSet], tuple[ModelProto, EncodingSet, tuple[str, ...]]]] = {
    "gather-before-concat": sliced_rows,
    "sigmoid-before-linear": flat_sigmoids,
}
"""Forms with tensors of their own that have grids."""

_GRIDS: Mapping[str, Callable[[ModelProto, EncodingSet], tuple[EncodingSet, tuple[str, ...]]]] = {
    "asymmetric-operand": symmetric_operands,
    "hardsigmoid-range": whole_hardsigmoids,
}
"""Forms that are grids alone."""
