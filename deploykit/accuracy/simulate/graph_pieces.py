"""Cuts a graph into pieces of consecutive nodes and makes a small model of any of its nodes.

It knows names and nodes: no values, no encodings, and it runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from deploykit.findings.records import grouped
from deploykit.model.nodes import copy_of, empty_like, names_read
from deploykit.model.operators import Trait, has, is_standard
from deploykit.model.values import byte_size, constant_tensor

__all__ = ["GraphPieces"]

_LEAST_NODES = 8
_TENSORS_OF_SEQUENCES = ("ConcatFromSequence", "SequenceAt", "SequenceLength")
"""Operators on sequences that give tensors; the others give sequences, which no model takes as an array."""


class GraphPieces:
    """The nodes of a main graph without its constants, and which piece each belongs to.

    ``stored`` are initializers and constants by name, ``reads`` and ``holds`` the computed and the stored tensors that
    each node reads, bodies of control flow included. ``crossing`` names, for each piece, the tensors that it makes and
    that later pieces read or ``wanted`` names. A sequence never crosses. A piece has about ``size`` nodes. With
    ``room`` it has at most ``size`` nodes and ``room`` bytes of stored tensors, and is cut where few tensors cross; a
    node is never cut.
    """

    def __init__(self, model: ModelProto, wanted: Iterable[str], *, size: int = 0, room: int = 0) -> None:
        self._model = model
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self.nodes: list[NodeProto] = []
        for node in model.graph.node:
            held = constant_tensor(node) if node.op_type == "Constant" and is_standard(node) else None
            if held is None:
                self.nodes.append(node)
            else:
                self.stored[node.output[0]] = copy = copy_of(held)
                copy.name = node.output[0]
        read = [*map(names_read, self.nodes)]
        self.reads = [tuple(name for name in names if name not in self.stored) for names in read]
        self.holds = [tuple(name for name in names if name in self.stored) for names in read]
        self.makers = {name: place for place, node in enumerate(self.nodes) for name in node.output if name}
        self.inputs = tuple(item.name for item in model.graph.input if item.name not in self.stored)
        makers = [n for n in self.nodes if has(n, Trait.ON_SEQUENCES) and n.op_type not in _TENSORS_OF_SEQUENCES]
        self.opaque = frozenset(name for node in makers for name in node.output)
        size = size or max(_LEAST_NODES, round(math.sqrt(len(self.nodes))))
        cut = self._cut_by_bytes(room, size) if room else self._cut(size)
        self.pieces = tuple(filter(None, cut))  # without an empty rest
        self.piece_of = [number for number, piece in enumerate(self.pieces) for _ in piece]
        self.last: dict[str, int] = {}  # the last piece that reads each computed tensor
        for place, names in enumerate(self.reads):
            self.last.update(dict.fromkeys(names, self.piece_of[place]))
        asked = frozenset(wanted)
        self.crossing = tuple(
            tuple(name for name in self.made(piece) if self.last.get(name, -1) > number or name in asked)
            for number, piece in enumerate(self.pieces)
        )

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The nodes that read each tensor, computed or stored."""
        read = enumerate(zip(self.reads, self.holds, strict=True))
        return grouped((name, place) for place, names in read for name in chain(*names))

    def _cut(self, size: int) -> Iterator[range]:
        """Runs of at least ``size`` nodes, longer where a sequence would cross."""
        last = {name: place for place, names in enumerate(self.reads) for name in names if name in self.opaque}
        start, held = 0, -1
        for place, node in enumerate(self.nodes):
            held = max([held, *(last.get(name, -1) for name in node.output)])
            if place + 1 - start >= size and held <= place:
                yield range(start, place + 1)
                start = place + 1
        yield range(start, len(self.nodes))

    def _cut_by_bytes(self, room: int, most: int) -> Iterator[range]:
        """Pieces of at most ``most`` nodes and ``room`` bytes.

        Each ends in its second half, where fewest tensors cross, if a cut is allowed there.
        """
        # How many computed tensors are still to be read behind each node, and whether one of them is a sequence.
        last = {name: place for place, names in enumerate(self.reads) for name in names}
        changes, opaque = [0] * (len(self.nodes) + 1), [0] * (len(self.nodes) + 1)
        for name, maker in self.makers.items():
            for counts in (changes, opaque) if name in self.opaque else (changes,):
                counts[maker] += 1
                counts[last.get(name, maker)] -= 1
        alive, may_cut = list(accumulate(changes)), [count == 0 for count in accumulate(opaque)]
        start, place, held, names = 0, 0, 0, set[str]()
        while place < len(self.nodes):
            fresh = [name for name in self.holds[place] if name not in names]
            more = sum(byte_size(self.stored[name], name) for name in fresh)
            is_full = held + more > room or place - start >= most
            ends = [end for end in range(start, place) if may_cut[end]] if is_full else []
            if ends:
                late = [end for end in ends if end >= (start + place) // 2] or ends
                end = min(reversed(late), key=alive.__getitem__)
                yield range(start, end + 1)
                start, place, held, names = end + 1, end + 1, 0, set()
            else:
                held, place = held + more, place + 1
                names.update(fresh)
        yield range(start, len(self.nodes))

    def made(self, places: Iterable[int]) -> list[str]:
        """The tensors that some nodes make, in graph order; sequences are left out."""
        return [name for place in places for name in self.nodes[place].output if name and name not in self.opaque]

    def model_of(
        self,
        places: Sequence[int],
        outputs: Sequence[str],
        *,
        stored: Mapping[str, TensorProto],
        types: Mapping[str, int],
        declared: Mapping[str, ValueInfoProto] | None = None,
    ) -> ModelProto:
        """The model of some nodes: inputs are what they read from outside, of the ONNX element ``types``.

        ``stored`` holds the values of stored tensors to use, ``declared`` the inputs whose shape must be kept.
        """
        made = set(self.made(places))
        part = empty_like(self._model)
        part.graph.node.extend(self.nodes[place] for place in places)
        held = dict.fromkeys(name for place in places for name in self.holds[place])
        part.graph.initializer.extend(stored[name] for name in held)
        read = dict.fromkeys(name for place in places for name in self.reads[place])
        outside = [name for name in read if name not in made and name not in self.opaque]
        known = declared or {}
        part.graph.input.extend(
            known[name] if name in known else helper.make_tensor_value_info(name, types[name], None) for name in outside
        )
        part.graph.output.extend(ValueInfoProto(name=name) for name in outputs)
        return part
