"""Cuts operators, with the Q/DQ pairs around them, out of the model that the provider gets. It compiles nothing.

Types and values stay as in the model. Nothing is cut at a tensor of unknown size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from deploykit.encodings.cut import infer_types, part_of
from deploykit.model.graph import view_of
from deploykit.model.nodes import bodies, copy_of

__all__ = ["HOLDING", "PAIR", "Pieces", "anonymous", "renamed", "with_conversions"]

PAIR = ("QuantizeLinear", "DequantizeLinear")
HOLDING = (*PAIR, "Constant")
"""Nodes that compute nothing: they only say in which form numbers are held."""

# How many operators are looked at together.
_LONGEST_RUN = 3


class Pieces:
    """One prepared model to cut from, and which of its operators form one
    kernel. Operators are named by their positions.

    The indexes are built once.
    """

    def __init__(self, model: ModelProto) -> None:
        self.graph = view_of(model)
        self.static = self.graph.static()
        self._at = {id(node): index for index, node in enumerate(self.graph.nodes)}
        self._types = infer_types(self.graph)

    def computes(self, node: NodeProto) -> bool:
        """True for an operator that reads a tensor which depends on an input."""
        return node.op_type not in HOLDING and any(name not in self.static for name in node.input if name)

    def makers(self, tensors: Iterable[str], op_types: Collection[str]) -> tuple[int, ...]:
        """Positions of the nodes of these types that make these tensors, seen through the pairs of an output."""
        found = (self._maker(name, op_types) for name in tensors)
        return tuple(
            dict.fromkeys(self._at[id(node)] for node in found if node is not None and node.op_type in op_types)
        )

    def _maker(self, name: str, op_types: Collection[str] = ()) -> NodeProto | None:
        """The node that makes a tensor, seen through pairs that are not in
        ``op_types``; None for inputs and stored tensors.
        """
        return self.graph.makers.get(self.graph.origin(name, {*PAIR}.difference(op_types)))

    def cut(self, positions: Sequence[int]) -> ModelProto | None:
        """The nodes with their pairs as a model; None if a tensor at its border has no static shape."""
        graph = self.graph
        nodes = {index: graph.nodes[index] for index in positions}
        ends = dict[str, None]()
        for node in tuple(nodes.values()):
            for name in node.input:
                maker = graph.makers.get(name)
                for kind in reversed(PAIR):
                    if maker is None or maker.op_type != kind:
                        break
                    nodes[self._at[id(maker)]] = maker
                    maker = graph.makers.get(maker.input[0])
            for name in filter(None, node.output):
                first = [reader for reader in graph.readers(name) if reader.op_type == PAIR[0]]
                second = [one for half in first for one in graph.readers(half.output[0]) if one.op_type == PAIR[1]]
                nodes |= {self._at[id(half)]: half for half in (*first, *second)}
                ends |= dict.fromkeys([half.output[0] for half in second] or [name])
        if not ends:
            return None
        read = {name for node in nodes.values() for name in node.input}
        outputs = [name for name in ends if name not in read or name in graph.outputs] or [*ends]
        part = part_of(graph, nodes, outputs, name="excerpt", types=self._types)
        for item in (*part.graph.input, *part.graph.output):
            tensor = item.type.tensor_type
            if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                return None
        return part

    def alone(self, index: int) -> tuple[int, ...]:
        """The operator, with its neighbours that no pair separates from it:
        a layer and the sum behind it are one kernel.

        If the last of them has no pair behind it either, they compute in float, each by itself.
        """
        run = [self.graph.nodes[index]]
        while len(run) < _LONGEST_RUN:
            makers = (self.graph.makers.get(name) for name in run[0].input if len(self.graph.readers(name)) == 1)
            before = next((made for made in makers if made and self.computes(made) and self._reads_pair(made)), None)
            if before is None:
                break
            run.insert(0, before)
        while not any(reader.op_type == PAIR[0] for reader in self.graph.readers(run[-1].output[0])):
            readers = self.graph.readers(run[-1].output[0])
            if len(readers) != 1 or len(run) == _LONGEST_RUN or not self.computes(readers[0]):
                return (index,)
            run.append(readers[0])
        return tuple(self._at[id(node)] for node in run) if self._reads_pair(run[0]) else (index,)

    def _reads_pair(self, node: NodeProto) -> bool:
        makers = (self.graph.makers.get(name) for name in node.input)
        return any(maker is not None and maker.op_type == PAIR[1] for maker in makers)

    def inside(self, index: int) -> tuple[int, ...]:
        """The operator that makes its first computed input, the operator itself, and the only reader of its result."""
        node = self.graph.nodes[index]
        before = next((maker for name in node.input if (maker := self._maker(name)) is not None), None)
        readers = [*self._readers(node.output[0])]
        around = (before, node, readers[0] if len(readers) == 1 else None)
        return tuple(self._at[id(one)] for one in around if one is not None and self.computes(one))

    def _readers(self, name: str) -> Iterator[NodeProto]:
        """The nodes that read a tensor, seen through the pairs."""
        for reader in self.graph.readers(name):
            if reader.op_type in PAIR:
                yield from self._readers(reader.output[0])
            else:
                yield reader


def with_conversions(model: ModelProto, ends: Collection[str]) -> ModelProto:
    """The piece with float32 instead of float16 borders, except for the model's own inputs and outputs (``ends``).

    A float16 graph input is not the same as a float16 tensor inside: in QAIRT 2.51 an AveragePool that reads such an
    input is off by half its range, and is right behind a conversion.
    """

    def is_half(value: ValueInfoProto) -> bool:
        return value.type.tensor_type.elem_type == TensorProto.FLOAT16 and value.name not in ends

    if not any(map(is_half, (*model.graph.input, *model.graph.output))):
        return model
    made = copy_of(model)
    graph = made.graph
    for value in filter(is_half, graph.input):
        name, value.name = value.name, f"{value.name} given"
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        graph.node.insert(0, helper.make_node("Cast", [value.name], [name], to=TensorProto.FLOAT16))
    for value in filter(is_half, graph.output):
        name, value.name = value.name, f"{value.name} taken"
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        graph.node.append(helper.make_node("Cast", [name], [value.name], to=TensorProto.FLOAT))
    return made


def renamed(model: ModelProto, name: Callable[[str], str], node_name: Callable[[int, NodeProto], str]) -> ModelProto:
    """A copy of the model whose tensors and nodes have other names, without the declarations of inner tensors."""
    copy = copy_of(model)
    graph = copy.graph
    # Inputs first: ``name`` may count.
    for item in graph.input:
        item.name = name(item.name)
    for number, node in enumerate(graph.node):
        node.input[:] = [name(one) for one in node.input]
        node.output[:] = [name(one) for one in node.output]
        node.name = node_name(number, node)
    for stored in (*graph.initializer, *graph.output):
        stored.name = name(stored.name)
    del graph.value_info[:]
    return copy


def anonymous(model: ModelProto) -> bytes:
    """The bytes of a model with every name replaced by a number: equal for layers that differ in their names only."""
    if any(True for node in model.graph.node for _ in bodies(node)):
        return bytes(model.SerializeToString(deterministic=True))  # inner graphs read names of the outer one
    numbers = {"": ""}
    copy = renamed(model, lambda name: numbers.setdefault(name, str(len(numbers))), lambda *_: "")
    for node in copy.graph.node:
        node.doc_string = ""
    copy.producer_name = copy.producer_version = copy.doc_string = copy.graph.name = copy.graph.doc_string = ""
    return bytes(copy.SerializeToString(deterministic=True))
