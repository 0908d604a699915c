"""Collects from a log what the catalogue speaks of: hits, marks, numbers, lines of trouble; it judges nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import IO

from deploykit.answers.diagnosis.lines import CONTEXT_LINES, Block, blocks, text_around
from deploykit.answers.diagnosis.patterns import AnchorSearch, anchor_of, fold, match_pattern, shape_of
from deploykit.answers.diagnosis.trouble import DOUBTS, FAILURES, LEVELS, Trouble, trouble_of
from deploykit.tables.known_errors import Catalog, KnownError, Observation, Tool

__all__ = ["Collected", "ErrorLine", "Finish", "Hit", "Sighting", "collect"]

_MOST_HITS = 2000  # lines kept of one cause, and lines of one shape that are read; more are only counted
_MOST_ERROR_LINES = 400  # distinct lines of trouble; past them there is no all-clear
_MOST_SHAPES = 60_000  # shapes remembered, about 20 MB; then the memory begins anew
_MOST_UNLIKE = 50_000  # lines of unlike shapes that hold one anchor; more of them say nothing new
_LONGEST_SHAPE = 2000
_TAIL_LINES = 12
_MOST_HARMLESS = 10_000
_NOT_ZERO = re.compile(r"0*[1-9][\d.,]*|0[.,]\d+")  # "0 errors" is harmless and "3 errors" is not
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")
_STRENGTHS = ("match", "weak", "general", "follows", "mild")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One place in the log: its line number, its text, and the lines that follow it up to the next hit.

    ``words`` is the length of the longest pattern that found it.
    """

    line: int
    text: str
    after: tuple[str, ...] = ()
    words: int = 0


@dataclass(slots=True, kw_only=True)
class Sighting:
    """Everything seen of one known error: the first hits by line, how telling their words are, what they keep."""

    error: KnownError
    hits: dict[int, Hit] = field(default_factory=dict)
    strengths: set[str] = field(default_factory=set)
    fields: dict[str, str] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True, kw_only=True)
class ErrorLine:
    """A line that looks like trouble; lines that differ in numbers only are one. ``before`` are lines above it."""

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


