"""Collects from a log what the catalogue speaks of: hits, marks, numbers, error lines; it judges nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import IO

from deploykit.answers.diagnosis.fragments import Fragment, fold, fragment_of, line_around
from deploykit.answers.diagnosis.search import Spot, search_for
from deploykit.answers.diagnosis.text import CONTEXT_LINES, Window, windows
from deploykit.answers.diagnosis.trouble import DOUBTS, FAILURES, LEVELS, Trouble, trouble_of
from deploykit.backend.known_errors import Catalog, FinishMark, KnownError, Observation, ToolMark

__all__ = ["ErrorLine", "Finish", "Hit", "Sighting", "Sightings", "collect"]

_MOST_HITS = 2000
_MOST_ERROR_LINES = 4000
_DISTINCT_ERROR_LINES = 400
_MOST_DOUBTS = 300
_MOST_HARMLESS = 10_000
_MOST_NUMBERS = 50
_TAIL_LINES = 12
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One place in the log: its line number, its text, and the lines that follow it up to the next hit."""

    line: int
    text: str
    after: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Sighting:
    """Everything seen of one known error. ``hits`` holds the first ones by line, ``counts`` is per fragment."""

    error: KnownError
    hits: dict[int, Hit] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True when enough fragments were seen for the row to speak."""
        if not self.hits:
            return False
        if self.error.match_mode == "any" or self.error.within is not None:
            return True
        return all(self.counts.get(fragment) for fragment in self.error.match)

    @property
    def count(self) -> int:
        """The number of lines with a hit; past the number that is kept, the occurrences of the commonest fragment."""
        if len(self.hits) < _MOST_HITS:
            return len(self.hits)
        return max(self.counts.values())

    @property
    def first_line(self) -> int:
        """The number of the first line with a hit."""
        return min(self.hits)


@dataclass(slots=True, kw_only=True)
class ErrorLine:
    """A line that looks like an error; lines that differ in numbers only are one. ``before`` are lines above it."""

    line: int
    text: str
    before: tuple[str, ...] = ()
    trouble: Trouble = "failure"
    count: int = 1

    def to_json(self) -> dict[str, object]:
        """The published shape."""
        return {"line": self.line, "text": self.text, "count": self.count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The last place where a tool says that it did its job."""

    tool: str
    line: int
    text: str

    def to_json(self) -> dict[str, object]:
        """The published shape."""
        return {"tool": self.tool, "line": self.line, "text": self.text}


@dataclass(slots=True, kw_only=True)
class Sightings:
    """What one log showed. ``numbers`` are observations by id, each the groups of the last match.

    ``began`` is the first line with a mark of each tool, ``finishes`` the last one that says that it is done.
    ``overlooked``: there were more lines that look like trouble than were looked at.
    """

    errors: dict[str, Sighting] = field(default_factory=dict)
    tools: dict[str, ToolMark] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    finishes: dict[str, Finish] = field(default_factory=dict)
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    error_lines: dict[str, ErrorLine] = field(default_factory=dict)
    overlooked: bool = False
    tail: tuple[str, ...] = ()
    lines: int = 0
    size: int = 0


