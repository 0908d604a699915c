"""Finds many literal fragments in one pass over big windows; what a fragment means is not its business."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from deploykit.diagnosis.text import Window

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FragmentSearch", "Spot"]

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
    """Searches windows for fragments of at least four bytes.

    Every window is first reduced to the set of its four-byte grams (hashed to 16 bits); only a fragment whose grams
    all occur is looked for with ``bytes.count``. The work per byte does not grow with the number of fragments.
    """

    def __init__(self, fragments: Iterable[bytes]) -> None:
        self._fragments = sorted(set(fragments))
        grams = [_hash(np.frombuffer(fragment, np.uint8)) for fragment in self._fragments]
        self._grams: npt.NDArray[np.uint16] = np.concatenate(grams) if grams else np.zeros(0, np.uint16)
        self._starts = np.cumsum([0, *(len(gram) for gram in grams[:-1])]) if grams else np.zeros(0, np.int64)

    def spots(self, window: Window, *, wanted: dict[bytes, int]) -> Iterator[Spot]:
        """The fragments that start in the window's new region.

        ``wanted`` says how many positions of a fragment to list; a negative number leaves the fragment out.
        """
        for index in self._candidates(window.data):
            fragment = self._fragments[index]
            room = wanted.get(fragment, 0)
            if room < 0:
                continue
            stop = window.stop + len(fragment) - 1
            count = window.data.count(fragment, window.start, stop)
            if count:
                positions = tuple(_positions(window.data, fragment, window.start, stop, room))
                yield Spot(fragment=fragment, count=count, positions=positions)

    def _candidates(self, data: bytes) -> list[int]:
        if not self._fragments or len(data) < _GRAM:
            return []
        present = np.zeros(_TABLE, np.bool_)
        present[_hash(np.frombuffer(data, np.uint8))] = True
        complete = np.logical_and.reduceat(present[self._grams], self._starts)
        return [int(index) for index in np.flatnonzero(complete)]


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
