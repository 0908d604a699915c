"""Which operators of a prepared graph are one kernel, and which stand around one. It cuts and runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from deploykit_ort_qnn.excerpts import PAIR

if TYPE_CHECKING:
    from onnx import NodeProto

    from deploykit.model.graph import GraphCopy

__all__ = ["Runs"]

_MOST = 3
"""Operators that are looked at together."""


class Runs:
    """The operators of one graph, by their positions; ``static`` are the tensors that no input decides."""

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
        node: NodeProto | None = self._graph.nodes[index]
        run: list[NodeProto] = []
        while node is not None and len(run) < _MOST:
            run.insert(0, node)
            node = next((made for name in node.input if (made := self._unpaired(name)) is not None), None)
        while not self._is_paired(run[-1]):
            readers = self._graph.readers(run[-1].output[0])
            if len(readers) != 1 or len(run) == _MOST or not self.computes(readers[0]):
                return (index,)
            run.append(readers[0])
        return self._places(run if any(map(self._reads_pair, run[:1])) else [self._graph.nodes[index]])

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

    def _is_paired(self, node: NodeProto) -> bool:
        return any(reader.op_type == "QuantizeLinear" for reader in self._graph.readers(node.output[0]))

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
