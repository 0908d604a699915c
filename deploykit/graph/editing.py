"""Small, careful edits of ONNX graphs that several transforms share; it knows no operator and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.graph.structure import captured_names
from deploykit.graph.structure import node_label as label

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

__all__ = [
    "Names",
    "attribute",
    "constant_values",
    "consumers_of",
    "drop_unused_constants",
    "element_type",
    "integer_tensor",
    "label",
    "opset_of",
    "producers_of",
    "read_elsewhere",
    "set_nodes",
    "stored_tensors",
    "usable_copy",
]

Numbers = npt.NDArray[Any]


class Names:
    """Gives out names that the graph does not have yet."""

    def __init__(self, graph: GraphProto) -> None:
        self.taken = {name for node in graph.node for name in (*node.input, *node.output, node.name)}
        self.taken |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}

    def fresh(self, wanted: str) -> str:
        """``wanted``, or the first ``wanted_<n>`` that is free; it is taken from then on."""
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name


def usable_copy(model: ModelProto) -> ModelProto:
    """A deep copy that may be edited."""
    from onnx import ModelProto

    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of one attribute, or the default."""
    from onnx import helper

    for found in node.attribute:
        if found.name == name:
            value = helper.get_attribute_value(found)
            return value.decode() if isinstance(value, bytes) else value
    return default


def opset_of(model: ModelProto, domain: str = "") -> int:
    """The version of one domain's operator set, 0 when it is not imported."""
    wanted = ("", "ai.onnx") if domain == "" else (domain,)
    return max((entry.version for entry in model.opset_import if entry.domain in wanted), default=0)


def producers_of(graph: GraphProto) -> dict[str, NodeProto]:
    """The node that makes each tensor."""
    return {name: node for node in graph.node for name in node.output if name}


def consumers_of(graph: GraphProto) -> dict[str, list[tuple[NodeProto, int]]]:
    """The nodes that read each tensor, with the position at which they do."""
    found: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name:
                found.setdefault(name, []).append((node, position))
    return found


def stored_tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """Initializers and the tensors of Constant nodes, by tensor name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for entry in node.attribute:
                if entry.name == "value":
                    found[node.output[0]] = entry.t
    return found


def constant_values(tensor: TensorProto) -> Numbers:
    """The numbers of a stored tensor; external data must have been loaded."""
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor))


def element_type(name: str) -> int:
    """The element type's number for a lower-case type name (``uint8``, ``int4``, ``float`` …)."""
    from onnx import TensorProto

    return int(TensorProto.DataType.Value(name.upper()))


def integer_tensor(name: str, values: Numbers, dtype: str) -> TensorProto:
    """A stored tensor of any integer type, 4-bit ones packed two to a byte, the first in the low half."""
    from onnx import TensorProto

    tensor = TensorProto(name=name, data_type=element_type(dtype), dims=values.shape)
    if dtype in ("int4", "uint4"):
        flat = np.append(values.reshape(-1), np.zeros(values.size % 2, np.int64)).astype(np.int64) & 0xF
        tensor.raw_data = (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8).tobytes()
    else:
        tensor.raw_data = np.ascontiguousarray(values.astype(np.dtype(dtype).newbyteorder("<"))).tobytes()
    return tensor


def set_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Replace all nodes of the graph."""
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)


def read_elsewhere(graph: GraphProto) -> set[str]:
    """Tensors that must keep their names: outputs of the graph, and what bodies of If, Loop and Scan read."""
    return {value.name for value in graph.output} | {name for node in graph.node for name in captured_names(node)}


def drop_unused_constants(graph: GraphProto, names: Iterable[str]) -> None:
    """Remove those of the named stored tensors that nothing reads: no node, no body of a node, no output of the graph.

    The default of a graph input stays too: without it the input would be required.
    """
    read = {name for node in graph.node for name in (*node.input, *captured_names(node))}
    read |= {value.name for value in (*graph.input, *graph.output)}
    unused = set(names) - read
    kept = [tensor for tensor in graph.initializer if tensor.name not in unused]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)
    set_nodes(graph, [n for n in graph.node if n.op_type != "Constant" or n.output[0] not in unused])


def rename_inputs(node: NodeProto, names: Mapping[str, str]) -> None:
    """Let a node read other tensors."""
    for position, name in enumerate(node.input):
        if name in names:
            node.input[position] = names[name]
