"""Cuts single operators out of the model that the provider gets, with the Q/DQ pairs around them. It compiles nothing.

Types and values stay as they are in the model; where a size is not known nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from deploykit.encodings.cut import part_of
from deploykit.model.collect import facts_of
from deploykit.model.graph import GraphCopy, copy_of, view_of
from deploykit.model.nodes import bodies

__all__ = ["PAIR", "Excerpt", "Excerpts", "KernelRuns", "anonymous", "renamed", "with_conversions"]

PAIR = ("QuantizeLinear", "DequantizeLinear")

# Operators that are looked at together.
_LONGEST_RUN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A model of some operators alone; ``operators`` counts them without the pairs around."""

    model: ModelProto
    operators: int


class Excerpts:
    """One prepared model to cut from; the indexes are made once."""

    def __init__(self, model: ModelProto) -> None:
        self._graph = view_of(model)
        self._types = {
            name: helper.make_tensor_value_info(name, TensorProto.DataType.Value(fact.dtype.upper()), fact.shape)
            for name, fact in facts_of(model).tensors.items()
            if fact.dtype
        }
        self._positions = {id(node): index for index, node in enumerate(self._graph.nodes)}

    def makers(self, tensors: Iterable[str], op_types: Iterable[str]) -> tuple[int, ...]:
        """Positions of the nodes of these types that make these tensors, the float form of an output included."""
        kinds, found = frozenset(op_types), dict[int, None]()
        for name in tensors:
            node = self._graph.makers.get(name)
            while node is not None and node.op_type in PAIR and node.op_type not in kinds:
                node = self._graph.makers.get(node.input[0])
            if node is not None and node.op_type in kinds:
                found[self._positions[id(node)]] = None
        return tuple(found)

    def cut(self, positions: Sequence[int]) -> Excerpt | None:
        """These nodes with their pairs as a model; None where a tensor at its border has no static shape."""
        wanted = dict.fromkeys(positions)
        outputs: dict[str, None] = {}
        for position in positions:
            node = self._graph.nodes[position]
            for name in node.input:
                wanted.update(dict.fromkeys(self._pair_before(name)))
            for name in node.output:
                behind, seen = self._pairs_behind(name)
                wanted.update(dict.fromkeys(seen))
                outputs.update(dict.fromkeys(behind or ((name,) if name else ())))
        made = {name for position in wanted for name in self._graph.nodes[position].output}
        read = {name for position in wanted for name in self._graph.nodes[position].input}
        ends = [name for name in outputs if name not in read or name in self._graph.outputs]
        part = part_of(self._graph, wanted, ends or [*outputs], name="excerpt", types=self._types)
        if not made or not all(_is_static(item) for item in (*part.graph.input, *part.graph.output)):
            return None
        return Excerpt(model=part, operators=len(set(positions)))

    def _pair_before(self, name: str) -> Iterator[int]:
        """The DequantizeLinear that makes a tensor, and the QuantizeLinear before it."""
        node = self._graph.makers.get(name)
        for kind in reversed(PAIR):
            if node is None or node.op_type != kind:
                return
            yield self._positions[id(node)]
            node = self._graph.makers.get(node.input[0])

    def _pairs_behind(self, name: str) -> tuple[list[str], list[int]]:
        """(results, positions) of the pairs that read a tensor."""
        ends, seen = list[str](), list[int]()
        for quantize in self._graph.readers(name) if name else ():
            if quantize.op_type != "QuantizeLinear":
                continue
            seen.append(self._positions[id(quantize)])
            for dequantize in self._graph.readers(quantize.output[0]):
                if dequantize.op_type == "DequantizeLinear":
                    seen.append(self._positions[id(dequantize)])
                    ends.append(dequantize.output[0])
        return ends, seen


def _is_static(item: ValueInfoProto) -> bool:
    tensor = item.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


