"""Judges what was seen in a log: which cause is the root, what merely follows, what is unknown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from deploykit.answers.diagnosis.collecting import Collected, ErrorLine, Hit, Sighting, collect
from deploykit.answers.diagnosis.events import codes_of, event_of
from deploykit.answers.diagnosis.lines import CONTEXT_LINES
from deploykit.answers.diagnosis.names import MappedName, Names
from deploykit.answers.diagnosis.patterns import match_pattern
from deploykit.answers.diagnosis.structure import answer_by_structure
from deploykit.answers.diagnosis.verdict import Cause, CodeSeen, Diagnosis, FollowUp
from deploykit.findings import Severity
from deploykit.system.files import open_regular
from deploykit.tables.known_errors import Catalog, KnownError, Root, Tool, merge_catalogs

__all__ = ["diagnose", "diagnose_log"]

_FIELD = re.compile(r"\{([a-z_]+)\}")
_WORD = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]{3,}")
_GENERAL = frozenset(
    {
        *("err", "error", "errors", "failed", "failur", "fail", "code", "status", "return", "with", "ended", "not"),
        *("could", "cannot", "from", "the", "and", "for", "gave", "invali", "unknow", "suppor", "result"),
        *("index", "unable"),
    }
)
_MOST_UNKNOWN = 8
_MOST_CODES = 20
_MOST_BY_CODE = 3
_NO_NAMES = Names()
_NO_ROW_SAYS_WHY = "by what the line itself says; rows have words of this log, and none says why"
_COLLECT = (
    "the whole log from the first command on, not only its end",
    "the exact command line and the configuration files it was given",
    "the version of the SDK or wheel, and the device it was built for",
)


def diagnose(
    stream: IO[bytes],
    errors: Catalog | Iterable[Catalog],
    names: Names | None = None,
    *,
    tools: Iterable[str] = (),
) -> Diagnosis:
    """Read a log of any size, once, and say what went wrong.

    ``names`` are those of the model, to map mangled names back. ``tools`` are tools known to have written the log, for
    messages too general to be trusted otherwise. Raises nothing on account of what the log holds.
    """
    catalog = errors if isinstance(errors, Catalog) else merge_catalogs(errors)
    seen = collect(stream, catalog)
    known_tools = {*seen.began, *tools}
    found = [sighting for sighting in seen.errors.values() if _trusted(sighting, known_tools)]
    shown = [_cause(sighting, catalog, names or _NO_NAMES, known_tools) for sighting in found]
    causes = _group([*shown, *_by_structure(shown, seen, catalog, known_tools)])
    codes = tuple(_codes(_lines(found, seen), catalog))
    causes = _in_order([*causes, *_by_code(causes, found, codes, catalog, known_tools)])
    failed = any(cause.error.severity is Severity.ERROR and cause.error.root != "follow-up" for cause in causes)
    loose = _unexplained(seen, found)
    events = tuple(event_of(line, catalog) for line in loose)
    foreign = {tool.id for tool in catalog.tools if tool.foreign}
    failures = [line for line in loose if line.trouble == "failure"]
    marks = [tool for tool in catalog.tools if tool.id in known_tools]
    diagnosis = Diagnosis(
        causes=tuple(causes),
        codes=codes,
        numbers=seen.numbers,
        events=tuple(event for event in events if event.level not in ("warning", "note"))[:_MOST_UNKNOWN],
        recognised=bool(causes) or not {*known_tools, *(event.tool for event in events)} - {""} <= foreign,
        finished=tuple(sorted(seen.finishes.values(), key=lambda finish: finish.line)),
        unfinished=_unfinished(seen),
        unknown=() if failed else tuple(failures[:_MOST_UNKNOWN]),
        doubts=() if failed else tuple(line for line in loose if line.trouble == "doubt")[:_MOST_UNKNOWN],
        overlooked=seen.overlooked,
        tools=tuple(sorted(known_tools)),
        lines=seen.lines,
        size=seen.size,
    )
    if diagnosis.understood:
        return diagnosis
    return replace(diagnosis, tail=seen.tail, collect=_wanted(marks))


def _by_structure(shown: Sequence[Cause], seen: Collected, catalog: Catalog, tools: set[str]) -> Iterator[Cause]:
    """Where no row says why: what follows from whose code failed and how. Never beside a row that does."""
    roots = {cause.error.root for cause in shown if cause.error.severity is Severity.ERROR}
    if "cause" in roots:
        return
    harmless = {hit.line for cause in shown if cause.error.severity is not Severity.ERROR for hit in cause.hits}
    lines = [line for line in seen.error_lines.values() if line.line not in harmless]
    if seen.finishes:
        lines = [line for line in lines if line.trouble == "failure"]
    cause = answer_by_structure(lines, catalog, tools)
    if cause is None or (roots and cause.error.severity is not Severity.ERROR):
        return
    if not roots:
        yield cause
    elif cause.error.root == "cause":
        yield replace(cause, because=_NO_ROW_SAYS_WHY)


def _unexplained(seen: Collected, found: Iterable[Sighting]) -> list[ErrorLine]:
    """Lines that look like trouble and that no known message explains, by line number."""
    explained = {line for sighting in found for line in sighting.hits}
    loose = [line for line in seen.error_lines.values() if line.line not in explained]
    return sorted(loose, key=lambda line: line.line)


def _unfinished(seen: Collected) -> tuple[str, ...]:
    """Tools whose first mark comes after everything that says that a tool is done."""
    last = max((finish.line for finish in seen.finishes.values()), default=0)
    return tuple(sorted(tool for tool, line in seen.began.items() if line > last)) if last else ()


def diagnose_log(log: Path, catalog: Catalog, names: Names | None = None, *, tools: Iterable[str] = ()) -> Diagnosis:
    """``diagnose`` for a file; raises InputError when it cannot be read."""
    with open_regular(log) as stream:
        return diagnose(stream, catalog, names, tools=tools)


def _wanted(tools: Iterable[Tool]) -> tuple[str, ...]:
    return (*(text for tool in tools for text in tool.collect), *_COLLECT)


def _trusted(sighting: Sighting, tools: set[str]) -> bool:
    """Weak words alone count only in a log that one of the row's tools wrote."""
    return bool(sighting.hits) and (sighting.strengths != {"weak"} or not tools.isdisjoint(sighting.error.tools))


