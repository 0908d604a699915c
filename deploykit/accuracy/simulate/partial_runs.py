"""Runs a model once on samples, then again only from the tensors that change to the outputs, as often as asked.

The graph is cut into pieces. For a change, the pieces in which it happens are run with other quantizers on the values
that were kept, and then the later pieces of which an input differs. Results are those of whole runs, bit for bit.
Memory grows linearly with the graph: what crosses between pieces, and one piece's inner values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from onnx import ModelProto, TensorProto, helper

from deploykit.accuracy.simulate.graph_pieces import GraphPieces
from deploykit.accuracy.simulate.quantizers import RAW, quantized_tensor
from deploykit.accuracy.simulate.sessions import Session, check_feed, on_grid
from deploykit.encodings.values import Value
from deploykit.findings.records import Arrays, Feeds, Numbers
from deploykit.model.values import byte_size
from deploykit.model.weights import is_mapped, stored_values
from deploykit.system.limits import memory_budget

__all__ = ["PartialRuns"]

Change: TypeAlias = Mapping[str, Value | None]
"""The quantizers of some tensors that differ from the kept run; None for no quantizer."""

_SHARES = 16
"""Opened weights may take the memory budget divided by this.

Each is in memory several times, and two runs of a model, float and quantized, are held side by side.
"""

_Values: TypeAlias = dict[str, Numbers]


class PartialRuns:
    """A model with some quantizers (``values`` by tensor) on samples. ``wanted`` are the tensors that runs return.

    Weights must be loaded. ``bytes_per_sample`` is what is kept of one sample. Raises InputError where a sample does
    not fit the inputs or a value does not fit its tensor.
    """

    def __init__(
        self,
        model: ModelProto,
        feeds: Feeds,
        *,
        wanted: Sequence[str],
        values: Mapping[str, Value] | None = None,
        size: int = 0,
    ) -> None:
        self.wanted = tuple(wanted)
        self.graph = GraphPieces(model, wanted, size=size)
        self._values = dict(values or {})
        self.feeds = feeds
        self._stored = {
            name: quantized_tensor(tensor, self._values.get(name)) for name, tensor in self.graph.stored.items()
        }
        self._room = memory_budget() // _SHARES
        self._types: dict[str, int] = {}
        self._whole: dict[int, Session] = {}
        self._inner: tuple[int, list[_Values]] = (-1, [])
        self._kept: list[_Values] = []
        for feed in feeds:
            check_feed(feed, self.graph.inputs)
            self._kept.append(self._crossing_values(feed))
        self.reference = [self._answers(kept) for kept in self._kept]

    @property
    def bytes_per_sample(self) -> int:
        """The bytes that are kept of one sample."""
        return sum(value.nbytes for value in self._kept[0].values()) if self._kept else 0

    def _crossing_values(self, feed: Arrays) -> _Values:
        kept = {name: on_grid(np.asarray(feed[name]), self._values.get(name)) for name in self.graph.inputs}
        self._learn(kept)
        for number in range(len(self.graph.pieces)):
            kept |= self._run(self._session_of(number), kept)
            self._learn({name: kept[name] for name in self.graph.crossing[number]})
        return kept

    def _learn(self, values: _Values) -> None:
        self._types |= {
            name: helper.np_dtype_to_tensor_dtype(value.dtype)
            for name, value in values.items()
            if name not in self._types
        }

    def _answers(self, values: Arrays) -> _Values:
        return {name: values[name] if name in values else stored_values(self._stored[name]) for name in self.wanted}

    def _session_of(self, number: int) -> Session:
        """The session of a whole piece, opened on its first use and kept while weights out of files leave room."""
        if number not in self._whole:
            places = self.graph.pieces[number]
            while self._whole and self._outside(*self._whole, number) > self._room:
                del self._whole[next(iter(self._whole))]
            self._whole[number] = self._open(places, self.graph.crossing[number], self._values, self._stored)
        return self._whole[number]

    def _outside(self, *numbers: int) -> int:
        """The bytes of the weights in files that some pieces read."""
        held = {name for number in numbers for place in self.graph.pieces[number] for name in self.graph.holds[place]}
        return sum(byte_size(self._stored[name], name) for name in held if is_mapped(self._stored[name]))

    def _open(
        self, places: Sequence[int], outputs: Sequence[str], values: Change, stored: Mapping[str, TensorProto]
    ) -> Session:
        part = self.graph.model_of(places, outputs, stored=stored, types=self._types)
        # Stored values are quantized already, except those that are read out of files.
        known = [n for place in places for n in self.graph.holds[place] if is_mapped(stored[n])]
        chosen = {name: value for name in (*known, *self.graph.made(places)) if (value := values.get(name)) is not None}
        return Session(part, values=chosen, room=self._room)

    def _run(self, session: Session, *values: Arrays) -> _Values:
        """The results of one session; each input is taken from the first mapping that has it."""
        feed = {name: next(known[name] for known in values if name in known) for name in session.inputs}
        return session.run(feed) if session.outputs else {}

    def inner_values(self, number: int) -> Sequence[Arrays]:
        """All tensors that one piece makes, for each sample.

        A tensor with a quantizer is there with its value before the quantizer too (``RAW``).
        """
        if self._inner[0] != number:
            places = self.graph.pieces[number]
            made = self.graph.made(places)
            raw = [name + RAW for name in made if name in self._values]
            session = self._open(places, [*made, *raw], self._values, self._stored)
            self._inner = (number, [self._run(session, kept) for kept in self._kept])
        return self._inner[1]

    def before_quantizer(self, name: str) -> list[Numbers]:
        """The values of a computed or fed tensor, for each sample, before any quantizer of its own."""
        if name in self.graph.inputs:
            return [np.asarray(feed[name]) for feed in self.feeds]
        inner = self.inner_values(self.graph.piece_of[self.graph.makers[name]])
        return [values.get(name + RAW, values[name]) for values in inner]

    def first_piece(self, names: Sequence[str]) -> int:
        """The first piece that a change of these tensors reaches; changes are best asked for in this order."""
        return min((self.graph.piece_of[place] for name in names for place in self._places(name)), default=0)

    def _places(self, name: str) -> Sequence[int]:
        maker = self.graph.makers.get(name)
        return self.graph.readers.get(name, ()) if maker is None else (maker,)

    def run(self, change: Change) -> list[_Values]:
        """The wanted tensors of each sample with other quantizers for some tensors.

        Names that the graph does not have change nothing.
        """
        fed = [name for name in change if name in self.graph.inputs]
        others = [name for name in change if name not in self.graph.inputs]
        touched = {self.graph.piece_of[place] for name in others for place in self._places(name)}
        # Per sample, the values that differ from the kept run.
        found = [{name: on_grid(np.asarray(feed[name]), change[name]) for name in fed} for feed in self.feeds]
        for number in range(self.first_piece(list(change)), len(self.graph.pieces)):
            if number in touched:
                places = self.graph.pieces[number]
                held = {name for place in places for name in self.graph.holds[place] if name in change}
                stored = {
                    **self._stored,
                    **{name: quantized_tensor(self.graph.stored[name], change[name]) for name in held},
                }
                session = self._open(places, self.graph.crossing[number], {**self._values, **change}, stored)
            else:
                session = self._session_of(number)
            for kept, new in zip(self._kept, found, strict=True):
                if number in touched or any(name in new for name in session.inputs):
                    for name, value in self._run(session, new, kept).items():
                        if value.shape != kept[name].shape or value.tobytes() != kept[name].tobytes():
                            new[name] = value
        return [self._answers({**kept, **new}) for kept, new in zip(self._kept, found, strict=True)]
