"""Runs the pieces of a package in order: what is judged are the outputs of the model as it was given.

A piece is a compiled context, a quantized or a float model, or the tail that stays on the host. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from deploykit.accuracy.simulate.sessions import Feed

__all__ = ["Chain", "Runs"]

_Values: TypeAlias = dict[str, npt.NDArray[Any]]


class Runs(Protocol):
    """One piece: a ``Session``, a ``Simulator``, or what a device gives."""

    def runs(self, feeds: Sequence[Feed]) -> Sequence[Feed]:
        """The outputs for each sample; what it does not read is passed over."""


class Chain:
    """Pieces in order; each reads the model's inputs and what the pieces before it made, by name."""

    def __init__(self, pieces: Iterable[Runs]) -> None:
        self._pieces = tuple(pieces)

    def runs(self, feeds: Sequence[Feed]) -> list[_Values]:
        """Every input and everything that was made, for each sample."""
        known: list[_Values] = [dict(feed) for feed in feeds]
        for piece in self._pieces:
            for values, made in zip(known, piece.runs(known), strict=True):
                values.update(made)
        return known

    def run(self, feed: Feed) -> _Values:
        """``runs`` for one sample."""
        return self.runs([feed])[0]
