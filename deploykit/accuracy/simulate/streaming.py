"""Runs a model whose weights lie in files group by group: each group is opened once, for all samples, and let go.

What is in memory at a time is one group's weights and, of each sample, what later groups read. Results are those of the
whole model, bit for bit. It opens no runtime itself: what opens a group is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import helper

from deploykit.accuracy.simulate.graph_pieces import GraphPieces
from deploykit.model.values import byte_size
from deploykit.model.weights import stored_values

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["StreamedModel", "may_stream"]

_Values: TypeAlias = dict[str, npt.NDArray[Any]]


class _Opened(Protocol):
    """An opened group."""

    inputs: frozenset[str]

    def runs(self, feeds: Sequence[Mapping[str, npt.NDArray[Any]]]) -> list[_Values]:
        """Its outputs by name, for each sample."""


_Open: TypeAlias = Callable[["ModelProto"], _Opened]


def may_stream(model: ModelProto) -> bool:
    """False for models with weights or results of a kind that no group can be cut around."""
    graph = model.graph
    tensors = all(item.type.WhichOneof("value") in ("tensor_type", None) for item in (*graph.input, *graph.output))
    known = {entry.domain for entry in model.opset_import} <= {"", "ai.onnx", "com.microsoft"}
    return tensors and known and not graph.sparse_initializer


class StreamedModel:
    """A model cut into groups of at most ``room`` bytes of weights; ``wanted`` are the tensors that runs return."""

    def __init__(self, model: ModelProto, wanted: Sequence[str], open_group: _Open, *, room: int) -> None:
        self.wanted = tuple(wanted)
        self._open = open_group
        self._pieces = GraphPieces(model, wanted, room=room)
        self.inputs = frozenset(self._pieces.inputs)
        self._declared = {item.name: item for item in model.graph.input}
        self._last = _last_uses(self._pieces, self.wanted)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self._pieces.pieces)

    @property
    def largest(self) -> int:
        """The bytes of the weights of the largest group."""
        stored, holds = self._pieces.stored, self._pieces.holds
        groups = ({name for place in piece for name in holds[place]} for piece in self._pieces.pieces)
        return max((sum(byte_size(stored[name], name) for name in names) for names in groups), default=0)

    def runs(self, feeds: Sequence[Mapping[str, npt.NDArray[Any]]]) -> list[_Values]:
        """The wanted tensors of each sample. Raises whatever opening and running a group raises."""
        kept = [{name: np.asarray(feed[name]) for name in self._pieces.inputs} for feed in feeds]
        types: dict[str, int] = {}
        for number in range(self.groups if feeds else 0):
            _learn(types, kept[0])
            self._run(number, kept, types)
            for values in kept:
                for name in self._last.get(number, ()):
                    values.pop(name, None)
        return [{name: self._value(name, values) for name in self.wanted} for values in kept]

    def _run(self, number: int, kept: Sequence[_Values], types: Mapping[str, int]) -> None:
        """One group on all samples; it is let go when this returns."""
        pieces, outputs = self._pieces, self._pieces.crossing[number]
        if outputs:
            places = pieces.pieces[number]
            model = pieces.model_of(places, outputs, stored=pieces.stored, types=types, declared=self._declared)
            group = self._open(model)
            for values in kept:
                values.update(*group.runs([{name: values[name] for name in group.inputs}]))

    def _value(self, name: str, values: _Values) -> npt.NDArray[Any]:
        return values[name] if name in values else np.array(stored_values(self._pieces.stored[name]))


def _learn(types: dict[str, int], values: _Values) -> None:
    for name, value in values.items():
        if name not in types:
            types[name] = helper.np_dtype_to_tensor_dtype(value.dtype)


def _last_uses(pieces: GraphPieces, wanted: Sequence[str]) -> dict[int, list[str]]:
    """After which group each computed tensor is no longer needed; what is wanted stays."""
    last: dict[str, int] = {}
    for place, names in enumerate(pieces.reads):
        last.update(dict.fromkeys(names, pieces.piece_of[place]))
    found: dict[int, list[str]] = {}
    for name, number in last.items():
        if name not in wanted:
            found.setdefault(number, []).append(name)
    return found
