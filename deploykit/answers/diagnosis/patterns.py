"""The patterns of known errors, and the search for thousands of them at once; it knows no cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["AnchorSearch", "anchor_of", "fold", "match_pattern", "shape_of"]

_WIDTHS = (8, 4)  # bytes of a gram, of long anchors and of short ones
_TABLE_BITS = 20  # some thousand anchors fill less than a hundredth of it, and it stays in the cache
_TABLE = 1 << _TABLE_BITS
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio: its product spreads in the upper bits; overflow is meant
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
    """Finds which of many anchors a block of shapes holds, and where.

    Each anchor is known by one of its grams (eight bytes, or four of a short one): the gram that fewest anchors share.
    Every position of the block is hashed once and looked up in a table of these; only where the table says so are
    anchors compared. The work per byte does not grow with the number of anchors.
    """

    def __init__(self, anchors: Iterable[bytes]) -> None:
        every = sorted(set(anchors))
        self._tiny = [anchor for anchor in every if len(anchor) < _WIDTHS[-1]]
        self._known: list[tuple[int, npt.NDArray[np.bool_], dict[int, list[tuple[bytes, int]]]]] = []
        for width, longer in zip(_WIDTHS, (1 << 16, _WIDTHS[0]), strict=True):
            found = [anchor for anchor in every if width <= len(anchor) < longer]
            numbers = _hashes(b"\n".join(found), width)
            _, kinds, counts = np.unique(numbers, return_inverse=True, return_counts=True)
            shared = counts[kinds]
            table, buckets = np.zeros(_TABLE, np.bool_), defaultdict[int, list[tuple[bytes, int]]](list)
            start = 0
            for anchor in found:
                offset = int(np.argmin(shared[start : start + len(anchor) - width + 1]))
                number = int(numbers[start + offset])
                table[number] = True
                buckets[number].append((anchor, offset))
                start += len(anchor) + 1
            self._known.append((width, table, buckets))

    def find(self, shapes: Sequence[bytes]) -> Iterator[tuple[int, bytes, int]]:
        """Index of a shape, an anchor in it, and the anchor's first position there."""
        data = b"\n".join(shapes)
        places = [(place, anchor) for anchor in self._tiny for place in _places(data, anchor)]
        for width, table, buckets in self._known:
            numbers = _hashes(data, width)
            at = np.flatnonzero(table[numbers])
            for place, number in zip(at.tolist(), numbers[at].tolist(), strict=True):
                for anchor, offset in buckets[number]:
                    if place >= offset and data.startswith(anchor, place - offset):
                        places.append((place - offset, anchor))
        places.sort()
        starts = np.cumsum([0, *(len(shape) + 1 for shape in shapes)])
        lines = np.searchsorted(starts, [place for place, _ in places], "right") - 1
        known: set[tuple[int, bytes]] = set()
        for line, begin, (place, anchor) in zip(lines.tolist(), starts[lines].tolist(), places, strict=True):
            if (line, anchor) not in known:
                known.add((line, anchor))
                yield line, anchor, place - begin


def _places(data: bytes, anchor: bytes) -> Iterator[int]:
    place = data.find(anchor)
    while place >= 0:
        yield place
        place = data.find(anchor, place + 1)


def _hashes(data: bytes, width: int) -> npt.NDArray[np.int64]:
    """For each position at which ``width`` bytes are left: one number for these, below the size of the table."""
    found = np.empty(max(0, len(data) - width + 1), np.int64)
    for phase in range(min(width, len(found))):
        words = np.frombuffer(data, f"<u{width}", (len(data) - phase) // width, phase)
        found[phase::width] = (words.astype(np.uint64) * _FACTOR) >> np.uint64(64 - _TABLE_BITS)
    return found
