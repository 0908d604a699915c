"""Questions to one protobuf node: what to call it, what an attribute holds, which outer tensors its bodies read.

It knows no graph around the node; facts of a whole graph are in ``facts``, an editable one is in ``graph_copy``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

__all__ = ["attribute", "bodies", "captured_names", "label"]


def label(node: NodeProto) -> str:
    """The node's name, or its type and first output where it has none."""
    return node.name or f"{node.op_type} -> {node.output[0] if node.output else '?'}"


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of one attribute, texts as str, or the default."""
    from onnx import helper

    for found in node.attribute:
        if found.name == name:
            value = helper.get_attribute_value(found)
            return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return default


def captured_names(node: NodeProto) -> tuple[str, ...]:
    """The names that the bodies of a node read from the graphs around them, sorted."""
    inner = list(bodies(node))
    return tuple(sorted(set().union(*map(_free_names, inner)))) if inner else ()


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node runs, as they stand in its attributes; what these hold in turn is not looked for."""
    for found in node.attribute:
        if found.HasField("g"):
            yield found.g
        yield from found.graphs


def _free_names(graph: GraphProto) -> set[str]:
    made = {item.name for item in graph.input} | {tensor.name for tensor in graph.initializer}
    made |= {sparse.values.name for sparse in graph.sparse_initializer}
    read = {item.name for item in graph.output}
    for node in graph.node:
        read.update(name for name in (*node.input, *captured_names(node)) if name)
        made.update(node.output)
    return read - made
