"""Are the tables in order: does each source name a place, was it compared lately, does another row say the opposite?

It looks nothing up: a source resolves when it names a place where one can look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from deploykit.backend.plugins import all_registries, load_backends
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow

if TYPE_CHECKING:
    from deploykit.backend.backend import AnyBackend

__all__ = ["Audit", "Problem", "audit_tables", "contradictions", "source_form", "stale_sources", "unresolved"]

_YEAR = timedelta(days=365)
_NUMBER = r"\d+\.\d+"
_FORMS: Mapping[str, re.Pattern[str]] = {
    "thread": re.compile(r"[\w.-]+/[\w.-]+#\d+|\bdiscussion \d+"),
    "document": re.compile(r"\b\d{2}-\w{5}-\d+|\b(UG|XD)\d{3,}|\bdocumentation\b|\bchangelog\b", re.IGNORECASE),
    "page": re.compile(r"\b[\w-]+\.[\w.-]*(com|org|io|ai)\b"),
    "execution": re.compile(
        rf"{_NUMBER}.*\b(run|observed|executed|read|opened)\b|\b(run|observed|compilers?|opened|compiled)\b.*{_NUMBER}"
        rf"|\b(found|inside|libraries|on Linux)\b.*{_NUMBER}|{_NUMBER}.*\bon Linux\b|\bpackage metadata\b"
    ),
    "repository": re.compile(r"(^|\brepository )[A-Za-z][\w.-]+/[\w.-]+"),
    "standard": re.compile(r"\bIEEE \d+|\bONNX operators?\b"),
    "package": re.compile(rf"(^|\bwith )[\w-]+( wheels)? {_NUMBER}"),
    "notes": re.compile(r"\b(public|third-party) repositor(y|ies)\b|^user (lab )?notes\b|\bpublic copies\b"),
}
_OWN = re.compile(r"^deploykit: |\b(tables?|rows|data file|naming of|compiler named in the message)\b")
_ABSENCE = re.compile(r"no (public|per-|source|word)|nobody ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is not in order: ``kind`` is source, stale or contradiction."""

    kind: str
    subject: str
    detail: str


def source_form(source: str) -> str:
    """What kind of place a source names: thread, document, page, execution, repository, notes; "" for none.

    ``notes`` are a user's, in a repository that cannot be named: one can doubt them and not look them up.
    """
    return next((form for form, pattern in _FORMS.items() if pattern.search(source)), "")


def unresolved(
    subject: str, sources: Iterable[str], confidence: Confidence | None, *, computes: bool = False
) -> Iterator[Problem]:
    """The sources of one row that name no place, and a row without any; an absence is a source of inferences only.

    What ``computes``, a rule, may also name the tables and the measurement that it puts together itself.
    """
    given = tuple(sources)
    if not given:
        yield Problem(kind="source", subject=subject, detail="no source")
    for source in given:
        absent = _ABSENCE.match(source) is not None and confidence in (Confidence.INFERRED, None)
        own = computes and _OWN.search(source) is not None
        if not (source_form(source) or absent or own):
            yield Problem(kind="source", subject=subject, detail=f"{source!r} names no place to look at")


def stale_sources(dates: Mapping[str, str], sources: Iterable[str], today: date) -> Iterator[Problem]:
    """Sources that were compared with their rows more than a year ago, one problem per date.

    ``dates`` holds by the beginning of a source when that was ("2026-09-30"), under "" for every other one; a mark
    behind the date ("2024-05-01 closed thread, cannot change") says why it needs no second look.
    """
    old: dict[str, list[str]] = {}
    for source in dict.fromkeys(sources):
        begins = max((start for start in dates if source.startswith(start)), key=len, default=None)
        when, _, mark = (dates[begins] if begins is not None else "").partition(" ")
        if not when:
            yield Problem(kind="stale", subject=source, detail="no date says when it was compared")
        elif not mark and today - date.fromisoformat(when) > _YEAR:
            old.setdefault(when, []).append(source)
    for when, found in sorted(old.items()):
        yield Problem(kind="stale", subject=found[0], detail=f"{len(found)} sources were compared on {when}")


def contradictions(rows: Iterable[CompatRow]) -> Iterator[Problem]:
    """Pairs of rows about one thing that say different things of one release, and neither names the other side."""
    about: dict[tuple[str, ...], list[CompatRow]] = {}
    for row in rows:
        about.setdefault((row.backend, row.feature, row.tool, row.arch, row.family), []).append(row)
    for found in about.values():
        for one, other in combinations(found, 2):
            if one.status != other.status and _overlap(one, other) and not (one.contradicts or other.contradicts):
                subject = " ".join(part for part in (one.feature, one.backend, one.tool, one.arch) if part)
                detail = f"{one.status} ({one.sdk or 'always'}) and {other.status} ({other.sdk or 'always'})"
                yield Problem(kind="contradiction", subject=subject, detail=detail)


def _overlap(one: CompatRow, other: CompatRow) -> bool:
    """True when some release is in both ranges; a row without releases is about the one it names, or about all."""
    if not (one.since or other.since) and one.sdk and other.sdk:
        return one.sdk == other.sdk
    return _starts_before_end(one, other) and _starts_before_end(other, one)


def _starts_before_end(one: CompatRow, other: CompatRow) -> bool:
    return not (one.since and other.until) or Version(one.since) <= Version(other.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """How many rows and rules were looked at, what their sources name, and what is not in order."""

    rows: int
    rules: int
    forms: Mapping[str, int]
    problems: tuple[Problem, ...]


def audit_tables(today: date) -> Audit:
    """Every capability row, device fact and rule of the installed backends."""
    problems: dict[Problem, None] = {}
    sources: Counter[str] = Counter()
    rows = 0
    for backend in load_backends():
        capabilities = tuple(backend.compat())
        rows += len(capabilities)
        problems.update(dict.fromkeys(contradictions(capabilities)))
        own: Counter[str] = Counter()
        for subject, given, confidence in _rows(backend, capabilities):
            own.update(given)
            problems.update(dict.fromkeys(unresolved(subject, given, confidence)))
        problems.update(dict.fromkeys(stale_sources(backend.source_dates(), own, today)))
        sources.update(own)
        rows += sum(len(device.facts) for device in backend.devices())
    rules = [rule for registry in all_registries() for rule in registry]
    for rule in rules:
        problems.update(dict.fromkeys(unresolved(f"rule {rule.code}", rule.sources, None, computes=True)))
    forms: Counter[str] = Counter()
    for source, count in sources.items():
        forms[source_form(source) or "absence"] += count
    return Audit(rows=rows, rules=len(rules), forms=dict(sorted(forms.items())), problems=tuple(problems))


def _rows(backend: AnyBackend, capabilities: tuple[Any, ...]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    for row in capabilities:
        yield f"{row.feature} {row.tool or row.backend} {row.sdk}".strip(), row.source, row.confidence
    for device in backend.devices():
        for name, fact in device.facts.items():
            yield f"device {device.id} {name}", fact.source, fact.confidence
