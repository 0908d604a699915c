"""Cuts single operators out of the model that the provider gets, with the Q/DQ pairs around them. It compiles nothing.

Types and values stay as they are in the model; where a size is not known nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from deploykit.encodings.cut import part_of
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import copy_of, view_of
from deploykit.model.nodes import bodies

__all__ = ["PAIR", "Excerpt", "Excerpts", "anonymous"]

PAIR = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A model of some operators alone; ``operators`` counts them without the pairs around."""

    model: ModelProto
    operators: int


class Excerpts:
    """One prepared model to cut from; the indexes are made once."""

    def __init__(self, model: ModelProto) -> None:
        self._graph = view_of(model)
        self._facts = facts_of(model)
        self._types = _types(self._facts)
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
        border = (*part.graph.input, *part.graph.output)
        if not made or any(not _is_static(item) for item in border):
            return None
        return Excerpt(model=part, operators=len(set(positions)))

    def _pair_before(self, name: str) -> tuple[int, ...]:
        """The DequantizeLinear that makes a tensor, and the QuantizeLinear before it."""
        found = []
        node = self._graph.makers.get(name)
        for kind in reversed(PAIR):
            if node is None or node.op_type != kind:
                break
            found.append(self._positions[id(node)])
            node = self._graph.makers.get(node.input[0])
        return tuple(found)

    def _pairs_behind(self, name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
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
        return tuple(ends), tuple(seen)


def _types(facts: GraphFacts) -> dict[str, ValueInfoProto]:
    """Declarations of every tensor whose type is known; of unknown shape where that is not."""
    found = {}
    for name, fact in facts.tensors.items():
        if fact.dtype:
            kind = TensorProto.DataType.Value(fact.dtype.upper())
            found[name] = helper.make_tensor_value_info(name, kind, fact.shape)
    return found


def _is_static(item: ValueInfoProto) -> bool:
    tensor = item.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def anonymous(model: ModelProto) -> bytes:
    """The bytes of a model with every name replaced by a number: equal for layers that differ in their names only."""
    copy = copy_of(model)
    graph = copy.graph
    if any(True for node in graph.node for _ in bodies(node)):
        return bytes(model.SerializeToString(deterministic=True))  # inner graphs read names of the outer one
    numbers: dict[str, str] = {"": ""}

    def number(name: str) -> str:
        return numbers.setdefault(name, str(len(numbers)))

    for item in graph.input:
        item.name = number(item.name)
    for node in graph.node:
        _rename(node, number)
    for tensor in graph.initializer:
        tensor.name = number(tensor.name)
    for item in graph.output:
        item.name = number(item.name)
    del graph.value_info[:]
    copy.producer_name = copy.producer_version = copy.doc_string = graph.name = graph.doc_string = ""
    return bytes(copy.SerializeToString(deterministic=True))


def _rename(node: NodeProto, number: Callable[[str], str]) -> None:
    node.input[:] = [number(name) for name in node.input]
    node.output[:] = [number(name) for name in node.output]
    node.name = node.doc_string = ""
