"""Answers a failure that has no row from who speaks and how it fails; it reads no log and outranks no row."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile

from deploykit.answers.diagnosis.sightings import ErrorLine, Hit
from deploykit.answers.diagnosis.verdict import Cause
from deploykit.backend.known_errors import Catalog, FailureKind, KnownError, Speaker
from deploykit.findings import Confidence, Severity

__all__ = ["answer_by_structure"]

_BECAUSE = "by whose code fails and how; no row has these words"
_BECAUSE_OF_THE_LINE = "by what the line itself says; no row has these words"
_LONGEST_NAME = 160
_LONGEST_LINE = 2000
"""Characters of a line that are looked at; what is longer is a dump, and says what failed where it begins."""
_STACK = "Traceback (most recent call last)"
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|-?\d+")
_NAMED_FIRST = re.compile(r"\(\?P<name>[^()]*\)")
_MILD = re.compile(
    r"\[[WIVD](?::| {1,2}\d{1,2}/)|\b(?:WARNING|WARN|INFO|DEBUG|VERBOSE|[A-Z]\w+Warning)\b"
    r"|^[WIVD](?:/|\d{4,8} )|<[WIVD]>|^\d{4}-\S+ \S+: [WIVD] "
)
"""The line's own level says that it is none of a failure, whatever its words."""
_TORN_DOWN = re.compile(r"[\s:]~[A-Z]\w+[\]:(]")
"""A destructor speaks: what it misses follows from what ended the work before."""
_WARNING = re.compile(r"\[W:|\b(?:WARNING|WARN|Warning|[A-Z]\w+Warning)\b|^W(?:/|\d{4,8} )|<W>|^\d{4}-\S+ \S+: W ")


def answer_by_structure(lines: Iterable[ErrorLine], catalog: Catalog) -> Cause | None:
    """What the first line says whose kind of failure is known, and whose speaker is, where the kind needs one.

    A kind that says why comes before one that only says that something failed, a line of a failure before one of a
    doubt; a warning is asked only where nothing else says anything. Of a stack the frame nearest to the failure speaks;
    what stands on the failing line itself comes before any frame. None when there is no such line.
    """
    every = list(lines)
    severe = [line for line in every if not _MILD.search(line.text)]
    severe = [line for line in severe if not _TORN_DOWN.search(line.text)] or severe
    if (answer := _first(severe, catalog, mild=False)) is not None:
        return answer
    unexplained = any(line.trouble == "failure" for line in severe)
    return None if unexplained else _first((line for line in every if _WARNING.search(line.text)), catalog, mild=True)


def _first(lines: Iterable[ErrorLine], catalog: Catalog, *, mild: bool) -> Cause | None:
    """The first answer among lines of one level; of a warning only what says why by itself, as a warning."""
    kinds = sorted(catalog.kinds, key=lambda kind: not kind.speakers)
    if mild:
        kinds = [kind for kind in kinds if kind.alone and kind.root == "cause"]
    found = [(kind, line, names) for line in lines for kind, names in _kinds(line, kinds)]
    for kind, line, names in sorted(found, key=lambda item: _rank(item[0], item[1])):
        speaker = _speaker(line, catalog.speakers)
        if speaker is not None and speaker.id in (kind.speakers or (speaker.id,)):
            return _cause(line, speaker, kind, _spelled_out(names, catalog), mild=mild)
        if kind.alone and not kind.speakers:
            return _cause(line, speaker, kind, _spelled_out(names, catalog), mild=mild)
    return None


def _rank(kind: FailureKind, line: ErrorLine) -> tuple[bool, bool, int]:
    return kind.root != "cause", line.trouble != "failure", line.line


def _kinds(line: ErrorLine, kinds: Iterable[FailureKind]) -> Iterator[tuple[FailureKind, dict[str, str]]]:
    text = line.text[:_LONGEST_LINE]
    for kind in kinds:
        match = next((match for pattern in kind.patterns if (match := _search(pattern, text)) is not None), None)
        if match is not None:
            yield kind, _named(match, kind)


def _named(match: re.Match[str], kind: FailureKind) -> dict[str, str]:
    """The groups of a match, cut to a length that one reads."""
    given = ((key, (value or "").strip(" .,:;")[:_LONGEST_NAME]) for key, value in match.groupdict().items())
    names = {key: value for key, value in given if value}
    said = match.string[match.start() :].strip()[:_LONGEST_NAME]
    return {"name": kind.unnamed or said, **names}


def _speaker(line: ErrorLine, speakers: Iterable[Speaker]) -> Speaker | None:
    """Who speaks in the line itself, else in the nearest line above it that anybody does; the longest mark wins.

    What stands above a stack has nothing to say of the failure at its end.
    """
    known = tuple(speakers)
    for text in (line.text, *takewhile(lambda above: _STACK not in above, reversed(line.before))):
        plain = text.replace("\\", "/")
        marks = [(len(mark), speaker) for speaker in known for mark in speaker.marks if mark in plain]
        if marks:
            return max(marks, key=lambda pair: pair[0])[1]
    return None


def _spelled_out(names: dict[str, str], catalog: Catalog) -> dict[str, str]:
    """The same words, a number in the group ``code`` with what the tables say of it."""
    spelling = names.get("code", "")
    number = int(spelling, 16 if spelling[:2] == "0x" else 10) if _NUMBER.fullmatch(spelling) else None
    meaning = None if number is None else catalog.code(number)
    return names if meaning is None else {**names, "code": f"{spelling}, {meaning.meaning}"}


def _cause(line: ErrorLine, speaker: Speaker | None, kind: FailureKind, names: dict[str, str], *, mild: bool) -> Cause:
    words = defaultdict(lambda: kind.unnamed or "not named", names)
    words["speaker"] = "the program" if speaker is None else speaker.name
    advice = "" if speaker is None else f"; {speaker.advice}"
    row = KnownError(
        id=f"{'line' if speaker is None else speaker.id}/{kind.id}",
        cause=" ".join(kind.cause.format_map(words).split()),
        workaround=f"{kind.workaround.format_map(words)}{advice}",
        source=tuple(dict.fromkeys((*(() if speaker is None else speaker.source), *kind.source))),
        confidence=Confidence.INFERRED,
        symptom=line.text,
        severity=Severity.WARNING if mild else Severity.ERROR,
        root=kind.root,
        stage="" if speaker is None else speaker.stage,
    )
    hit = Hit(line=line.line, text=line.text)
    because = _BECAUSE_OF_THE_LINE if speaker is None else _BECAUSE
    return Cause(error=row, certainty="likely", count=line.count, hits=(hit,), because=because)


def _search(pattern: str, text: str) -> re.Match[str] | None:
    """A name that a pattern begins with may begin anywhere: what follows it is sought first, which is quick."""
    rest, whole = _compiled(pattern)
    return whole.search(text) if rest is None or rest.search(text) is not None else None


@cache
def _compiled(pattern: str) -> tuple[re.Pattern[str] | None, re.Pattern[str]]:
    name = _NAMED_FIRST.match(pattern)
    return None if name is None else re.compile(pattern[name.end() :]), re.compile(pattern)