def _cause(sighting: Sighting, catalog: Catalog, names: Names, tools: set[str]) -> Cause:
    """The row as this log shows it: as telling as its most telling words, with what they keep filled in."""
    row, said = sighting.error, sighting.strengths
    weak = "match" not in said and "weak" in said and not tools.isdisjoint(row.tools)
    root: Root = "follow-up"
    if said & {"match", "mild"} or weak:
        root = row.root
    elif "general" in said:
        root = "symptom"
    fields = defaultdict(lambda: "…", {"parts": "several", **sighting.fields})
    size, limit = (int("0" + re.sub(r"\D", "", fields[key])) for key in ("size", "limit"))
    if size > limit > 0:
        fields["parts"] = str(-(-size // limit))
    error = replace(
        row,
        root=root,
        severity=Severity.WARNING if said == {"mild"} and row.severity is Severity.ERROR else row.severity,
        cause=_FIELD.sub(lambda field: fields[field[1]], row.cause),
        workaround=_FIELD.sub(lambda field: fields[field[1]], row.workaround),
    )
    hits = tuple(hit for _, hit in sorted(sighting.hits.items()))
    return Cause(
        error=error,
        certainty="possible" if weak else "likely",
        count=sighting.count,
        hits=hits,
        names=tuple(_names(hits, names)),
        terms=tuple(_terms(hits, catalog)),
        fields=dict(sighting.fields),
        because="the wording is general, the tool fits" if weak else "",
    )


def _names(hits: Iterable[Hit], names: Names) -> Iterator[MappedName]:
    """The names of each line that shows the cause, or of the first line after it that names anything."""
    seen: set[tuple[str, ...]] = set()
    for hit in hits:
        found = next((found for line in (hit.text, *hit.after) if (found := names.find(line))), [])
        for mapped in found:
            if mapped.onnx not in seen:
                seen.add(mapped.onnx)
                yield mapped


def _terms(hits: Iterable[Hit], catalog: Catalog) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for hit in hits:
        for line in (hit.text, *hit.after):
            for reader in catalog.explain:
                for term, meaning in reader(line):
                    if term not in seen:
                        seen.add(term)
                        yield term, meaning


def _group(causes: list[Cause]) -> list[Cause]:
    """Attach errors that merely follow to the error that explains them; warnings and information stand alone."""
    failures = [cause for cause in causes if cause.error.severity is Severity.ERROR]
    roots = sorted((cause for cause in failures if cause.error.root == "cause"), key=_place)
    for rank in ("symptom", "follow-up"):
        loose = [cause for cause in failures if cause.error.root == rank]
        for cause in sorted(loose, key=lambda cause: (cause.first_line, -_words_said(cause))):
            owner = _owner(cause, roots)
            if owner is None:
                roots = sorted([*roots, cause], key=_place)
            else:
                roots[owner] = _with_follow_up(roots[owner], cause)
    return [*roots, *(cause for cause in causes if cause.error.severity is not Severity.ERROR)]


def _owner(cause: Cause, roots: list[Cause]) -> int | None:
    """The last root that shows before the cause does, or the first in the lines right after it."""
    reach = cause.hits[-1].line + CONTEXT_LINES
    earlier = [index for index, root in enumerate(roots) if root.first_line <= reach and _explains(root, cause)]
    before = [index for index in earlier if roots[index].first_line <= cause.first_line]
    if before:
        return before[-1]
    return min(earlier, key=lambda index: (roots[index].first_line, -_words_said(roots[index])), default=None)


def _explains(root: Cause, cause: Cause) -> bool:
    """A cause explains anything, a general wording what follows from it and a vaguer one of the same line.

    A mere possibility explains nothing.
    """
    both_general = root.error.root == cause.error.root == "symptom"
    vaguer = root.first_line == cause.first_line and _words_said(root) > _words_said(cause)
    return root.certainty == "likely" and (not both_general or vaguer)


def _with_follow_up(root: Cause, cause: Cause) -> Cause:
    follow_up = FollowUp(error=cause.error, count=cause.count, first_line=cause.first_line)
    named = {name.onnx for name in root.names}
    terms = {term for term, _ in root.terms}
    return replace(
        root,
        follow_ups=(*root.follow_ups, follow_up),
        names=(*root.names, *(name for name in cause.names if name.onnx not in named)),
        terms=(*root.terms, *(pair for pair in cause.terms if pair[0] not in terms)),
    )


def _in_order(causes: list[Cause]) -> list[Cause]:
    """Errors first; among them the certain, then those that others follow from, then the earliest.

    Of two on one line that with the longer words comes first: it says more of this line.
    """
    return sorted(
        causes,
        key=lambda cause: (
            cause.error.severity.rank,
            cause.certainty != "likely",
            cause.error.root != "cause",
            not cause.follow_ups,
            cause.first_line,
            -_words_said(cause),
        ),
    )


def _place(cause: Cause) -> tuple[int, int]:
    """Where a cause first shows; of two on one line the one that says more comes last, nearest to what follows."""
    return cause.first_line, _words_said(cause)


def _words_said(cause: Cause) -> int:
    """The length of the longest pattern of a row in the first line that shows it."""
    line = cause.hits[0].text.encode() if cause.hits else b""
    texts = (text.partition(" && ")[0] for text in cause.error.patterns)
    return max((len(text) for text in texts if match_pattern(text, line, len(line) // 2, ()) is not None), default=0)


def _lines(found: Iterable[Sighting], seen: Collected) -> Iterator[str]:
    for sighting in found:
        for hit in sighting.hits.values():
            yield hit.text
    for line in seen.error_lines.values():
        yield line.text


def _codes(lines: Iterable[str], catalog: Catalog) -> Iterator[CodeSeen]:
    """Every code that a line of trouble names, known or not."""
    codes: dict[int, CodeSeen] = {}
    for line in lines:
        for number, spelling in codes_of(line):
            seen = codes.get(number)
            if seen is None and len(codes) < _MOST_CODES:
                codes[number] = CodeSeen(code=number, spelling=spelling, meaning=catalog.code(number), lines=(line,))
            elif seen is not None:
                codes[number] = replace(seen, lines=(*seen.lines, line))
    yield from sorted(codes.values(), key=lambda code: code.code)


def _by_code(
    causes: list[Cause], found: list[Sighting], codes: Iterable[CodeSeen], catalog: Catalog, tools: set[str]
) -> Iterator[Cause]:
    """When no message is known, the rows that carry a code of the log, as possibilities.

    Only rows that the words beside the code speak of too: the same number is given for unlike failures.
    """
    if any(cause.error.severity is Severity.ERROR for cause in causes):
        return
    known = {sighting.error.id for sighting in found}
    own = _words(" ".join(tool.id for tool in catalog.tools if tool.marks))
    for code in codes:
        words = _words(" ".join(code.lines)) - own
        rows = [row for row in catalog.errors if code.code in row.codes and row.id not in known]
        rows = [row for row in rows if words & _words(f"{row.symptom} {' '.join(row.patterns)} {row.code_note}")]
        for row in sorted(rows, key=lambda row: _fit(row, tools))[:_MOST_BY_CODE]:
            known.add(row.id)
            yield Cause(error=row, certainty="possible", count=0, because=f"by the code {code.spelling} and its words")


def _words(text: str) -> set[str]:
    """The words of a message by their first six letters, without those that any failure has."""
    words = (word.lower()[:6] for word in _WORD.findall(text))
    return {word for word in words if word not in _GENERAL}


def _fit(row: KnownError, tools: set[str]) -> tuple[bool, bool]:
    return (tools.isdisjoint(row.tools), row.root == "cause" and len(row.codes) > 1)
