"""The patterns of known errors, and the search for thousands of them at once. It knows no cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["AnchorSearch", "Spelled", "anchor_of", "further_pieces", "match_pattern", "shape_of"]

_WIDTHS = (8, 4)  # bytes of a gram, for long and for short anchors
_TABLE_BITS = 20  # some thousand anchors fill less than a hundredth of it, and it stays in the cache
_TABLE = 1 << _TABLE_BITS
_Numbers: TypeAlias = npt.NDArray[np.int64]
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio: its product spreads in the upper bits; overflow is intended
_REACH = 4096  # the most bytes of a long line that are looked at on either side of an anchor
_FIELD = re.compile(r"\{(\w+)(:n)?\}|…")
_NUMBER = re.compile(r"\d")
_ENDS_IN_NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d+)$")
_FOLD = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
_SHAPE = bytes(48 if 48 <= byte <= 57 else byte for byte in _FOLD)


def fold(data: bytes) -> bytes:
    """Text in small letters, of the same length; letters beyond ASCII do not change.

    >>> fold(b"Failed to LOAD skel") b'failed to load skel'
    """
    return data.translate(_FOLD)


def shape_of(data: bytes) -> bytes:
    """Text in small letters and with each digit as 0, of the same length: equal for lines that differ only in
    numbers.
    """
    return data.translate(_SHAPE)


@cache
def anchor_of(text: str) -> bytes:
    """The longest literal piece of a pattern, as a shape: a line without it cannot match."""
    pieces = [piece.strip() if _FIELD.search(text) else piece for piece in _literals(text)]
    return shape_of(max(pieces, key=len).encode())


def _literals(text: str) -> list[str]:
    return _FIELD.sub("\n", text.partition(" && ")[0]).split("\n")


class Spelled(NamedTuple):
    """Bytes of a log, unchanged and in small letters: an expression that ignores case is ten times as slow."""

    plain: bytes
    small: bytes

    @classmethod
    def of(cls, data: bytes) -> Spelled:
        """Both forms of some lines."""
        return cls(data, fold(data))


def match_pattern(text: str, line: Spelled, position: int, context: Spelled) -> dict[str, str] | None:
    """The fields that a pattern captures from a line with its anchor at a position; None if it does not match.

    ``context`` are the surrounding lines, in which further parts (``&&``) may be found.
    """
    first, *others = text.split(" && ")
    if position < 0:
        return None
    parts = [(other, context) for other in others]
    if not _is_its_anchor(first):
        near = slice(max(0, position - _REACH), position + _REACH)
        parts.insert(0, (first, Spelled(line.plain[near], line.small[near])))
    fields = dict[str, str]()
    for part, where in parts:
        found = _fields(part, where)
        if found is None:
            return None
        fields |= found
    return fields


@cache
def _is_its_anchor(text: str) -> bool:
    """True if any line with the anchor of a pattern matches the pattern."""
    return _FIELD.search(text) is None and not _NUMBER.search(text)


def _fields(text: str, part: Spelled) -> dict[str, str] | None:
    # Most lines lack a piece, and an expression with gaps would try every way to bridge them.
    found = all(piece in part.small for piece in _pieces(text)) and _compiled(text).search(part.small)
    if not found:
        return None
    kept = {name: part.plain[slice(*found.span(name))].strip() for name in found.re.groupindex}
    return {name: value.decode("utf-8", "replace") for name, value in kept.items() if value}


@cache
def _pieces(text: str) -> tuple[bytes, ...]:
    return tuple(filter(None, (fold(piece.strip().encode()) for piece in _literals(text))))


@cache
def further_pieces(text: str) -> tuple[bytes, ...]:
    """The literal pieces of a pattern besides its anchor, as shapes: a line that lacks one cannot match."""
    return tuple(piece for piece in map(shape_of, _pieces(text)) if piece != anchor_of(text))


@cache
def _compiled(text: str) -> re.Pattern[bytes]:
    """The expression for one part; a pattern that begins or ends with a number does not match inside a longer one."""
    text = fold(text.encode()).decode()
    source, end = "", 0
    for gap in _FIELD.finditer(text):
        source += re.escape(text[end : gap.start()].strip())
        kept = r"\d[\d,.]*" if gap[2] else r"[\w./:-]*\w" if gap.end() == len(text) else r"[^\n]*?"
        source += rf"\s*(?P<{gap[1]}>{kept})\s*" if gap[1] else r"[^\n]*?"
        end = gap.end()
    source += re.escape(text[end:].strip() if end else text)
    before = r"(?<![0-9a-zA-Z])" if text[:1].isdigit() else ""
    after = r"(?![0-9a-zA-Z])" if _ENDS_IN_NUMBER.search(text) else ""
    return re.compile(f"{before}{source}{after}".encode())


class _Grams:
    """Finds possible places of some anchors by one gram of each."""

    def __init__(self, width: int, anchors: Mapping[int, bytes]) -> None:
        self._width = width
        joined = b"\n".join(anchors.values())
        hashes = np.zeros(max(0, len(joined) - width + 1), np.int64)
        for phase in range(width):
            hashes[phase::width] = _hashes(joined, width, phase)
        _, kinds, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        # The rarest gram of each anchor: the least count with its place in the lower digits, among the anchor's own.
        lengths = np.array([len(anchor) for anchor in anchors.values()], np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        scores = np.append(counts[kinds] * len(hashes) + np.arange(len(hashes)), np.iinfo(np.int64).max)
        spans = np.column_stack((starts, starts + lengths - width + 1)).ravel()
        places = np.minimum.reduceat(scores, spans)[::2] % max(1, len(hashes))
        keys = hashes[places]
        order = np.argsort(keys, kind="stable")
        self._anchors, self._offsets = np.array([*anchors], np.int64)[order], (places - starts)[order]
        known, self._first, self._many = np.unique(keys[order], return_index=True, return_counts=True)
        self._known = np.zeros(_TABLE, np.bool_)
        self._known[known] = True
        self._key = np.zeros(_TABLE, np.int16)  # for a known gram, its index
        self._key[known] = np.arange(len(known))

    def find(self, data: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The numbers of anchors, and the places where each would begin, in any order."""
        found, keys = [], []
        for phase in range(self._width):  # aligned words, and the memory for them, stay in the cache
            hashes = _hashes(data, self._width, phase)
            at = np.flatnonzero(self._known.take(hashes, mode="wrap"))  # none is beyond: saves a check
            keys.append(self._key[hashes[at]])
            found.append(at * self._width + phase)
        places, key = np.concatenate(found), np.concatenate(keys)
        many = self._many[key]
        index = np.arange(many.sum()) + np.repeat(self._first[key] - np.cumsum(many) + many, many)
        return self._anchors[index], np.repeat(places, many) - self._offsets[index]


