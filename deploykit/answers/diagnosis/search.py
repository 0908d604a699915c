"""Finds many literal fragments in one pass over big windows; what a fragment means is not its business."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from deploykit.answers.diagnosis.text import Window

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FragmentSearch", "Spot", "search_for"]

_GRAM = 4
_FACTORS = (31, 157, 2053, 1)
_TABLE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One fragment in one window: how often it starts in the new region, and where, as far as it was asked for."""

    fragment: bytes
    count: int
    positions: tuple[int, ...]


class FragmentSearch:
    """Searches windows for folded fragments of at least four bytes.

    Every window is first reduced to the set of its four-byte grams (hashed to 16 bits); only a fragment whose grams
    all occur is looked for with ``bytes.count``. The work per byte does not grow with the number of fragments.
    """

    def __init__(self, fragments: Iterable[bytes]) -> None:
        self._fragments = sorted(set(fragments))
        lengths = np.array([len(fragment) for fragment in self._fragments], np.int64)
        ends = np.cumsum(lengths)
        every = _hash(np.frombuffer(b"".join(self._fragments), np.uint8))
        across = (ends[:-1, None] - np.arange(1, _GRAM)[None, :]).ravel()  # grams that reach into the next fragment
        self._grams: npt.NDArray[np.uint16] = np.delete(every, across)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths - _GRAM + 1)[:-1]])

    def spots(self, window: Window, *, wanted: dict[bytes, int]) -> Iterator[Spot]:
        """The fragments that start in the window's new region.

        ``wanted`` says how many positions of a fragment to list; a negative number leaves the fragment out.
        """
        for index in self._candidates(window.folded):
            fragment = self._fragments[index]
            room = wanted.get(fragment, 0)
            if room < 0:
                continue
            stop = window.stop + len(fragment) - 1
            count = window.folded.count(fragment, window.start, stop)
            if count:
                positions = tuple(_positions(window.folded, fragment, window.start, stop, room))
                yield Spot(fragment=fragment, count=count, positions=positions)

    def _candidates(self, data: bytes) -> list[int]:
        if not self._fragments or len(data) < _GRAM:
            return []
        present = np.zeros(_TABLE, np.bool_)
        present[_hash(np.frombuffer(data, np.uint8))] = True
        complete = np.logical_and.reduceat(present[self._grams], self._starts)
        return [int(index) for index in np.flatnonzero(complete)]


@lru_cache(maxsize=16)
def search_for(fragments: frozenset[bytes]) -> FragmentSearch:
    """The search for a set of fragments, made once: it holds no state of a log."""
    return FragmentSearch(fragments)


def _hash(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """One 16-bit number per four-byte gram; overflow is meant."""
    wide = data.astype(np.uint16)
    size = max(0, len(wide) - _GRAM + 1)
    total = np.zeros(size, np.uint16)
    for offset, factor in enumerate(_FACTORS):
        total += wide[offset : offset + size] * np.uint16(factor)
    return total


def _positions(data: bytes, fragment: bytes, start: int, stop: int, room: int) -> Iterator[int]:
    position = start
    for _ in range(room):
        position = data.find(fragment, position, stop)
        if position < 0:
            return
        yield position
        position += len(fragment)