class _Collector:
    """Owns the state of one pass."""

    def __init__(self, catalog: Catalog) -> None:
        self.seen = Sightings()
        self._errors: dict[bytes, list[tuple[KnownError, Fragment]]] = {}
        self._tools: dict[bytes, list[ToolMark]] = {}
        self._finishes: dict[bytes, list[FinishMark]] = {}
        self._observations: dict[bytes, list[Observation]] = {}
        for error in catalog.errors:
            for text in error.match:
                fragment = fragment_of(text)
                self._errors.setdefault(fragment.anchor, []).append((error, fragment))
        for tool in catalog.tools:
            for text in tool.marks:
                self._tools.setdefault(fold(text.encode()), []).append(tool)
        for finish in catalog.finishes:
            for text in finish.marks:
                self._finishes.setdefault(fold(text.encode()), []).append(finish)
        for observation in catalog.observations:
            self._observations.setdefault(fold(observation.fragment.encode()), []).append(observation)
        self._failures = {fold(mark.encode()) for mark in FAILURES}
        self._marks = self._failures | {fold(mark.encode()) for mark in DOUBTS}
        self._room = dict.fromkeys(self._errors, _MOST_HITS)
        # What is looked at anew in every window has as much room in each.
        self._always = self._marks | self._observations.keys() | self._finishes.keys()
        for mark in self._always:
            most = _MOST_DOUBTS if mark in self._marks - self._failures else _MOST_ERROR_LINES
            self._room[mark] = max(self._room.get(mark, 0), most)
        for mark in self._tools:
            self._room.setdefault(mark, 1)
        self._lines_of: dict[str, set[int]] = {}
        self._harmless: set[str] = set()
        self._looked_at: set[int] = set()
        self._search = search_for(frozenset(self._room))

    def take(self, window: Window) -> None:
        """Search one window and remember what was found, in the order of the log."""
        self._looked_at.clear()
        spots = list(self._search.spots(window, wanted=self._room))
        for spot in spots:
            self._spend(spot)
            self._take_marks(spot, window)
        self._take_levels(window)
        starts = sorted(position for spot in spots if spot.fragment in self._errors for position in spot.positions)
        for spot in spots:
            for error, fragment in self._errors.get(spot.fragment, ()):
                self._take_error(error, fragment, spot, window, starts)
        ended = window.data[window.stop - 1 : window.stop] == b"\n"
        self.seen.lines = window.line_at(window.stop) - ended
        self.seen.size += window.stop - window.start
        self.seen.tail = tuple(_last_lines(window))

    def _spend(self, spot: Spot) -> None:
        if spot.fragment in self._always:
            self.seen.overlooked |= spot.fragment in self._failures and spot.count > len(spot.positions)
            return
        left = self._room[spot.fragment] - len(spot.positions)
        keeps_counting = spot.fragment in self._errors
        self._room[spot.fragment] = left if left > 0 else 0 if keeps_counting else -1

    def _take_marks(self, spot: Spot, window: Window) -> None:
        for tool in self._tools.get(spot.fragment, ()):
            self.seen.tools[tool.tool] = tool
            line = window.line_at(spot.positions[0]) if spot.positions else self.seen.lines + 1
            self.seen.began[tool.tool] = min(line, self.seen.began.get(tool.tool, line))
        for finish in self._finishes.get(spot.fragment, ()):
            at = spot.positions[-1]
            self._take_finish(Finish(tool=finish.tool, line=window.line_at(at), text=window.text_at(at)))
        for observation in self._observations.get(spot.fragment, ()):
            for position in spot.positions[-_MOST_NUMBERS:]:
                self._take_number(observation, window.text_at(position))
        if spot.fragment in self._marks:
            for position in spot.positions:
                self._take_error_line(window, position)

    def _take_number(self, observation: Observation, text: str) -> None:
        match = re.search(observation.pattern, text)
        if observation.whole:
            every = re.findall(observation.whole, text)
            if every:
                part = re.findall(observation.pattern, text)
                self.seen.numbers[observation.id] = (sum(map(float, part)), sum(map(float, every)))
        elif match is not None:
            self.seen.numbers[observation.id] = tuple(float(group) for group in match.groups())

    def _take_finish(self, finish: Finish) -> None:
        known = self.seen.finishes.get(finish.tool)
        if known is None or known.line < finish.line:
            self.seen.finishes[finish.tool] = finish

    def _take_levels(self, window: Window) -> None:
        """Lines whose level is a letter at their start, which no fragment finds."""
        matches = LEVELS.finditer(window.data, window.start, window.stop)
        for match in islice(matches, _MOST_ERROR_LINES):
            self._take_error_line(window, match.start())
        self.seen.overlooked |= next(matches, None) is not None

    def _take_error_line(self, window: Window, position: int) -> None:
        line = window.line_at(position)
        if line in self._looked_at:  # a long line may have a hundred of the words that lead here
            return
        self._looked_at.add(line)
        text = window.text_at(position)
        shape = _VARIABLE.sub("#", text)
        known = self.seen.error_lines.get(shape)
        if known is None and shape in self._harmless:
            return
        trouble = trouble_of(text) if known is None else known.trouble
        if trouble is None:
            if len(self._harmless) < _MOST_HARMLESS:
                self._harmless.add(shape)
            return
        if known is None and len(self.seen.error_lines) >= _DISTINCT_ERROR_LINES:
            self.seen.overlooked |= trouble == "failure"
            return
        if known is None:
            above = tuple(window.lines_around(position, before=CONTEXT_LINES, after=0)[:-1])
            known = self.seen.error_lines[shape] = ErrorLine(line=line, text=text, before=above, trouble=trouble)
        lines = self._lines_of.setdefault(shape, set())
        lines.add(line)
        known.count = len(lines)
        if line < known.line:
            known.line, known.text = line, text

    def _take_error(self, error: KnownError, fragment: Fragment, spot: Spot, window: Window, starts: list[int]) -> None:
        positions = [position for position in spot.positions if fragment.stands_at(window.folded, position)]
        count = len(positions) + (spot.count - len(spot.positions) if fragment.is_literal else 0)
        if not count:
            return
        sighting = self.seen.errors.setdefault(error.id, Sighting(error=error))
        sighting.counts[fragment.text] = sighting.counts.get(fragment.text, 0) + count
        if error.match_mode == "all" and fragment.text != error.match[0]:
            return
        for position in positions:
            if len(sighting.hits) >= _MOST_HITS:
                return
            if _has_all(error, window, position) and not _is_let_go(error, window, position):
                hit = Hit(
                    line=window.line_at(position),
                    text=window.text_at(position),
                    after=tuple(_lines_until_next(window, position, starts)),
                )
                sighting.hits.setdefault(hit.line, hit)


def _has_all(error: KnownError, window: Window, position: int) -> bool:
    if error.within is None:
        return True
    reach = min(error.within, CONTEXT_LINES)
    text = fold("\n".join(window.lines_around(position, before=reach, after=reach)).encode())
    return all(fragment_of(fragment).pattern.search(text) for fragment in error.match)


def _is_let_go(error: KnownError, window: Window, position: int) -> bool:
    """Whether the line says by another word that it means something else."""
    begin, end = line_around(window.folded, position)
    return any(fragment_of(text).pattern.search(window.folded, begin, end) for text in error.unless)


def _lines_until_next(window: Window, position: int, starts: list[int]) -> Iterator[str]:
    following = bisect_right(starts, position)
    last = window.data.rfind(b"\n", 0, starts[following]) if following < len(starts) else len(window.data)
    end = window.data.find(b"\n", position)
    for _ in range(CONTEXT_LINES - 1):
        if not 0 <= end < last:
            return
        begin, end = end + 1, window.data.find(b"\n", end + 1)
        yield window.data[begin : end if end >= 0 else None][:2000].decode("utf-8", "replace").strip()


def _last_lines(window: Window) -> list[str]:
    return [line.strip()[:400] for line in window.data[-16384:].decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]]


def collect(stream: IO[bytes], catalog: Catalog) -> Sightings:
    """Read a log to its end, once."""
    collector = _Collector(catalog)
    for window in windows(stream):
        collector.take(window)
    return collector.seen
