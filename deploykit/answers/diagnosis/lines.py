"""Cuts a log of any size into blocks of lines, in bounded memory; it looks for nothing."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import IO

from msgspec import Struct

__all__ = ["CONTEXT_LINES", "Block", "blocks", "text_around"]

CONTEXT_LINES = 16
"""So many lines around a line are looked at together."""

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 18  # a longer one is a dump; it is cut, so that memory stays bounded
_LINES_OF_SCREEN = 600  # characters of a line that are shown
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CURLY = re.compile(rb"\xe2\x80([\x98\x99\x9c\x9d])")
_WIDE = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Block(Struct, frozen=True, kw_only=True):
    """Lines of a log; ``lines[start:stop]`` are new. ``first`` is the number of the first new one."""

    lines: list[bytes]
    start: int
    stop: int
    first: int
    size: int

    def number(self, index: int) -> int:
        """The number of a line in the log, from 1, counted in newline characters as editors do."""
        return self.first + index - self.start

    def before(self, index: int) -> tuple[str, ...]:
        """The texts of the lines above one; of a crash of Python, whose frames follow it, those below, nearest last."""
        near = self.lines[max(0, index - CONTEXT_LINES) : index]
        if self.lines[index].startswith(b"Fatal Python error"):
            near = self.lines[index + 1 : index + CONTEXT_LINES][::-1]
        return tuple(text_around(line, 0) for line in near)


def text_around(line: bytes, position: int, *, limit: int = _LINES_OF_SCREEN) -> str:
    """The part of a line to show or to read: a carriage return ends it too, and a long line is cut around a place."""
    begin = max(0, position - limit // 2)
    begin = max(begin, 1 + line.rfind(b"\r", begin, position))
    end = line.find(b"\r", position, position + limit)
    return line[begin : position + limit if end < 0 else end].decode("utf-8", "replace").strip()


def blocks(stream: IO[bytes]) -> Iterator[Block]:
    """Read a stream to its end, as blocks whose new lines follow each other without gap.

    Colours and NUL bytes are dropped, curly quotation marks become plain ones, UTF-16 with a byte order mark is
    transcoded. The last lines of a block wait for the next one, so that what follows a line is known.
    """
    held: list[bytes] = []  # context before, then lines that wait
    start, first, size = 0, 1, 0
    for data in _whole_lines(stream):
        fresh = data.replace(b"\r\n", b"\n").split(b"\n")
        if data.endswith(b"\n"):
            fresh.pop()
        held += fresh
        size += len(data)
        stop = max(start, len(held) - CONTEXT_LINES)
        if stop > start:
            yield Block(lines=held, start=start, stop=stop, first=first, size=size)
            first += stop - start
            keep = max(0, stop - CONTEXT_LINES)
            held, start, size = held[keep:], stop - keep, 0
    if len(held) > start:
        yield Block(lines=held, start=start, stop=len(held), first=first, size=size)


def _whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Cleaned pieces that end with a line; a line that does not end is cut rather than kept for ever."""
    rest = b""
    for chunk in _bytes(stream):
        rest += chunk
        cut = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST_LINE else 0)
        if cut:
            yield _clean(rest[:cut])
            rest = rest[cut:]
    if rest:
        yield _clean(rest)


def _bytes(stream: IO[bytes]) -> Iterator[bytes]:
    chunk = stream.read(_CHUNK)
    encoding = _WIDE.get(chunk[:2])
    decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)("replace")
    chunk = chunk if decoder is None else chunk[2:]
    while chunk:
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")
        chunk = stream.read(_CHUNK)


def _clean(data: bytes) -> bytes:
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\xe2\x80" in data:
        data = _CURLY.sub(lambda curly: b"'" if curly[1] in b"\x98\x99" else b'"', data)
    return data.replace(b"\x00", b"")
