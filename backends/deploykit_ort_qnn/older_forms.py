"""Writes what the provider of an older wheel lacks with what it has; which one lacks what is the table's.

Each form is equal to what it replaces for every value that can occur. It knows no version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnx import NodeProto, TensorProto, helper

from deploykit.encodings.values import Affine, EncodingSet
from deploykit.graph.graph_copy import GraphCopy
from deploykit.graph.intervals import ANYTHING, graph_bounds
from deploykit.graph.nodes import label
from deploykit.graph.shape_inference import infer
from deploykit.quantization.entries import keep_entries
from deploykit_ort_qnn.channel_biases import channel_biases

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["older_forms"]

_REASONS = {
    "mod": "this provider has no Mod: of what is never negative the remainder is a - (a / b) * b, in int32",
    "isnan": "this provider has no IsNaN: what lies on an integer grid is never NaN",
    "channel-bias": "this FullyConnected takes no bias with a scale per channel: a 1x1 Conv, which is the same, does",
}


def older_forms(
    model: ModelProto, encodings: EncodingSet, lacks: Collection[str]
) -> tuple[ModelProto, EncodingSet, Mapping[str, tuple[str, tuple[str, ...]]]]:
    """The model without the operators in ``lacks`` where that is exact, and per form why and on which nodes.

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
    return (graph.model, kept, done) if done else (model, encodings, done)


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


_FORMS: Mapping[str, Callable[[GraphCopy, EncodingSet], tuple[str, ...]]] = {
    "mod": _without_mod,
    "isnan": _without_isnan,
}
