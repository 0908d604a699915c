"""Turns the findings in a log into a diagnosis: which cause is the root, what only follows, what is unknown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from deploykit.answers.diagnosis.collecting import Collected, ErrorLine, Sighting, collect
from deploykit.answers.diagnosis.events import codes_of, event_of, level_of
from deploykit.answers.diagnosis.lines import CONTEXT_LINES
from deploykit.answers.diagnosis.names import Names
from deploykit.answers.diagnosis.structure import NOBODY, answer_by_structure, end_of_first_step
from deploykit.answers.diagnosis.trouble import TOLD, trouble_of
from deploykit.answers.diagnosis.verdict import Cause, CodeSeen, Diagnosis
from deploykit.findings import Severity
from deploykit.system.files import open_regular
from deploykit.tables.known_errors import Catalog, LineForm, merge_catalogs

__all__ = ["diagnose", "diagnose_log"]

_FIELD = re.compile(r"\{([a-z_]+)\}")
_MOST_UNKNOWN = 8
_GONE_ON = 50  # lines after a failure; a failure that stops a run is followed only by a stack trace
_PAST_A_DOUBT = 30
_PAST_A_DOUBT_OF_OTHERS = 5
_OF_OTHERS = ("foreign/", "line/")
_WELL = re.compile(  # messages of a successful run
    r"\b(?:[Ss]uccess(?:fully)?|SUCCESS|succeeded|PASS(?:ED)?|\d passed|(?:saved|written) (?:to|at|in))\b"
    r"|\b(?:completed?|finished|Done)\W*$"
)
_PASSED_OVER = re.compile(  # not an error line, and says that the program goes on
    r"^(?!\W*E(?:RR|rr)).*?(?i:\b(?:skip(?:ped|ping|s)?|ignor(?:ed|ing)|non-fatal|not fatal|optional|continuing)\b)"
)
_LET_GO = re.compile(r"\b(?:[Ff]ailed|[Uu]nable) to (?:close|free|release|destroy|unmap|unload|disconnect)\b")
_MOST_CODES = 20
_MOST_PARSED = 60  # lines of trouble at either end to parse into events; each takes milliseconds
_NO_ROW_SAYS_WHY = "by what the line itself says; rows have words of this log, and none says why"
_COLLECT = (
    "the whole log from the first command on, not only its end",
    "the exact command line and the configuration files it was given",
    "the version of the SDK or wheel, and the device it was built for",
)
_CUT = "the end of the Python stack: the log stops before the line that says why"
_FRAME = re.compile(r'File "|-*>? ?\d+ ')
_PROCESS = re.compile(r"^(?:\d+-)?\d\d-\d\d [\d:.]+ +(\d+)[ -]")


def diagnose(
    stream: IO[bytes],
    errors: Catalog | Iterable[Catalog],
    names: Names | None = None,
    *,
    tools: Iterable[str] = (),
) -> Diagnosis:
    """Read a log of any size, once, and diagnose it.

    ``names`` are those of the model, used to map mangled names back; None maps none. ``tools`` are tools known to have
    written the log, for messages too general to be trusted otherwise. No content of the log makes it raise an
    exception.
    """
    catalog = errors if isinstance(errors, Catalog) else merge_catalogs(errors)
    seen = collect(stream, catalog)
    known_tools = {*seen.began, *tools}
    # Weak patterns alone count only in a log that one of the row's tools wrote.
    found = [
        sighting
        for sighting in seen.errors.values()
        if sighting.strengths != {"weak"} or not known_tools.isdisjoint(sighting.error.tools)
    ]
    calm = {line for one in found if one.error.severity is Severity.INFO for line in one.hits}
    failing = any(
        line.trouble == "failure" and line.line not in calm and level_of(line.text, catalog.forms)[0] in ("error", "")
        for line in seen.error_lines.values()
    )
    well = not failing and _did_well(seen, catalog.forms) is True
    end = end_of_first_step(seen.error_lines.values())
    shown = [_cause(one, catalog, names or Names(), known_tools, failing=failing, well=well, end=end) for one in found]
    past = [cause for cause in shown if _is_past(cause, seen, catalog.forms) or _is_passed_over(cause, seen)]
    shown = [replace(one, error=replace(one.error, severity=Severity.WARNING)) if one in past else one for one in shown]
    aside = [cause for cause in shown if all(TOLD.search(hit.text) for hit in cause.hits)]
    shown = [cause for cause in shown if cause not in aside]
    causes = _in_order(_group([*shown, *_by_structure(shown, aside, seen, catalog, known_tools)]), catalog.forms)
    hit_lines = {hit.line: hit.text for sighting in found for hit in sighting.hits.values()}
    told = [*hit_lines.values(), *(line.text for line in seen.error_lines.values())]
    codes = {
        number: spelling
        for line in told or (() if seen.finishes else seen.tail)
        for number, spelling in codes_of(line)  # known or not
    }
    causes = sorted([*causes, *_in_order(_group(aside), catalog.forms)], key=lambda cause: cause.error.severity.rank)
    failed = {cause.error.root for cause in causes if cause.error.severity is Severity.ERROR} - {"follow-up"}
    explained = hit_lines.keys() - {hit.line for cause in past for hit in cause.hits}
    events = tuple(event_of(line, catalog) for line in _first_and_last([*seen.error_lines.values()]))
    beside = {tool.id for tool in catalog.tools if tool.foreign or tool.drives_others}
    nobody = {*known_tools, *(event.tool for event in events)} - {""} <= beside
    if nobody:  # a general message of any program: report it, and that nothing here is about the NPU
        causes = [
            cause
            if cause.error.root == "cause" or NOBODY in cause.because
            else replace(cause, because=f"{cause.because}; {NOBODY}".strip("; "))
            for cause in causes
        ]
    unexplained = [line for line in seen.error_lines.values() if not failed and line.line not in explained]
    finished = tuple(sorted(seen.finishes.values(), key=lambda finish: finish.line))
    diagnosis = Diagnosis(
        causes=tuple(causes),
        codes=tuple(
            CodeSeen(code=number, spelling=spelling, meaning=catalog.code(number))
            for number, spelling in sorted(islice(codes.items(), _MOST_CODES))
        ),
        numbers=seen.numbers,
        events=tuple(event for event in events if event.level in ("error", "") and event.line not in explained)[
            :_MOST_UNKNOWN
        ],
        recognised=not nobody or any(cause.error.root == "cause" for cause in causes),
        finished=finished,
        unfinished=tuple(sorted(tool for tool, line in seen.began.items() if finished and line > finished[-1].line)),
        unknown=tuple(line for line in unexplained if line.trouble == "failure")[:_MOST_UNKNOWN],
        doubts=tuple(line for line in unexplained if line.trouble == "doubt")[:_MOST_UNKNOWN],
        overlooked=seen.overlooked,
        tools=tuple(sorted(known_tools)),
        lines=seen.lines,
        size=seen.size,
    )
    if diagnosis.understood and failed != {"symptom"}:
        return diagnosis
    cut = [_CUT] * any(map(_FRAME.match, seen.tail[-2:]))
    asked = [text for tool in catalog.tools if tool.id in known_tools for text in tool.collect]
    return replace(diagnosis, tail=seen.tail, collect=(*cut, *asked, *_COLLECT))


def _first_and_last(lines: list[ErrorLine]) -> list[ErrorLine]:
    """Return the lines that can show the reason: at the beginning of the trouble and at the end of the run."""
    return [*lines[:_MOST_PARSED], *lines[_MOST_PARSED:][-_MOST_PARSED:]]


def _by_structure(
    shown: Sequence[Cause], aside: Sequence[Cause], seen: Collected, catalog: Catalog, tools: set[str]
) -> Iterator[Cause]:
    """Yield the cause that follows from which code failed and how, if no row explains the failure.

    If a row does, yield nothing. The causes in ``aside``, which only the author of the report mentions, do not count as
    an explanation.
    """
    roots = {cause.error.root for cause in shown if cause.error.severity is Severity.ERROR}
    if "cause" in roots:
        return
    calm = [cause for cause in shown if cause.error.severity is not Severity.ERROR]
    harmless = {hit.line for cause in (*calm, *aside) for hit in cause.hits}
    lines = [
        line
        for line in seen.error_lines.values()
        if line.line not in harmless and not ((roots or aside) and TOLD.search(line.text))
    ]
    # In the log of a whole phone, only lines of the processes with known failures count.
    ours = {process for cause in shown for hit in cause.hits for process in _PROCESS.findall(hit.text)}
    lines = [line for line in lines if not ours or ours.issuperset(_PROCESS.findall(line.text))]
    failing = [line for line in lines if line.trouble == "failure"]
    if seen.finishes:
        lines = failing
    elif not failing:  # a run that continued after a doubt was not stopped by it
        lines = [line for line in lines if seen.lines - line.line < _PAST_A_DOUBT]
    cause = answer_by_structure(_first_and_last(lines), catalog, tools)
    if (
        cause is None
        or (roots and cause.error.severity is not Severity.ERROR)
        or _is_past(cause, seen, catalog.forms)
        or (cause.error.id.startswith(_OF_OTHERS) and _went_on(seen, catalog.forms))
    ):
        return
    if not roots:
        yield cause
    elif cause.error.root == "cause" or (
        roots == {"follow-up"} and all(one.first_line != cause.first_line for one in shown)
    ):  # that a line stops something says no more than the row that knows what the line follows from
        yield replace(cause, because=_NO_ROW_SAYS_WHY)


def _is_past(cause: Cause, seen: Collected, forms: Iterable[LineForm]) -> bool:
    """Whether the cause is only a symptom, and a tool of it or the whole run later reported success."""
    if cause.error.root != "symptom" or cause.error.severity is not Severity.ERROR:
        return False
    done = max((finish.line for finish in seen.finishes.values() if finish.tool in cause.error.tools), default=0)
    return done > cause.hits[-1].line or _did_well(seen, forms) is True


def _is_passed_over(cause: Cause, seen: Collected) -> bool:
    """Whether each line of the cause says that the program continues without this, and another line fails later."""
    return all(_PASSED_OVER.search(hit.text) and trouble_of(hit.text) == "failure" for hit in cause.hits) and any(
        line.trouble == "failure" and line.line > cause.hits[-1].line and not _PASSED_OVER.search(line.text)
        for line in seen.error_lines.values()
    )


def _went_on(seen: Collected, forms: Iterable[LineForm]) -> bool:
    """Whether the run reported success after its last failure, or continued for many lines."""
    well = _did_well(seen, forms)
    if well is not None:
        return well
    failures = [line.line for line in seen.error_lines.values() if _failed(line.text, forms)]
    if not failures:
        last = seen.tail[-_PAST_A_DOUBT_OF_OTHERS:]
        return seen.lines > len(last) and not any(map(trouble_of, last))
    return seen.lines - max(failures) > _GONE_ON


def _did_well(seen: Collected, forms: Iterable[LineForm]) -> bool | None:
    """Whether the run succeeded, by the last of the final lines that reports a result; None if none does."""
    for text in reversed(seen.tail):
        if _failed(text, forms):
            return False
        if _WELL.search(text):
            return True
    return None


def _failed(text: str, forms: Iterable[LineForm]) -> bool:
    """Whether a line reports a failure that counts; failing to release a resource happens after the work."""
    return trouble_of(text) == "failure" and level_of(text, forms)[0] != "warning" and not _LET_GO.search(text)


def diagnose_log(log: Path, catalog: Catalog, names: Names | None, *, tools: Iterable[str]) -> Diagnosis:
    """Diagnose a log file as ``diagnose`` does. Raises InputError if it cannot be read."""
    with open_regular(log) as stream:
        return diagnose(stream, catalog, names, tools=tools)


def _cause(
    sighting: Sighting, catalog: Catalog, names: Names, tools: set[str], *, failing: bool, well: bool, end: int
) -> Cause:
    """Make a cause from a row: its root by the strongest pattern that matched, its text with the captured parts.

    ``end`` is the line where the first failed process ended: what it should have made is missing later.
    """
    row, hits = sighting.error, tuple(hit for _, hit in sorted(sighting.hits.items()))
    said = {"follows"} if row.late and hits[0].line > end else sighting.strengths
    # Mentioned only in warnings, it is no failure if nothing failed; only in details, it is none if something else did.
    levels = {level_of(hit.text, catalog.forms)[0] for hit in hits[:_MOST_CODES]}
    quiet = said == {"mild"} or levels == {"detail" if failing else "warning"}
    # A general pattern on a line without a level shows no failure if other lines do. Nor does any pattern on a line of
    # level note, or in a successful run, unless the line looks like trouble.
    hushed = levels == {"detail"} or (failing and levels == {""} and said == {"general"})
    hushed |= (levels == {"note"} and not failing) or (well and levels <= {"", "note"})
    quiet |= hushed and not any(trouble_of(hit.text) for hit in hits[:_MOST_CODES])
    weak = "match" not in said and "weak" in said and not tools.isdisjoint(row.tools)
    root, because = "follow-up", "the wording is general, the tool fits" if weak else ""
    if "match" in said or weak or said == {"mild"}:
        root = row.root
    elif "general" in said:
        root, because = "symptom", "other causes share this wording"
    code = sighting.fields.get("code") or next((text for hit in hits for _, text in codes_of(hit.text)), "not given")
    if meaning := catalog.spelled_code(code):
        code += f", {meaning.meaning}"
    fields = defaultdict(lambda: "…", {"parts": "several", **sighting.fields, "code": code})
    size, limit = (int("0" + re.sub(r"\D", "", fields[key])) for key in ("size", "limit"))
    if size > limit > 0:
        fields["parts"] = str(-(-size // limit))
    error = replace(
        row,
        root=root,
        severity=Severity.WARNING if quiet and row.severity is Severity.ERROR else row.severity,
        cause=_FIELD.sub(lambda field: fields[field[1]], row.cause),
        workaround=_FIELD.sub(lambda field: fields[field[1]], row.workaround),
    )
    texts = [(hit.text, *hit.after) for hit in hits]
    # The names in each line that shows the cause, or in the first line after it that contains any.
    named = (mapped for lines in texts for mapped in next(filter(None, map(names.find, lines)), ()))
    terms = (pair for lines in texts for line in lines for reader in catalog.explain for pair in reader(line))
    return Cause(
        error=error,
        certainty="possible" if because else "likely",
        count=sighting.count,
        hits=hits,
        names=tuple({name.onnx: name for name in named}.values()),
        terms=tuple(dict(terms).items()),
        fields=sighting.fields,
        because=because,
    )


def _in_line(cause: Cause) -> tuple[int, int]:
    """Sort key: the line where a cause first shows; on one line the longer pattern comes last, as it says more."""
    return cause.first_line, cause.words


def _group(causes: list[Cause]) -> list[Cause]:
    """Attach errors that only follow to the error that explains them; warnings and information stay separate."""
    failures = [cause for cause in causes if cause.error.severity is Severity.ERROR]
    roots = sorted((cause for cause in failures if cause.error.root == "cause"), key=_in_line)
    for rank in ("symptom", "follow-up"):
        loose = [cause for cause in failures if cause.error.root == rank]
        for cause in sorted(loose, key=lambda cause: (cause.first_line, -cause.words)):
            owner = _owner(cause, roots)
            if owner is None:
                roots = sorted([*roots, cause], key=_in_line)
            else:
                root = roots[owner]
                roots[owner] = replace(
                    root,
                    follow_ups=(*root.follow_ups, cause),
                    names=tuple({name.onnx: name for name in (*root.names, *cause.names)}.values()),
                    terms=tuple({**dict(root.terms), **dict(cause.terms)}.items()),
                )
    return [*roots, *(cause for cause in causes if cause.error.severity is not Severity.ERROR)]


def _owner(cause: Cause, roots: list[Cause]) -> int | None:
    """Return the index of the last root at or before the cause, else of the first one in the lines right after it.

    Returns None if no root explains the cause.
    """
    reach = cause.hits[-1].line + CONTEXT_LINES
    earlier = [index for index, root in enumerate(roots) if root.first_line <= reach and _explains(root, cause)]
    before = [index for index in earlier if roots[index].first_line <= cause.first_line]
    return max(
        before, default=min(earlier, key=lambda index: (roots[index].first_line, -roots[index].words), default=None)
    )


def _explains(root: Cause, cause: Cause) -> bool:
    """Whether a root explains a cause.

    A cause explains anything that follows; a symptom explains follow-ups and a less specific symptom on the same line.
    A root that is only possible explains nothing.
    """
    vaguer = root.first_line == cause.first_line and root.words > cause.words
    certain = root.certainty == "likely" or root.error.root == "symptom"
    return certain and (vaguer or not root.error.root == cause.error.root == "symptom")


def _in_order(causes: list[Cause], forms: Iterable[LineForm]) -> list[Cause]:
    """Sort causes: errors first, likely ones before possible ones, then those with follow-ups, then the earliest.

    Of two on one line the one with the longer pattern comes first, as it says more about the line.
    """
    return sorted(
        causes,
        key=lambda cause: (
            cause.error.severity.rank,
            cause.certainty != "likely",
            cause.error.root != "cause",
            {level_of(hit.text, forms)[0] for hit in cause.hits[:_MOST_CODES]} == {"warning"},
            not cause.follow_ups,
            cause.first_line,
            -cause.words,
        ),
    )