class AnchorSearch:
    """Finds which of many anchors the lines of a block hold.

    Each anchor is represented by one of its grams (eight bytes, or four for a short one): the gram that fewest anchors
    share. Every position of the block is hashed once and looked up in a table of these grams; only at matches are
    anchors compared, all at once. The work per byte does not grow with the number of anchors.
    """

    def __init__(self, anchors: Iterable[bytes]) -> None:
        self.anchors = sorted(set(anchors))
        self._words = np.array([-(-len(anchor) // 8) for anchor in self.anchors], np.int64)
        words = int(self._words.max(initial=1))
        self._bytes, self._masks = (
            np.frombuffer(b"".join(text.ljust(8 * words, b"\0") for text in texts), "<u8").reshape(-1, words)
            for texts in (self.anchors, [b"\xff" * len(anchor) for anchor in self.anchors])
        )
        self._grams = [
            _Grams(
                width, {number: anchor for number, anchor in enumerate(self.anchors) if width <= len(anchor) < longer}
            )
            for width, longer in zip(_WIDTHS, (1 << 16, _WIDTHS[0]), strict=True)
        ]

    def find(self, data: bytes) -> tuple[_Numbers, _Numbers, _Numbers]:
        """The start of each line in a block of shapes, and pairs of a line and an anchor in it, in the order of lines.

        No anchor crosses a line, as none has a line break.
        """
        candidates = [grams.find(data) for grams in self._grams]
        anchors, places = self._compared(data, *(np.concatenate(values) for values in zip(*candidates, strict=True)))
        starts = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1))
        # One sort of one number orders the pairs by line and anchor.
        pairs = np.sort((np.searchsorted(starts, places, "right") - 1) * len(self.anchors) + anchors)
        lines, anchors = np.divmod(pairs[np.flatnonzero(np.diff(pairs, prepend=-1))], len(self.anchors))
        return starts, lines, anchors

    def _compared(self, data: bytes, anchors: _Numbers, places: _Numbers) -> tuple[_Numbers, _Numbers]:
        """The candidates that really occur, compared word by word up to the length of each anchor."""
        anchors, places = anchors[places >= 0], places[places >= 0]
        # Eight bytes at any position: the view overlaps itself, so that a comparison reads no more than it needs.
        padded = data + bytes(self._bytes.shape[1] * 8)
        grams = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))
        same = []
        for word in range(self._bytes.shape[1]):
            alike = grams[places + 8 * word] & self._masks[anchors, word] == self._bytes[anchors, word]
            anchors, places = anchors[alike], places[alike]
            done = self._words[anchors] == word + 1
            same.append((anchors[done], places[done]))
            anchors, places = anchors[~done], places[~done]
        numbers, at = zip(*same, strict=True)
        return np.concatenate(numbers), np.concatenate(at)


def _hashes(data: bytes, width: int, phase: int) -> _Numbers:
    """A number below the table's size for the bytes at every ``width``-th position from ``phase`` on."""
    words = np.frombuffer(data, f"<u{width}", max(0, len(data) - phase) // width, min(phase, len(data)))
    hashes = (words.astype(np.uint64, copy=False) * _FACTOR) >> np.uint64(64 - _TABLE_BITS)
    return hashes.view(np.int64)
