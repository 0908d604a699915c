"""Answers a failure that has no row from who speaks and how it fails; it reads no log and outranks no row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from deploykit.contract.known_errors import Catalog, FailureKind, KnownError, Speaker
from deploykit.diagnosis.sightings import ErrorLine, Hit
from deploykit.diagnosis.verdict import Cause
from deploykit.findings import Confidence

__all__ = ["answer_by_structure"]

_BECAUSE = "by whose code fails and how; no row has these words"
_LONGEST_NAME = 160
_LONGEST_LINE = 2000
"""Characters of a line that are looked at; what is longer is a dump, and says what failed where it begins."""
_NAMED_FIRST = re.compile(r"\(\?P<name>[^()]*\)")
_MILD = re.compile(r"\[[WIVD]:|\b(?:WARNING|WARN|INFO|DEBUG|VERBOSE|[A-Z]\w+Warning)\b|^[WIVD](?:/|\d{4,8} )|<[WIVD]>")
"""The line's own level says that it is none of a failure, whatever its words."""


def answer_by_structure(lines: Iterable[ErrorLine], catalog: Catalog) -> Cause | None:
    """What the first line says whose speaker and kind of failure are both known, None when there is no such line.

    A kind that says why comes before one that only says that something failed. Of a stack the frame nearest to the
    failure speaks; what stands on the failing line itself comes before any frame.
    """
    severe = [line for line in lines if not _MILD.search(line.text)]
    found = [(kind.root != "cause", line, kind, name) for line in severe for kind, name in _kinds(line, catalog)]
    for _, line, kind, name in sorted(found, key=lambda item: (item[0], item[1].line)):
        speaker = _speaker(line, catalog.speakers)
        if speaker is not None and speaker.id in (kind.speakers or (speaker.id,)):
            return _cause(line, speaker, kind, name)
    return None


def _kinds(line: ErrorLine, catalog: Catalog) -> Iterator[tuple[FailureKind, str]]:
    for kind in catalog.kinds:
        for pattern in kind.patterns:
            match = _search(pattern, line.text[:_LONGEST_LINE])
            if match is not None:
                yield kind, (match.groupdict().get("name") or "").strip(" .,:;")[:_LONGEST_NAME]
                return


def _speaker(line: ErrorLine, speakers: Iterable[Speaker]) -> Speaker | None:
    """Who speaks in the line itself, else in the nearest line above it that anybody does; the longest mark wins."""
    known = tuple(speakers)
    for text in (line.text, *reversed(line.before)):
        plain = text.replace("\\", "/")
        marks = [(len(mark), speaker) for speaker in known for mark in speaker.marks if mark in plain]
        if marks:
            return max(marks, key=lambda pair: pair[0])[1]
    return None


def _cause(line: ErrorLine, speaker: Speaker, kind: FailureKind, name: str) -> Cause:
    words = {"speaker": speaker.name, "name": name or kind.unnamed}
    row = KnownError(
        id=f"{speaker.id}/{kind.id}",
        cause=kind.cause.format(**words),
        workaround=f"{kind.workaround.format(**words)}; {speaker.advice}",
        source=tuple(dict.fromkeys((*speaker.source, *kind.source))),
        confidence=Confidence.INFERRED,
        symptom=line.text,
        root=kind.root,
        stage=speaker.stage,
    )
    hit = Hit(line=line.line, text=line.text)
    return Cause(error=row, certainty="likely", count=line.count, hits=(hit,), because=_BECAUSE)


def _search(pattern: str, text: str) -> re.Match[str] | None:
    """A name that a pattern begins with may begin anywhere: what follows it is sought first, which is quick."""
    rest, whole = _compiled(pattern)
    return whole.search(text) if rest is None or rest.search(text) is not None else None


@cache
def _compiled(pattern: str) -> tuple[re.Pattern[str] | None, re.Pattern[str]]:
    name = _NAMED_FIRST.match(pattern)
    return None if name is None else re.compile(pattern[name.end() :]), re.compile(pattern)
