"""A copy of a model's main graph that transforms look through and edit; the given model is never changed.

It knows no transform. Subgraphs of control flow count as readers of the tensors they take from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from deploykit.graph.ops import DEFAULT_DOMAINS
from deploykit.graph.structure import node_label as label

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto


__all__ = ["GraphCopy", "attribute", "label", "outer_names"]


class GraphCopy:
    """Producers, readers and stored values of one graph. Call ``reindex`` after editing nodes."""

    def __init__(self, model: ModelProto, *, copy: bool = True) -> None:
        from onnx import ModelProto

        self.model = ModelProto() if copy else model
        if copy:
            self.model.CopyFrom(model)
        self.reindex()

    def reindex(self) -> None:
        """Read the nodes again."""
        graph = self.model.graph
        self.stored: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {item.name for item in graph.output}
        self.inputs = {item.name for item in graph.input} - self.stored.keys()
        self.makers: dict[str, NodeProto] = {}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys((*node.input, *outer_names(node))):
                self._readers.setdefault(name, []).append(node)
            self.makers.update((name, node) for name in node.output if name)
            if node.op_type == "Constant" and not node.domain:
                self.stored.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        self._names = {*self.makers, *self.stored, *self.inputs}

    @property
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes in graph order."""
        nodes: Sequence[NodeProto] = self.model.graph.node
        return nodes

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return next((o.version for o in self.model.opset_import if o.domain in DEFAULT_DOMAINS), 0)

    def maker(self, name: str, *op_types: str) -> NodeProto | None:
        """The node that makes a tensor, if it is of one of the given types (any type when none is given)."""
        node = self.makers.get(name)
        return node if node is not None and (not op_types or node.op_type in op_types) else None

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes that read a tensor, each once."""
        return self._readers.get(name, [])

    def only_reader(self, name: str) -> NodeProto | None:
        """The node that reads a tensor, when it is the only one and the tensor is no output of the graph."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def array(self, name: str) -> npt.NDArray[Any] | None:
        """The stored value of an initializer or Constant, through Identity; None where there is none to be read."""
        from onnx import numpy_helper

        tensor = self.stored.get(self.origin(name))
        if tensor is None or tensor.data_location == tensor.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def origin(self, name: str) -> str:
        """What a tensor is a copy of, looking through Identity."""
        for _ in range(len(self.makers)):
            node = self.makers.get(name)
            if node is None or node.op_type != "Identity":
                break
            name = node.input[0]
        return name

    def static(self) -> frozenset[str]:
        """Stored tensors and what is computed from nothing else."""
        found = set(self.stored)
        for node in self.nodes:
            inner = any(attr.HasField("g") or attr.graphs for attr in node.attribute)
            names = [name for name in node.input if name]
            if names and not inner and not node.op_type.startswith("Random") and all(n in found for n in names):
                found.update(name for name in node.output if name)
        return frozenset(found)

    def scalar(self, name: str) -> float | None:
        """A stored value of one element as a number, or None."""
        value = self.array(name) if name else None
        return float(value.reshape(())) if value is not None and value.size == 1 else None

    def store(self, name: str, value: npt.NDArray[Any]) -> str:
        """Add an initializer under a fresh name derived from ``name``; the name given."""
        from onnx import numpy_helper

        fresh = self.fresh(name)
        self.model.graph.initializer.append(numpy_helper.from_array(value, fresh))
        self.stored[fresh] = self.model.graph.initializer[-1]
        return fresh

    def restore(self, name: str, value: npt.NDArray[Any]) -> None:
        """Overwrite a stored value in place."""
        from onnx import numpy_helper

        self.stored[name].CopyFrom(numpy_helper.from_array(value, self.stored[name].name))

    def fresh(self, name: str) -> str:
        """``name``, or it with a number behind it, such that no tensor has it yet."""
        candidate, number = name, 0
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate

    def replace_nodes(self, old: Iterable[NodeProto], new: Mapping[int, Sequence[NodeProto]]) -> None:
        """Drop ``old`` nodes (by identity) and put new ones before the node at each index; then drop dead nodes."""

        gone = {id(node) for node in old}
        nodes: list[NodeProto] = []
        for index, node in enumerate(self.nodes):
            nodes += new.get(index, ())
            if id(node) not in gone:
                nodes.append(node)
        kept = [_copied(node) for node in nodes]
        del self.model.graph.node[:]
        self.model.graph.node.extend(kept)
        self.prune()

    def index_of(self, node: NodeProto) -> int:
        """The position of a node of this graph."""
        return next(index for index, other in enumerate(self.nodes) if other is node)

    def prune(self) -> None:
        """Remove nodes and initializers that no output needs, and value infos of vanished tensors."""
        needed, keep = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                keep.append(_copied(node))
                needed.update(name for name in (*node.input, *outer_names(node)) if name)
        graph = self.model.graph
        del graph.node[:]
        graph.node.extend(reversed(keep))
        _retain(graph.initializer, needed)
        made = {name for node in graph.node for name in node.output}
        _retain(graph.value_info, made)
        self.reindex()

    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shapes of all tensors that ONNX can infer; unknown dimensions are None."""
        from onnx import shape_inference

        graph = shape_inference.infer_shapes(self.model).graph
        known = {name: tuple(tensor.dims) for name, tensor in self.stored.items()}
        for item in (*graph.value_info, *graph.input, *graph.output):
            if item.type.tensor_type.HasField("shape"):
                dims = item.type.tensor_type.shape.dim
                known[item.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
        return known

    @property
    def tensor_names(self) -> frozenset[str]:
        """Every tensor of the main graph."""
        return frozenset({*self.makers, *self.stored, *self.inputs})


def _copied(node: NodeProto) -> NodeProto:
    from onnx import NodeProto

    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def _retain(items: Any, names: set[str]) -> None:
    for index in reversed(range(len(items))):
        if items[index].name not in names:
            del items[index]


def outer_names(node: NodeProto) -> Iterator[str]:
    """Names that the subgraphs of a node read, their own tensors included."""
    for attr in node.attribute:
        for graph in (*([attr.g] if attr.HasField("g") else []), *attr.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from outer_names(inner)


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or the default."""
    from onnx import helper

    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
