"""What one fragment of a known error asks of a line: its pieces in order, in any case; it reads no log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from deploykit.backend.known_errors import GAP

__all__ = ["Fragment", "fold", "fragment_of", "line_around"]

_REACH = 4096
"""A line is looked at so many bytes before and after the anchor."""
_ENDS_IN_NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d+)$")


def fold(data: bytes) -> bytes:
    """Text without its case, of the same length; letters beyond ASCII stay as they are.

    >>> fold(b"Failed to LOAD skel")
    b'failed to load skel'
    """
    return data.lower()


def line_around(data: bytes, position: int) -> tuple[int, int]:
    """Begin and end of the line at a position, as far as one looks; in bytes."""
    floor = max(0, position - _REACH)
    end = data.find(b"\n", position, position + _REACH)
    return max(floor, data.rfind(b"\n", floor, position) + 1), end if end >= 0 else min(len(data), position + _REACH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A fragment ready for searching: ``anchor`` is its longest piece, folded.

    A fragment that begins or ends with a number does not match a part of a longer one.
    """

    text: str
    anchor: bytes

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """The whole of it. Made when first asked for: of thousands of fragments a log holds the anchors of a few."""
        return _pattern_of(self.text)

    @property
    def is_literal(self) -> bool:
        """True when there is nothing but the anchor to be found."""
        return GAP not in self.text

    def stands_at(self, folded: bytes, position: int) -> bool:
        """Whether the line around a place where the anchor was found holds the fragment; in bytes, folded."""
        if self.is_literal:
            return self.pattern.match(folded, position) is not None
        return self.pattern.search(folded, *line_around(folded, position)) is not None


@cache
def fragment_of(text: str) -> Fragment:
    """Prepare one fragment.

    >>> limit = fragment_of("allocation of … KB, limit is")
    >>> limit.stands_at(b"needs allocation of 5 kb, limit is 4 kb", 23)
    True
    """
    return Fragment(text=text, anchor=max(_pieces(text), key=len).encode())


def _pieces(text: str) -> list[str]:
    return [piece.strip() if GAP in text else piece for piece in text.lower().split(GAP)]


@cache
def _pattern_of(text: str) -> re.Pattern[bytes]:
    pieces = _pieces(text)
    before = r"(?<![0-9a-z])" if pieces[0][:1].isdigit() else ""
    after = r"(?![0-9a-z])" if _ENDS_IN_NUMBER.search(pieces[-1]) else ""
    middle = "[^\n]*?".join(re.escape(piece) for piece in pieces)
    return re.compile(f"{before}{middle}{after}".encode())