class KernelRuns:
    """Which operators of one graph are one kernel, by their positions; ``static`` are tensors that no input decides."""

    def __init__(self, graph: GraphCopy, static: Collection[str]) -> None:
        self._graph, self._static = graph, static
        self._positions = {id(node): index for index, node in enumerate(graph.nodes)}

    def computes(self, node: NodeProto) -> bool:
        """True for operators on something that an input decides."""
        return node.op_type not in (*PAIR, "Constant") and any(name not in self._static for name in node.input if name)

    def alone(self, index: int) -> tuple[int, ...]:
        """The operator, with those that no pair parts from it: a layer and the sum behind it are one kernel.

        Where no pair stands behind the last of them either, they compute in float, each by itself.
        """
        run = [self._graph.nodes[index]]
        while len(run) < _LONGEST_RUN:
            before = next((made for name in run[0].input if (made := self._unpaired(name)) is not None), None)
            if before is None:
                break
            run.insert(0, before)
        while not any(reader.op_type == "QuantizeLinear" for reader in self._graph.readers(run[-1].output[0])):
            readers = self._graph.readers(run[-1].output[0])
            if len(readers) != 1 or len(run) == _LONGEST_RUN or not self.computes(readers[0]):
                return (index,)
            run.append(readers[0])
        return self._places(run) if self._reads_pair(run[0]) else (index,)

    def inside(self, index: int) -> tuple[int, ...]:
        """The operator that makes its first computed input, itself, and the only one that reads its result."""
        node = self._graph.nodes[index]
        before = next((maker for name in node.input if (maker := self._maker(name)) is not None), None)
        readers = [reader for reader in self._readers(node.output[0]) if reader.op_type not in PAIR]
        around = [before, node, readers[0] if len(readers) == 1 else None]
        return self._places([one for one in around if one is not None and self.computes(one)])

    def _places(self, nodes: Collection[NodeProto]) -> tuple[int, ...]:
        return tuple(self._positions[id(node)] for node in nodes)

    def _unpaired(self, name: str) -> NodeProto | None:
        """What makes a tensor, where no pair stands behind it and there is one in front of what it reads."""
        node = self._graph.makers.get(name)
        if node is None or not self.computes(node) or len(self._graph.readers(name)) != 1:
            return None
        return node if self._reads_pair(node) else None

    def _reads_pair(self, node: NodeProto) -> bool:
        makers = (self._graph.makers.get(name) for name in node.input)
        return any(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)

    def _maker(self, name: str) -> NodeProto | None:
        """What makes a tensor, through the pairs; None for inputs and what is stored."""
        node = self._graph.makers.get(name)
        while node is not None and node.op_type in PAIR:
            node = self._graph.makers.get(node.input[0])
        return node

    def _readers(self, name: str) -> Iterator[NodeProto]:
        for reader in self._graph.readers(name):
            if reader.op_type in PAIR:
                yield from self._readers(reader.output[0])
            else:
                yield reader


def with_conversions(model: ModelProto, ends: Collection[str]) -> ModelProto:
    """The excerpt between float32 borders, but for those of its tensors that are ``ends`` of the whole model.

    What is given to a graph in float16 is not what lies in its midst: an AveragePool of QAIRT 2.51 that reads it so is
    off by half its range, and right behind a conversion.
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
    """A copy whose tensors and nodes have other names; declarations of inner tensors go."""
    copy = copy_of(model)
    graph = copy.graph
    for item in graph.input:
        item.name = name(item.name)
    for number, node in enumerate(graph.node):
        node.input[:] = [name(one) for one in node.input]
        node.output[:] = [name(one) for one in node.output]
        node.name = node_name(number, node)
    for tensor in graph.initializer:
        tensor.name = name(tensor.name)
    for item in graph.output:
        item.name = name(item.name)
    del graph.value_info[:]
    return copy


def anonymous(model: ModelProto) -> bytes:
    """The bytes of a model with every name replaced by a number: equal for layers that differ in their names only."""
    if any(True for node in model.graph.node for _ in bodies(node)):
        return bytes(model.SerializeToString(deterministic=True))  # inner graphs read names of the outer one
    numbers: dict[str, str] = {"": ""}
    copy = renamed(model, lambda name: numbers.setdefault(name, str(len(numbers))), lambda *_: "")
    for node in copy.graph.node:
        node.doc_string = ""
    copy.producer_name = copy.producer_version = copy.doc_string = copy.graph.name = copy.graph.doc_string = ""
    return bytes(copy.SerializeToString(deterministic=True))
