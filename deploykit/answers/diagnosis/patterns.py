"""The patterns of known errors, and the search for thousands of them at once; it knows no cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["AnchorSearch", "anchor_of", "fold", "match_pattern", "shape_of"]

_GRAM = 4
_FACTORS = (31, 157, 2053, 1)  # odd and unlike, so that few grams share a number
_TABLE = 1 << 16
_REACH = 4096  # so many bytes of a long line are looked at on either side of an anchor
_FIELD = re.compile(r"\{(\w+)(:n)?\}|…")
_ENDS_IN_NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d+)$")
_FOLD = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
_SHAPE = bytes(48 if 48 <= byte <= 57 else byte for byte in _FOLD)


def fold(data: bytes) -> bytes:
    """Text without its case, of the same length; letters beyond ASCII stay as they are.

    >>> fold(b"Failed to LOAD skel")
    b'failed to load skel'
    """
    return data.translate(_FOLD)


def shape_of(data: bytes) -> bytes:
    """Text without its case and with each digit as 0, of the same length: lines that differ in numbers are one."""
    return data.translate(_SHAPE)


@cache
def anchor_of(text: str) -> bytes:
    """The longest literal piece of a pattern, as a shape: a line without it cannot match."""
    pieces = [piece.strip() if _FIELD.search(text) else piece for piece in _literals(text)]
    return shape_of(max(pieces, key=len).encode())


def _literals(text: str) -> list[str]:
    return _FIELD.sub("\n", text.partition(" && ")[0]).split("\n")


def match_pattern(text: str, line: bytes, position: int, context: Sequence[str]) -> dict[str, str] | None:
    """What a pattern keeps of a line that holds its anchor at a position; None where it does not match.

    ``context`` are the lines around, which further parts (``&&``) may stand in.
    """
    first, *others = text.split(" && ")
    part = line[max(0, position - _REACH) : position + _REACH]
    found = _compiled(first).search(part)
    if found is None:
        return None
    fields = _fields(found)
    for other in others:
        further = _compiled(other).search("\n".join(context).encode())
        if further is None:
            return None
        fields |= _fields(further)
    return fields


def _fields(found: re.Match[bytes]) -> dict[str, str]:
    return {name: value.decode("utf-8", "replace").strip() for name, value in found.groupdict().items() if value}


@cache
def _compiled(text: str) -> re.Pattern[bytes]:
    """The expression of one part; a pattern that begins or ends with a number does not match a part of a longer one."""
    source, end = "", 0
    for gap in _FIELD.finditer(text):
        source += re.escape(text[end : gap.start()].strip())
        kept = r"\d[\d,.]*" if gap[2] else r"[^\n]*?"
        source += rf"\s*(?P<{gap[1]}>{kept})\s*" if gap[1] else r"[^\n]*?"
        end = gap.end()
    source += re.escape(text[end:].strip() if end else text)
    before = r"(?<![0-9a-zA-Z])" if text[:1].isdigit() else ""
    after = r"(?![0-9a-zA-Z])" if _ENDS_IN_NUMBER.search(text.lower()) else ""
    return re.compile(f"{before}{source}{after}".encode(), re.IGNORECASE)


class AnchorSearch:
    """Finds which of many anchors (at least four bytes each) a block of shapes holds, and where.

    The block is first reduced to the set of its four-byte grams, hashed to 16 bits; only an anchor whose grams
    all occur is looked for with ``bytes.find``. The work per byte does not grow with the number of anchors.
    """

    def __init__(self, anchors: Iterable[bytes]) -> None:
        self._anchors = sorted(set(anchors))
        lengths = np.array([len(anchor) for anchor in self._anchors], np.int64)
        ends = np.cumsum(lengths)
        every = _hash(np.frombuffer(b"".join(self._anchors), np.uint8))
        across = (ends[:-1, None] - np.arange(1, _GRAM)[None, :]).ravel()  # grams that reach into the next anchor
        self._grams: npt.NDArray[np.uint16] = np.delete(every, across)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths - _GRAM + 1)[:-1]])

    def find(self, shapes: Sequence[bytes]) -> Iterator[tuple[int, bytes, int]]:
        """Index of a shape, an anchor in it, and the anchor's first position there."""
        data = b"\n".join(shapes)
        if not self._anchors or len(data) < _GRAM:
            return
        present = np.zeros(_TABLE, np.bool_)
        present[_hash(np.frombuffer(data, np.uint8))] = True
        starts = np.cumsum([0, *(len(shape) + 1 for shape in shapes)])
        for index in np.flatnonzero(np.logical_and.reduceat(present[self._grams], self._starts)):
            anchor = self._anchors[index]
            position = data.find(anchor)
            while position >= 0:
                line = int(np.searchsorted(starts, position, "right")) - 1
                yield line, anchor, position - int(starts[line])
                position = data.find(anchor, int(starts[line + 1]))


def _hash(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """One 16-bit number per four-byte gram; overflow is meant."""
    wide = data.astype(np.uint16)
    size = max(0, len(wide) - _GRAM + 1)
    total = np.zeros(size, np.uint16)
    for offset, factor in enumerate(_FACTORS):
        total += wide[offset : offset + size] * np.uint16(factor)
    return total