@dataclass(slots=True, kw_only=True)
class Collected:
    """What one log showed. ``numbers`` are observations by id, each the groups of the last match.

    ``began`` is the first line with a mark of each tool, ``finishes`` the last one that says that it is done.
    ``overlooked``: there were more lines that look like trouble than were read.
    """

    errors: dict[str, Sighting] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    finishes: dict[str, Finish] = field(default_factory=dict)
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    error_lines: dict[str, ErrorLine] = field(default_factory=dict)
    overlooked: bool = False
    tail: tuple[str, ...] = ()
    lines: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Targets:
    """What an anchor leads to."""

    errors: list[tuple[KnownError, str, str]] = field(default_factory=list)
    began: list[Tool] = field(default_factory=list)
    done: list[Tool] = field(default_factory=list)
    numbers: list[Observation] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Form:
    """Lines with the same anchors: how many were read, and which known errors the last one showed."""

    read: int = 0
    sightings: tuple[Sighting, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Shape:
    """Lines that differ in numbers only: where their anchors are, and the line of trouble that stands for them.

    ``suspect`` is where a word of trouble stands.
    """

    form: _Form
    spots: list[tuple[_Targets, int]] = field(default_factory=list)
    suspect: int | None = None
    read: int = 0
    error_line: ErrorLine | None = None


@cache
def _targets(catalog: Catalog) -> tuple[dict[bytes, _Targets], AnchorSearch]:
    found: dict[bytes, _Targets] = {}

    def at(text: str) -> _Targets:
        return found.setdefault(anchor_of(text), _Targets())

    for error in catalog.errors:
        for strength in _STRENGTHS:
            for text in getattr(error, strength):
                at(text).errors.append((error, text, strength))
    for tool in catalog.tools:
        for text in tool.marks:
            at(text).began.append(tool)
        for text in tool.done:
            at(text).done.append(tool)
    for observation in catalog.observations:
        at(observation.fragment).numbers.append(observation)
    for text in (*FAILURES, *DOUBTS):
        at(text)
    return found, AnchorSearch(found)


_LEVELS = re.compile(LEVELS.pattern, re.IGNORECASE)
_TROUBLE = frozenset(anchor_of(text) for text in (*FAILURES, *DOUBTS))


def collect(stream: IO[bytes], catalog: Catalog) -> Collected:
    """Read a log to its end, once.

    Most lines of a large log differ in numbers only, so each shape of a line is searched once; the lines of a shape in
    which something was found are read one by one.
    """
    collector = _Collector(catalog)
    for block in blocks(stream):
        collector.take(block)
    return collector.seen


class _Collector:
    """Owns the state of one pass."""

    def __init__(self, catalog: Catalog) -> None:
        self.seen = Collected()
        self._targets, self._search = _targets(catalog)
        self._sought = set(self._targets)
        self._found: Counter[bytes] = Counter()
        self._shapes: dict[bytes, _Shape] = {}
        self._forms: dict[frozenset[bytes], _Form] = {}
        self._plain: set[bytes] = set()
        self._harmless: set[str] = set()

    def take(self, block: Block) -> None:
        """Read the new lines of one block."""
        lines = block.lines[block.start : block.stop]
        shapes = shape_of(b"\n".join(lines)).split(b"\n")
        fresh = set(shapes) - self._shapes.keys() - self._plain
        self._learn(fresh)
        found = [(block.start + at, self._shapes[shape]) for at, shape in enumerate(shapes) if shape in self._shapes]
        hits = [index for index, shape in found if any(targets.errors for targets, _ in shape.spots)]
        for index, shape in found:
            self._read(block, index, shape, hits)
        for dump in (line for line in fresh if len(line) > _LONGEST_SHAPE):  # it comes once, and would fill the memory
            self._shapes.pop(dump, None)
            self._plain.discard(dump)
        self.seen.lines = block.number(block.stop) - 1
        self.seen.size += block.size
        last = b"\n".join(block.lines[-_TAIL_LINES:]).decode("utf-8", "replace")
        self.seen.tail = tuple(line.strip()[:400] for line in last.splitlines()[-_TAIL_LINES:])

    def _learn(self, fresh: set[bytes]) -> None:
        """Search the shapes that were not met before, and remember what leads where."""
        if len(self._shapes) + len(self._plain) > _MOST_SHAPES:
            self._shapes.clear()
            self._forms.clear()
            self._plain.clear()
        shapes = list(fresh)
        spots: dict[int, dict[bytes, int]] = {at: {} for at, shape in enumerate(shapes) if _LEVELS.match(shape)}
        for index, anchor, position in self._search.find(shapes):
            spots.setdefault(index, {})[anchor] = position
            self._found[anchor] += 1
        self._let_go_of_floods()
        for index, anchors in spots.items():
            words = [position for anchor, position in anchors.items() if anchor in _TROUBLE]
            self._shapes[shapes[index]] = _Shape(
                form=self._forms.setdefault(frozenset(anchors), _Form()),
                spots=[(self._targets[anchor], position) for anchor, position in anchors.items()],
                suspect=0 if _LEVELS.match(shapes[index]) else min(words, default=None),
            )
        self._plain |= fresh - self._shapes.keys()

    def _let_go_of_floods(self) -> None:
        """Stop looking for what a flood of unlike lines holds; the log then gets no all-clear.

        The last line of a tool that finished, and the last number that it counted, are looked for to the end.
        """
        floods = {anchor for anchor, count in self._found.items() if count > _MOST_UNLIKE}
        floods = {anchor for anchor in floods if not (self._targets[anchor].done or self._targets[anchor].numbers)}
        if floods:
            self.seen.overlooked = True
            self._found = Counter({anchor: n for anchor, n in self._found.items() if anchor not in floods})
            self._sought -= floods
            self._search = AnchorSearch(self._sought)

    def _read(self, block: Block, index: int, shape: _Shape, hits: Sequence[int]) -> None:
        number, line = block.number(index), block.lines[index]
        for targets, position in shape.spots:
            self._take_marks(targets, number, line, position)
        shape.read += 1
        if shape.suspect is not None and (shape.read <= _MOST_HITS or shape.error_line is None):
            # What was harmless a thousand times may not be the next time: "0 errors" and "3 errors" are one shape.
            shape.error_line = self._take_trouble(block, index, shape.suspect)
        elif shape.error_line is not None:
            shape.error_line.count += 1
        form = shape.form
        form.read += 1
        if form.read <= _MOST_HITS or not form.sightings:
            form.sightings = tuple(self._take_errors(block, index, shape, hits))
        else:
            for sighting in form.sightings:
                sighting.count += 1

    def _take_marks(self, targets: _Targets, number: int, line: bytes, position: int) -> None:
        for tool in targets.began:
            self.seen.began.setdefault(tool.id, number)
        for tool in targets.done:
            self.seen.finishes[tool.id] = Finish(tool=tool.id, line=number, text=text_around(line, position))
        for observation in targets.numbers:
            self._take_number(observation, text_around(line, position))

    def _take_number(self, observation: Observation, text: str) -> None:
        match = re.search(observation.pattern, text)
        if observation.whole:
            if every := re.findall(observation.whole, text):
                part = re.findall(observation.pattern, text)
                self.seen.numbers[observation.id] = (sum(map(float, part)), sum(map(float, every)))
        elif match is not None:
            self.seen.numbers[observation.id] = tuple(float(group) for group in match.groups())

    def _take_trouble(self, block: Block, index: int, position: int) -> ErrorLine | None:
        if self.seen.overlooked:  # nothing that follows could take the doubt away
            return None
        text = text_around(block.lines[index], position)
        plain = _NOT_ZERO.sub("1", text)
        if plain in self._harmless:
            return None
        key = _VARIABLE.sub("#", text)
        known = self.seen.error_lines.get(key)
        if known is not None:
            known.count += 1
            return known
        trouble = trouble_of(text)
        if trouble is None:
            if len(self._harmless) < _MOST_HARMLESS:
                self._harmless.add(plain)
            return None
        if len(self.seen.error_lines) >= _MOST_ERROR_LINES:
            self.seen.overlooked |= trouble == "failure"
            return None
        above = block.around(index, before=CONTEXT_LINES, after=0)[:-1]
        known = ErrorLine(line=block.number(index), text=text, before=tuple(above), trouble=trouble)
        self.seen.error_lines[key] = known
        return known

    def _take_errors(self, block: Block, index: int, shape: _Shape, hits: Sequence[int]) -> Iterable[Sighting]:
        """The known errors that one line shows, each noted once."""
        line, found = block.lines[index], dict[str, Sighting]()
        for targets, position in shape.spots:
            for error, text, strength in targets.errors:
                context = block.around(index, before=CONTEXT_LINES, after=CONTEXT_LINES) if " && " in text else ()
                kept = match_pattern(text, line, position, context)
                if kept is None or _is_let_go(error, line):
                    continue
                sighting = self.seen.errors.setdefault(error.id, Sighting(error=error))
                sighting.strengths.add(strength)
                sighting.fields = kept | sighting.fields
                number = block.number(index)
                known = sighting.hits.get(number)
                if len(sighting.hits) < _MOST_HITS and (known is None or known.words < len(text)):
                    after = _until_next(block, index, hits)
                    sighting.hits[number] = Hit(
                        line=number, text=text_around(line, position), after=after, words=len(text)
                    )
                found[error.id] = sighting
        for sighting in found.values():
            sighting.count += 1
        return found.values()


def _is_let_go(error: KnownError, line: bytes) -> bool:
    """Whether the line says by another word that it means something else."""
    return any(match_pattern(text, line, fold(line).find(anchor_of(text)), ()) is not None for text in error.unless)


def _until_next(block: Block, index: int, hits: Sequence[int]) -> tuple[str, ...]:
    """The lines after one, up to the next that shows a known error."""
    following = bisect_right(hits, index)
    end = min(index + CONTEXT_LINES, hits[following] if following < len(hits) else len(block.lines))
    return tuple(text_around(line, 0, limit=2000) for line in block.lines[index + 1 : end])
