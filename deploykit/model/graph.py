"""The graph of a model: an index to read, or a copy that rewrites edit. It knows no rewrite.

Subgraphs of control flow count as readers of the tensors they take from outside.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy as copied
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, numpy_helper

from deploykit.errors import DefectError
from deploykit.findings.records import Names, Numbers, OpenShape, Shape, grouped
from deploykit.model.nodes import copy_of, names_read, opset_of
from deploykit.model.operators import is_standard, static_from
from deploykit.model.shape_inference import infer
from deploykit.model.values import dtype_name, is_heavy, named_tensors
from deploykit.model.weights import is_unreadable, stored_values
from deploykit.system.store import Kept, made_once

__all__ = ["GraphCopy", "GraphView", "view_of"]

T = TypeVar("T")


class GraphCopy(Kept):
    """Producers, readers and stored values of one graph. Call ``reindex`` after editing nodes.

    What was derived from the graph is kept until then.
    """

    def __init__(self, model: ModelProto, *, copy: bool = True) -> None:
        self.model = copy_of(model) if copy else model
        self.reindex()

    def reindex(self) -> None:
        """Build the index of the model's nodes again."""
        graph = self.model.graph
        self.stored = named_tensors(self.model)
        self.outputs = {item.name for item in graph.output}
        self.inputs = {item.name for item in graph.input} - self.stored.keys()
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self._readers = grouped((name, node) for node in graph.node for name in names_read(node))
        self._names: dict[str, int] | None = None  # with the last number that was appended
        self._derived = {}

    @property
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes in graph order."""
        nodes: Sequence[NodeProto] = self.model.graph.node
        return nodes

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return opset_of(self.model)

    def maker(self, name: str, *op_types: str) -> NodeProto | None:
        """The node that makes a tensor, if it is of one of the given standard types (any when none is given)."""
        return _of_types(self.makers.get(name), op_types)

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes that read a tensor, each once."""
        return self._readers.get(name, [])

    def uses(self, name: str) -> list[tuple[NodeProto, int]]:
        """The nodes that read a tensor as an input of their own, not only in a body, with each input position."""
        return [(node, at) for node in self.readers(name) for at, used in enumerate(node.input) if used == name]

    def only_reader(self, name: str, *op_types: str) -> NodeProto | None:
        """The single reader of a tensor that is no graph output, if it is of one of the given types; else None."""
        readers = self.readers(name)
        return _of_types(readers[0], op_types) if len(readers) == 1 and name not in self.outputs else None

    def array(self, name: str) -> Numbers | None:
        """The value of an initializer or Constant, also through Identity.

        None for computed tensors and data outside the model.
        """
        tensor = self.stored.get(self.origin(name))
        if tensor is None or is_unreadable(tensor):
            return None
        return stored_values(tensor)

    def origin(self, name: str, passed: Container[str] = ("Identity",)) -> str:
        """The tensor from which this one is made, looking through the first inputs of operators in ``passed``."""
        while (node := self.makers.get(name)) is not None and node.op_type in passed:
            name = node.input[0]
        return name

    @made_once
    def static(self) -> frozenset[str]:
        """The stored tensors and all that deterministic operators compute from them alone."""
        return static_from(self.stored, ((node, node.input, node.output) for node in self.nodes))

    def scalar(self, name: str) -> float | None:
        """The value of a stored tensor of one element as a float; None for any other tensor, which is not read."""
        tensor = self.stored.get(self.origin(name))
        value = self.array(name) if tensor is not None and math.prod(tensor.dims) == 1 else None
        return None if value is None or value.dtype.kind in "OSU" else float(value.reshape(()))

    def store(self, name: str, value: npt.ArrayLike) -> str:
        """Add an initializer under a fresh name derived from ``name``, and return the fresh name.

        A plain float is stored as float32, plain whole numbers in 64 bits: the type of shapes, axes and indices.
        """
        fresh, array = self.fresh(name), value
        if not isinstance(array, np.ndarray):
            array = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        self.model.graph.initializer.append(numpy_helper.from_array(array, fresh))
        self.stored[fresh] = self.model.graph.initializer[-1]
        return fresh

    def restore(self, name: str, value: Numbers) -> None:
        """Overwrite a stored value in place."""
        self.stored[name].CopyFrom(numpy_helper.from_array(value, self.stored[name].name))

    def fresh(self, name: str) -> str:
        """``name``, with a number appended where a tensor or node has it already."""
        if self._names is None:
            self._names = dict.fromkeys([*self.tensor_names, *(node.name for node in self.nodes)], 0)
        candidate, number = name, self._names.get(name, 0)
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names |= {name: number, candidate: 0}
        return candidate

    def replace_nodes(self, old: Iterable[NodeProto], new: Mapping[int, Sequence[NodeProto]]) -> None:
        """Drop ``old`` nodes (by identity) and put new ones before the node at each index; then drop dead nodes."""

        gone = {id(node) for node in old}
        nodes = list[NodeProto]()
        for index, node in enumerate(self.nodes):
            nodes += new.get(index, ())
            if id(node) not in gone:
                nodes.append(node)
        self.prune(nodes)

    def set_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Replace all nodes; stored values stay, even unused ones."""
        self._put(nodes)
        self.reindex()

    def _put(self, nodes: Iterable[NodeProto]) -> None:
        graph, kept = self.model.graph, list(nodes)
        before = len(graph.node)
        graph.node.extend(kept)  # extend copies: nodes that are kept may be among those deleted next
        del graph.node[:before]

    def index_of(self, node: NodeProto) -> int:
        """The position of a node of this graph."""
        return self._places[id(node)][0]

    @property
    @made_once
    def _places(self) -> Mapping[int, tuple[int, NodeProto]]:
        return {id(place[1]): place for place in enumerate(self.nodes)}  # an id holds while the node is kept

    def prune(self, nodes: Sequence[NodeProto] | None = None) -> None:
        """Remove nodes and initializers that no output needs, and value infos of vanished tensors.

        ``nodes`` replace the present ones. The default of a graph input stays: without it the input would be required.
        """
        graph = self.model.graph
        needed, keep = {item.name for item in graph.output}, []
        for node in reversed(self.nodes if nodes is None else nodes):
            if needed & set(node.output):
                keep.append(node)
                needed.update(names_read(node))
        self._put(reversed(keep))
        made = {name for node in graph.node for name in node.output}
        items: Any
        for items, named in ((graph.initializer, needed | {one.name for one in graph.input}), (graph.value_info, made)):
            for index in reversed(range(len(items))):
                if items[index].name not in named:
                    del items[index]
        self.reindex()

    @property
    @made_once
    def types(self) -> Mapping[str, tuple[str, OpenShape]]:
        """Element type and shape of inputs and computed tensors by name, as far as onnx can infer them."""
        return infer(self.model).types

    def type_of(self, name: str) -> tuple[str, OpenShape]:
        """Element type and shape of any tensor, "" and None where they are not known.

        An open size is a name or None.
        """
        tensor = self.stored.get(name)
        if tensor is not None:
            return dtype_name(tensor.data_type), tuple(tensor.dims)
        return self.types.get(name, ("", None))

    def dtype(self, name: str) -> str:
        """The element type of a tensor, "" where it is not known."""
        return self.type_of(name)[0]

    def shape(self, name: str) -> OpenShape:
        """The shape of a tensor with its open sizes, None where not even the rank is known."""
        return self.type_of(name)[1]

    def static_shape(self, name: str) -> Shape | None:
        """The shape of a tensor where every size is a known number, else None."""
        shape: Any = self.shape(name)
        return shape if shape is not None and {*map(type, shape)} <= {int} else None

    @property
    def tensor_names(self) -> frozenset[str]:
        """Every tensor of the main graph."""
        return frozenset({*self.makers, *self.stored, *self.inputs})


class GraphView(GraphCopy):
    """The index of a model that is read and never edited; the views of one model share it."""

    def _put(self, nodes: Iterable[NodeProto]) -> None:
        del nodes
        raise DefectError("the nodes of a graph that is only looked through were to be replaced")


_VIEWS: list[tuple[bytes, GraphView]] = []
_MOST_VIEWS = 6


def view_of(model: ModelProto) -> GraphView:
    """The view of a model; its nodes are read once for as long as the model stays the same.

    Twenty matchers look through one graph, one after the other. The owner of a message may change it at any time, so
    its bytes tell whether the index still holds. Each caller has its own fresh names.
    """
    if is_heavy(model):
        return GraphView(model, copy=False)
    content = model.SerializeToString()
    at = next((number for number, (_, view) in enumerate(_VIEWS) if view.model is model), None)
    known, view = (b"", None) if at is None else _VIEWS.pop(at)
    if view is None or known != content:
        view = GraphView(model, copy=False)
        for text, other in _VIEWS:
            if text == content and other.known("facts"):  # facts are values: they hold for any model of the same bytes
                view.keep("facts", other.known("facts"))
    _VIEWS.append((content, view))
    del _VIEWS[:-_MOST_VIEWS]
    return copied(view)


def _of_types(node: NodeProto | None, op_types: Names) -> NodeProto | None:
    """The node if it is of one of the given standard types (any when none is given), else None."""
    fits = not op_types or (node is not None and node.op_type in op_types and is_standard(node))
    return node if fits else None
