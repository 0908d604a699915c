"""Turns a byte stream of any size into cleaned windows with line numbers, in bounded memory; it looks for nothing."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np

from deploykit.answers.diagnosis.fragments import fold

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CONTEXT_LINES", "Window", "windows"]

CONTEXT_LINES = 16
"""So many lines before and after a searched region are in its window."""

_CHUNK = 1 << 20
_NEWLINE = ord("\n")
_LONGEST_LINE = 1 << 18
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CURLY_START = b"\xe2\x80"
_CURLY = {b"\x98": b"'", b"\x99": b"'", b"\x9c": b'"', b"\x9d": b'"'}
"""Quotation marks that compilers print in some languages, and that forums put in the place of the plain ones."""
_WIDE = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of the log: ``data[start:stop]`` is new, the rest is context.

    ``line`` is the number of the line at ``start``, from 1, counted in newline characters as editors do; ``breaks``
    are the positions of all of them. ``folded`` is the data without its case.
    """

    data: bytes
    folded: bytes
    start: int
    stop: int
    line: int
    breaks: npt.NDArray[np.int64]

    def line_at(self, position: int) -> int:
        """The number of the line at a position inside the window."""
        before, at_start = np.searchsorted(self.breaks, (position, self.start))
        return self.line + int(before) - int(at_start)

    def text_at(self, position: int, *, limit: int = 600) -> str:
        """The line around a position; a carriage return ends a line too, and a long line is cut around it."""
        begin = 1 + max(self.data.rfind(b"\n", 0, position), self.data.rfind(b"\r", 0, position))
        ends = [end for mark in (b"\n", b"\r") if (end := self.data.find(mark, position)) >= 0]
        end = min(ends, default=len(self.data))
        begin, end = max(begin, position - limit // 2), min(end, position + limit)
        return self.data[begin:end].decode("utf-8", "replace").replace("\x00", "").strip()

    def lines_around(self, position: int, *, before: int, after: int) -> list[str]:
        """Whole lines around the one at a position, that one included, as far as the window reaches."""
        begin = end = position
        for _ in range(before + 1):
            begin = self.data.rfind(b"\n", max(0, begin - _LONGEST_LINE), begin)
            if begin < 0:
                break
        for _ in range(after + 1):
            end = self.data.find(b"\n", end + 1, end + _LONGEST_LINE)
            if end < 0:
                end = min(len(self.data), position + _LONGEST_LINE)
                break
        text = self.data[begin + 1 : end].decode("utf-8", "replace")
        return [line[:2000] for line in text.replace("\r", "\n").split("\n")]


def windows(stream: IO[bytes]) -> Iterator[Window]:
    """Read a stream to its end, as windows whose new regions follow each other without gap.

    Colours and NUL bytes are dropped, curly quotation marks become plain ones, UTF-16 with a byte order mark is
    transcoded, everything else is left as it is.
    """
    held, start, line = b"", 0, 1
    for fresh in _whole_lines(_bytes(stream)):
        held += fresh
        stop = _back(held, len(held), CONTEXT_LINES)
        if stop > start:
            yield _window(held, start, stop, line)
            line += held.count(b"\n", start, stop)
            keep = _back(held, stop, CONTEXT_LINES)
            held, start = held[keep:], stop - keep
    if len(held) > start:
        yield _window(held, start, len(held), line)


def _window(data: bytes, start: int, stop: int, line: int) -> Window:
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    return Window(data=data, folded=fold(data), start=start, stop=stop, line=line, breaks=breaks)


def _back(data: bytes, position: int, lines: int) -> int:
    """The start of the line that lies so many lines before a position, but never far away in bytes."""
    floor = max(0, position - _LONGEST_LINE)
    for _ in range(lines + 1):
        found = data.rfind(b"\n", floor, position)
        if found < 0:
            return floor
        position = found
    return position + 1


def _bytes(stream: IO[bytes]) -> Iterator[bytes]:
    first = stream.read(_CHUNK)
    encoding = _WIDE.get(first[:2])
    if encoding is None:
        while first:
            yield first
            first = stream.read(_CHUNK)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    chunk = first[2:]
    while chunk:
        yield decoder.decode(chunk).encode("utf-8", "replace")
        chunk = stream.read(_CHUNK)


def _whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces that end with a line, cleaned; a line that does not end is cut rather than kept for ever."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        cut = rest.rfind(b"\n") + 1
        if not cut and len(rest) > _LONGEST_LINE:
            cut = len(rest)
        if cut:
            yield _clean(rest[:cut])
            rest = rest[cut:]
    if rest:
        yield _clean(rest)


def _clean(data: bytes) -> bytes:
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if _CURLY_START in data:
        for curly, plain in _CURLY.items():
            data = data.replace(_CURLY_START + curly, plain)
    return data.replace(b"\x00", b"") if b"\x00" in data else data
