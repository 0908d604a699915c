"""The tables are in order: each source names a place, was compared lately, and no other row says the opposite.

Nothing is looked up: a source resolves when it names a place where one can look.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from itertools import combinations
from typing import Any

from packaging.version import Version

from deploykit.answers.rule_pages import all_rules
from deploykit.backend.plugins import load_backends
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status

NUMBER = r"\d+\.\d+"
PLACES = (
    r"[\w.-]+/[\w.-]+#\d+|\bdiscussion \d+",  # a thread
    r"\b\d{2}-\w{5}-\d+|\b(UG|XD)\d{3,}|(?i:\bdocumentation\b|\bchangelog\b)",  # a document
    r"\b[\w-]+\.[\w.-]*(com|org|io|ai)\b",  # a page
    rf"{NUMBER}.*\b(run|observed|executed|read|opened)\b|\b(run|observed|compilers?|opened|compiled)\b.*{NUMBER}",
    rf"\b(found|inside|libraries|on Linux)\b.*{NUMBER}|{NUMBER}.*\bon Linux\b|\bpackage metadata\b",  # executions
    r"(^|\brepository )[A-Za-z][\w.-]+/[\w.-]+",
    r"\bIEEE \d+|\bONNX operators?\b",  # a standard
    rf"(^|\bwith )[\w-]+( wheels)? {NUMBER}",  # a package
    # A user's, in a repository that cannot be named: one can doubt them and not look them up.
    r"\b(public|third-party) repositor(y|ies)\b|^user (lab )?notes\b|\bpublic copies\b",
)
OWN = re.compile(r"^deploykit: |\b(tables?|rows|data file|naming of|compiler named in the message)\b")
ABSENCE = re.compile(r"no (public|per-|source|word)|nobody ")


def names_a_place(source: str) -> bool:
    return any(re.search(place, source) for place in PLACES)


def unresolved(sources: Iterable[str], confidence: Confidence | None, *, computes: bool = False) -> Iterator[str]:
    """The sources of one row that name no place, and a row without any; an absence is a source of inferences only.

    What ``computes``, a rule, may also name the tables and the measurement that it puts together itself.
    """
    given = tuple(sources)
    if not given:
        yield "no source"
    for source in given:
        absent = ABSENCE.match(source) is not None and confidence in (Confidence.INFERRED, None)
        own = computes and OWN.search(source) is not None
        if not (names_a_place(source) or absent or own):
            yield source


def stale(dates: Mapping[str, str], sources: Iterable[str], today: date) -> Iterator[str]:
    """Sources that were compared with their rows more than a year ago, or nobody says when.

    ``dates`` holds by the beginning of a source when that was ("2026-09-30"), under "" for every other one; a mark
    behind the date ("2024-05-01 closed thread, cannot change") says why it needs no second look.
    """
    for source in dict.fromkeys(sources):
        begins = max((start for start in dates if source.startswith(start)), key=len, default="")
        when, _, mark = dates.get(begins, "").partition(" ")
        if not when or (not mark and today - date.fromisoformat(when) > timedelta(days=365)):
            yield source


def contradictions(rows: Iterable[CompatRow]) -> Iterator[tuple[CompatRow, CompatRow]]:
    """Pairs of rows about one thing that say different things of one release, and neither names the other side."""
    about: dict[tuple[str, ...], list[CompatRow]] = {}
    for row in rows:
        about.setdefault((row.backend, row.feature, row.tool, row.arch, row.family), []).append(row)
    for found in about.values():
        for one, other in combinations(found, 2):
            if one.status != other.status and overlap(one, other) and not (one.contradicts or other.contradicts):
                yield one, other


def overlap(one: CompatRow, other: CompatRow) -> bool:
    """True when some release is in both ranges; a row without releases is about the one it names, or about all."""
    if not (one.since or other.since) and one.sdk and other.sdk:
        return one.sdk == other.sdk
    return all(
        not (first.since and second.until) or Version(first.since) <= Version(second.until)
        for first, second in ((one, other), (other, one))
    )


def row(status: str, since: str = "", until: str = "", **more: Any) -> CompatRow:
    fields = {"backend": "b", "tool": "t", "sdk": "", "note": "", "source": ("a/b#1",), "confidence": None, **more}
    return CompatRow(feature="f", status=Status(status), since=since, until=until, **fields)


def test_the_shipped_tables_are_in_order() -> None:
    """On the day of the newest comparison."""
    rows, wrong = 0, list[Any]()
    for backend in load_backends():
        capabilities = tuple(backend.compat())
        given = [(row.feature, row.source, row.confidence) for row in capabilities]
        for device in backend.devices():
            given += [(f"{device.id} {name}", fact.source, fact.confidence) for name, fact in device.facts.items()]
        rows += len(given)
        wrong += contradictions(capabilities)
        wrong += [(subject, found) for subject, told, sure in given for found in unresolved(told, sure)]
        sources = [source for _, of_row, _ in given for source in of_row]
        wrong += stale(backend.source_dates(), sources, date(2026, 11, 22))
        assert list(stale(backend.source_dates(), sources, date(2028, 1, 1)))
    rules = [entry.rule for entry in all_rules(())]
    wrong += [(rule.code, found) for rule in rules for found in unresolved(rule.sources, None, computes=True)]
    assert wrong == []
    assert rows > 3000 and len(rules) > 150
