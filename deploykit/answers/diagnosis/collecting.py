"""Collects from a log what the catalogue names: hits, marks, numbers, lines of trouble. It judges nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from deploykit.answers.diagnosis.lines import CONTEXT_LINES, Block, blocks, text_around
from deploykit.answers.diagnosis.patterns import (
    AnchorSearch,
    Spelled,
    anchor_of,
    further_pieces,
    match_pattern,
    shape_of,
)
from deploykit.answers.diagnosis.trouble import DOUBTS, FAILURES, LEVELS, SOURCE, Trouble, trouble_of
from deploykit.findings.records import Record, field
from deploykit.tables.known_errors import Catalog, KnownError, Observation, Tool

__all__ = ["Collected", "ErrorLine", "Finish", "Hit", "Sighting", "collect"]

_MOST_HITS = 2000  # most lines kept for one cause, and read with the same anchors; more are only counted
_MANY_READS = 5_000  # after this many single reads, only a few more lines of each form are read: floods take time
_FEW_HITS = 4
_ENOUGH = 10  # in such a flood, lines of new forms are read until each of their anchors occurred so often
_MOST_ERROR_LINES = 400  # distinct lines of trouble; with more there is no all-clear
_MOST_FORMS = 20_000  # forms that are remembered, about 20 MB
_MOST_SHAPES = 1 << 23  # bytes of shapes that are remembered before all are forgotten
_MOST_UNLIKE = 50_000  # lines of trouble that differ in more than numbers; a longer flood says nothing new
_MOST_FOR_NOTHING = 10_000  # lines of a form that are read without finding a known error
_REACH = 4096  # a longer line is read only around its anchors
_LONGEST_BESIDE = 600  # most characters read of a line next to another
_TAIL_LINES = 12
# "0 errors" is harmless and "3 errors" is not: the first digit of a zero is kept apart from all others.
_NOTHING = re.compile(rb"0(?<![\d.,]0)(?=0*(?![\da-fA-Fx]|[.,]\d))")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LENGTH = re.compile(rb"0[0.,]*")
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")
_Numbers: TypeAlias = npt.NDArray[np.int64]
_STRENGTHS = ("match", "weak", "general", "follows", "mild")


class Hit(Record):
    """One place in the log: its line number, its text, and the lines after it up to the next hit.

    ``words`` is the length of the longest pattern that found it.
    """

    line: int
    text: str
    after: tuple[str, ...] = ()
    words: int = 0


class Sighting(Struct, kw_only=True):
    """All occurrences of one known error: the first hits by line, the strengths of their words, their
    captured fields.
    """

    error: KnownError
    hits: dict[int, Hit] = {}
    strengths: set[str] = set()
    fields: dict[str, str] = {}
    count: int = 0


class ErrorLine(Struct, kw_only=True):
    """A line that looks like trouble; lines that differ only in numbers count as one. ``before`` are lines above it."""

    line: int
    text: str
    before: tuple[str, ...]
    trouble: Trouble
    count: int

    def to_json(self) -> dict[str, object]:
        """The published shape."""
        return {"line": self.line, "text": self.text, "count": self.count}


class Finish(Record):
    """The last line in which a tool says that it is done."""

    tool: str
    line: int
    text: str


class Collected(Struct, kw_only=True):
    """The contents of one log. ``numbers`` are observations by id, each with the groups of the last match.

    ``began`` is the first line with a mark of each tool, ``finishes`` the last one that says it is done. ``overlooked``
    is True if more lines look like trouble than were read.
    """

    errors: dict[str, Sighting] = {}
    began: dict[str, int] = {}
    finishes: dict[str, Finish] = {}
    numbers: dict[str, tuple[float, ...]] = {}
    error_lines: dict[str, ErrorLine] = {}
    overlooked: bool = False
    tail: tuple[str, ...] = ()
    lines: int = 0
    size: int = 0


class _Targets(Record):
    """The errors, tools and observations that an anchor belongs to."""

    errors: list[tuple[KnownError, str, str]] = field(default_factory=list)
    began: list[Tool] = field(default_factory=list)
    done: list[Tool] = field(default_factory=list)
    numbers: list[Observation] = field(default_factory=list)


class _Form(Struct, kw_only=True, eq=False):
    """Lines with the same anchors: how many were read for known errors, and which errors the last one showed.

    ``met``: one of its lines was read for marks. ``counted``: its lines hold numbers, so each is read. ``done``: it has
    a mark that a tool is done. ``telling``: its anchors of known errors; ``pieces``: further words that their patterns
    need. ``settled``: more of its lines would tell nothing new.
    """

    anchors: list[int]
    telling: tuple[int, ...]
    counted: bool
    done: bool
    suspect: bool
    settled: bool
    pieces: frozenset[tuple[bytes, ...]]
    met: bool = False
    read: int = 0
    sightings: tuple[Sighting, ...] = ()


class _Sought(Record):
    """The search for all anchors of a catalogue, and for each anchor: its targets, whether it is a word of trouble, and
    a random number that identifies it.
    """

    search: AnchorSearch
    targets: tuple[_Targets, ...]
    suspect: npt.NDArray[np.bool_]
    numbers: _Numbers


@lru_cache(maxsize=8)  # for a whole catalogue they take some megabytes
def _sought(catalog: Catalog, *, trouble: bool) -> _Sought:
    found = dict[bytes, _Targets]()

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
    for text in (*FAILURES, *DOUBTS) if trouble else ():
        at(text)
    search = AnchorSearch(found)
    # The last one represents a line that begins with a level of trouble, whatever words it has.
    targets = (*(found[anchor] for anchor in search.anchors), _Targets())
    return _Sought(
        search=search,
        targets=targets,
        suspect=np.array([*(trouble and anchor in _TROUBLE for anchor in search.anchors), True]),
        numbers=np.random.default_rng(0).integers(1 << 63, size=len(targets)),
    )


_LEVELS = re.compile(b"\n(?:%b)" % LEVELS.pattern.lower().replace(b"^", b"", 1))
_TROUBLE = frozenset(anchor_of(text) for text in (*FAILURES, *DOUBTS))


def collect(stream: IO[bytes], catalog: Catalog) -> Collected:
    """Reads a log to its end, once.

    Of lines with the same anchors the first ones are read one by one; once these showed a known error the others are
    only counted. A line of trouble is read if no line like it was read before.
    """
    collector = _Collector(catalog)
    for block in blocks(stream):
        collector.take(block)
    return collector.done()


class _Collector:
    """The state of one pass over a log."""

    def __init__(self, catalog: Catalog) -> None:
        self.seen = Collected()
        self._catalog = catalog
        self._seek(trouble=True)
        self._reads = 0
        self._judged: dict[int, ErrorLine | None] = {}
        self._last: list[bytes] = []

    def _seek(self, *, trouble: bool) -> None:
        self._sought = _sought(self._catalog, trouble=trouble)
        self._targets, self._suspect = self._sought.targets, self._sought.suspect
        self._forms: dict[int, _Form] = {}
        self._shapes: dict[bytes, _Form | None] = {}
        self._troubles: dict[bytes, ErrorLine | None] = {}
        self._held = 0
        self._asked = [0] * len(self._targets)

    def take(self, block: Block) -> None:
        """Reads the new lines of one block."""
        keys = _NOTHING.sub(b"\1", b"\n".join(block.lines[block.start : block.stop])).translate(_DIGITS).split(b"\n")
        if self._held > _MOST_SHAPES:
            self._shapes, self._troubles, self._held = {}, {}, 0
        self._learn([key for key in dict.fromkeys(keys) if key not in self._shapes])
        self._take_lines(block, keys)
        if self.seen.overlooked and self._suspect[:-1].any():
            self._seek(trouble=False)  # they are not needed any more, and a flood of them takes the most time
        self.seen.lines = block.last
        self.seen.size += block.size
        self._last = [line[-_REACH:] for line in block.lines[-_TAIL_LINES:]]

    def done(self) -> Collected:
        """The collected data, with the last lines as a screen shows them."""
        self.seen.error_lines = dict(sorted(self.seen.error_lines.items(), key=lambda pair: pair[1].line))
        last = b"\n".join(self._last).decode("utf-8", "replace")
        self.seen.tail = tuple(line.strip()[:400] for line in last.splitlines()[-_TAIL_LINES:])
        return self.seen

    def _learn(self, fresh: list[bytes]) -> None:
        """Searches for the anchors of new shapes."""
        data = shape_of(b"\n".join(fresh).replace(b"\1", b"0"))
        self._held += len(data)
        self._shapes.update(dict.fromkeys(fresh))
        starts, of_pair, found = self._sought.search.find(data)
        # One more anchor for each line that begins with a level of trouble: written after a line break, the expression
        # is found as fast as a word.
        level = [] if self.seen.overlooked else [match.start() for match in _LEVELS.finditer(b"\n" + data)]
        of_pair = np.concatenate((of_pair, np.searchsorted(starts, level)))
        order = np.argsort(of_pair, kind="stable")
        found = np.concatenate((found, np.full(len(level), len(self._targets) - 1)))[order]
        of_pair = of_pair[order]
        first = np.flatnonzero(np.diff(of_pair, prepend=-1))
        # Lines with the same anchors have the same sum of random numbers, one per anchor.
        kinds = np.add.reduceat(self._sought.numbers[found], first).tolist()
        # Python reads a list several times as fast as an array, item by item.
        lines, begins, anchors = of_pair[first].tolist(), [*first.tolist(), len(found)], found.tolist()
        for kind, line, begin, end in zip(kinds, lines, begins, begins[1:], strict=False):
            self._shapes[fresh[line]] = self._forms.get(kind) or self._new_form(kind, anchors[begin:end])

    def _take_lines(self, block: Block, keys: list[bytes]) -> None:
        """Reads those lines with anchors that may tell something new, and counts the others."""
        forms = [self._shapes[key] for key in keys]
        hits = [index for index, form in enumerate(forms, block.start) if form and form.telling]
        done = dict[_Form, int]()
        for index, form in enumerate(forms, block.start):
            if not form:
                continue
            if form.suspect and not self.seen.overlooked:
                # Of lines that differ only in numbers the first is read for trouble.
                key = keys[index - block.start]
                if key not in self._troubles:
                    plain = hash(_LENGTH.sub(b"0", key))  # a number takes less memory than a long line
                    if plain not in self._judged:
                        places = [at for anchor, at in self._places(block.lines[index], form) if self._suspect[anchor]]
                        self._judged[plain] = self._take_trouble(block, index, min(places))
                        self.seen.overlooked |= len(self._judged) > _MOST_UNLIKE
                    self._troubles[key] = self._judged[plain]
                if known := self._troubles[key]:
                    known.count += 1
            if form.counted or not form.met or not form.settled:
                self._read(block, index, form, hits)
                continue
            for sighting in form.sightings:
                sighting.count += 1
            if form.done:
                done[form] = index
        # Only the last line in which a tool says that it is done counts.
        for form, index in sorted(done.items(), key=lambda pair: pair[1]):
            self._take_marks(block, index, form)

    def _places(self, line: bytes, form: _Form) -> list[tuple[int, int]]:
        """The anchors of a line's form, each with its first position in
        the line; the anchor for levels is at its start.
        """
        small, anchors = shape_of(line), self._sought.search.anchors
        return [(anchor, small.find(anchors[anchor]) if anchor < len(anchors) else 0) for anchor in form.anchors]

    def _new_form(self, kind: int, anchors: list[int]) -> _Form:
        targets = [self._targets[anchor] for anchor in anchors]
        telling = tuple(anchor for anchor in anchors if self._targets[anchor].errors)
        form = _Form(
            anchors=anchors,
            telling=telling,
            counted=any(target.numbers for target in targets),
            done=any(target.done for target in targets),
            suspect=bool(self._suspect[anchors].any()),
            settled=not telling,
            pieces=frozenset(further_pieces(text) for target in targets for _, text, _ in target.errors),
        )
        if len(self._forms) < _MOST_FORMS:
            self._forms[kind] = form
        return form

    def _is_settled(self, form: _Form) -> bool:
        most = _MOST_HITS if self._reads < _MANY_READS else _FEW_HITS
        return form.read >= (most if form.sightings else _MOST_FOR_NOTHING) or (
            self._reads >= _MANY_READS and all(self._asked[anchor] >= _ENOUGH for anchor in form.telling)
        )

    def _read(self, block: Block, index: int, form: _Form, hits: Sequence[int]) -> None:
        if _is_source(block, index):
            return
        if form.counted or form.done or not form.met:
            form.met = True
            self._take_marks(block, index, form)
        form.settled = form.settled or self._is_settled(form)
        if form.settled:
            for sighting in form.sightings:
                sighting.count += 1
            return
        form.read += 1
        line = block.lines[index]
        holds = shape_of(line).__contains__
        if not form.sightings and len(line) < _REACH and not any(all(map(holds, wanted)) for wanted in form.pieces):
            return
        self._reads += 1
        for anchor in form.telling:
            self._asked[anchor] += 1
        form.sightings = tuple(self._take_errors(block, index, form, hits))

    def _take_marks(self, block: Block, index: int, form: _Form) -> None:
        number, line = block.numbers[index], block.lines[index]
        for anchor, position in self._places(line, form):
            targets = self._targets[anchor]
            for tool in targets.began:
                self.seen.began.setdefault(tool.id, number)
            told = text_around(line, position)
            for tool in targets.done:
                if any(
                    mark.strip().lower() in told.lower() for mark in tool.done
                ):  # an anchor minds no digit: "1 errors"
                    self.seen.finishes[tool.id] = Finish(tool=tool.id, line=number, text=told)
            for observation in targets.numbers:
                if observation.whole:
                    if every := re.findall(observation.whole, told):
                        part = re.findall(observation.pattern, told)
                        self.seen.numbers[observation.id] = (sum(map(float, part)), sum(map(float, every)))
                elif match := re.search(observation.pattern, told):
                    self.seen.numbers[observation.id] = tuple(map(float, match.groups()))

    def _take_trouble(self, block: Block, index: int, position: int) -> ErrorLine | None:
        """The entry for a line of trouble, not counted yet; None if the line is not one, or if there are too many."""
        text = text_around(block.lines[index], position)
        key = _VARIABLE.sub("#", text)
        known = self.seen.error_lines.get(key)
        trouble = None if _is_source(block, index) else trouble_of(text)
        if known or trouble is None:
            return known
        if len(self.seen.error_lines) >= _MOST_ERROR_LINES:
            self.seen.overlooked |= trouble == "failure"
            return None
        known = self.seen.error_lines[key] = ErrorLine(
            line=block.numbers[index], text=text, before=block.before(index), trouble=trouble, count=0
        )
        return known

    def _take_errors(self, block: Block, index: int, form: _Form, hits: Sequence[int]) -> Iterable[Sighting]:
        """The known errors that one line shows, each recorded once."""
        line, found, context = Spelled.of(block.lines[index]), dict[str, Sighting](), Spelled.of(b"")
        for anchor, position in self._places(line.plain, form):
            for error, text, strength in self._targets[anchor].errors:
                if not context.plain and " && " in "".join((text, *error.unless)):
                    around = block.lines[max(0, index - CONTEXT_LINES) : index + CONTEXT_LINES + 1]
                    context = Spelled.of(b"\n".join(line[:_LONGEST_BESIDE] for line in around))
                kept = match_pattern(text, line, position, context)
                # The line, or with ``&&`` a line next to it, may show by another word that it means something else.
                others = (
                    match_pattern(word, line, shape_of(line.plain).find(anchor_of(word)), context)
                    for word in error.unless
                )
                if kept is None or any(other is not None for other in others):
                    continue
                sighting = self.seen.errors.setdefault(error.id, Sighting(error=error))
                sighting.strengths.add(strength)
                sighting.fields = kept | sighting.fields
                number = block.numbers[index]
                known = sighting.hits.get(number)
                if len(sighting.hits) < _MOST_HITS and (known is None or known.words < len(text)):
                    after = _until_next(block, index, hits) if self._reads < _MANY_READS else ()
                    told = text_around(line.plain, position)
                    sighting.hits[number] = Hit(line=number, text=told, after=after, words=len(text))
                found[error.id] = sighting
        for sighting in found.values():
            sighting.count += 1
        return found.values()


def _is_source(block: Block, index: int) -> bool:
    """True for a line of source code outside a Python stack, whose frames show where it stopped."""
    line = block.lines[index][:_LONGEST_BESIDE].decode("utf-8", "replace")
    return bool(SOURCE.match(line)) and b'", line ' not in block.lines[index - 1]


def _until_next(block: Block, index: int, hits: Sequence[int]) -> tuple[str, ...]:
    """The lines after one, up to the next that shows a known error."""
    following = bisect_right(hits, index)
    end = min(index + CONTEXT_LINES, hits[following] if following < len(hits) else len(block.lines))
    return tuple(text_around(line, 0, limit=2000) for line in block.lines[index + 1 : end])
