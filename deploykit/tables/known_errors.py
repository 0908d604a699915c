"""Known errors as data: causes, codes, tools and kinds of failure, read from TOML files. It reads no log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from msgspec import to_builtins

from deploykit.errors import InputError
from deploykit.findings import Confidence, Severity
from deploykit.findings.records import Json, Names, Record, replace
from deploykit.tables.sources import SourcedRow, sourced_file

__all__ = [
    "Catalog",
    "CatalogFile",
    "CodeMeaning",
    "FailureKind",
    "KnownError",
    "LineForm",
    "Numbering",
    "Observation",
    "Root",
    "Tool",
    "general_errors",
    "load_catalog",
    "merge_catalogs",
    "search_errors",
]

_GENERAL = Path(__file__).parent / "data" / "known_errors"

Root = Literal["cause", "symptom", "follow-up"]
"""A cause explains symptoms (general messages) and follow-ups that come later in a log."""


class KnownError(Record):
    """One cause of failures, with the messages by which releases report it.

    A pattern is text that occurs in one line, ignoring case. ``…`` matches anything, ``{name}`` captures a part,
    ``{name:n}`` captures a number; ``&&`` joins patterns that must all occur within 16 lines. ``match`` identifies the
    cause; ``general`` are messages that other causes share; ``follows`` only follow from the cause; ``mild`` are
    warnings; ``weak`` count only in a log written by one of ``tools``. Lines that contain one of ``unless`` are
    ignored. A cause without patterns has a ``symptom``: it can be looked up but is never found in a log. ``codes`` are
    decimal. ``late``: it may follow from the failure of an earlier step. ``cause``, ``workaround`` and ``way_out`` may
    use captured parts. ``read`` is the date on which the sources were read. ``events`` find the cause in any words:
    regular expressions for the kind of failure, the tool and what the line names, with blanks between them.
    """

    id: str
    cause: str
    workaround: str
    source: Names
    confidence: Confidence
    match: Names = ()
    general: Names = ()
    follows: Names = ()
    mild: Names = ()
    weak: Names = ()
    unless: Names = ()
    events: Names = ()
    root: Root = "cause"
    stage: str = ""
    severity: Severity = Severity.ERROR
    codes: tuple[int, ...] = ()
    way_out: str = ""
    versions: str = ""
    read: str = ""
    tools: Names = ()
    product: str = ""
    late: bool = False
    symptom: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.patterns and not self.symptom:
            raise ValueError("neither match nor symptom")
        if any(max(map(len, text.split("…"))) < 4 or "\n" in text for text in self.patterns):
            raise ValueError("a fragment is shorter than four characters or has a line break")
        if self.weak and not self.tools:
            raise ValueError("weak fragments need tools whose marks corroborate them")

    @property
    def patterns(self) -> Names:
        """All patterns, the most specific ones first."""
        return (*self.match, *self.general, *self.follows, *self.mild, *self.weak)

    def to_json(self) -> Json:
        """The row in its published form."""
        told = {
            key: value
            for key, value in to_builtins(self).items()
            if key not in ("general", "follows", "mild", "unless", "late", "events")
        }
        return {**told, "match": list(self.patterns), "weak": bool(self.weak)}


class CodeMeaning(SourcedRow):
    """The meaning of one numeric code, or of every code up to ``last``, in one numbering.

    ``words`` is what logs print for it.
    """

    code: int
    last: int
    meaning: str
    area: str
    words: str = ""


class Numbering(SourcedRow):
    """The codes of one numbering: ``meanings`` by code or range, such as ``1002`` or ``1000-1999``.

    ``words`` is what programs print for a code: the device's number, which may
    differ from that of the program reading its log.
    """

    area: str
    meanings: Mapping[str, str]
    words: Mapping[str, str] = {}

    def rows(self) -> Iterable[CodeMeaning]:
        """Yield the codes one by one."""
        for key, meaning in self.meanings.items():
            first, _, last = key[1:].partition("-")
            yield CodeMeaning(
                code=int(key[0] + first),
                last=int(last or key[0] + first),
                meaning=meaning,
                area=self.area,
                source=self.source,
                confidence=self.confidence,
                words=self.words.get(key, ""),
            )


class Tool(Record, kw_only=False):
    """A program that writes logs: how to recognise it, and what helps with any of its failures.

    ``marks`` show that it wrote the log, ``done`` that it succeeded, which is the only evidence for an all-clear.
    ``speaks`` are parts of its paths and prefixes by which a line or stack frame belongs to it (``/`` matches both
    slashes); ``lines`` are regular expressions of lines that only it writes. A ``foreign`` tool is not involved in
    bringing a model onto an NPU: its failures are reported as its own. The same holds for a tool that ``drives_others``
    (a framework for many chips) in a log without lines from any NPU tool.
    """

    id: str
    name: str = ""
    marks: Names = ()
    done: Names = ()
    speaks: Names = ()
    lines: Names = ()
    advice: str = ""
    stage: str = ""
    collect: Names = ()
    foreign: bool = False
    drives_others: bool = False
    source: Names = ()
    confidence: Confidence = Confidence.REPORTED


class LineForm(Record):
    """How tools begin a line: a regular expression with the groups ``level`` and, if the line has it, ``where``."""

    id: str
    pattern: str
    source: Names = ()


class Observation(SourcedRow):
    """A number that a tool prints and a build wants to judge; ``pattern`` has one group per number.

    With ``whole`` the line is a tally: the numbers are the sums of all matches of ``pattern`` and of ``whole``.
    """

    id: str
    fragment: str
    pattern: str
    meaning: str
    whole: str = ""


class FailureKind(SourcedRow):
    """One kind of failure of any program: regular expressions, whose group ``name`` is the thing the line names.

    ``cause`` and ``workaround`` use ``{speaker}``, ``{name}`` and any further group; ``{code}`` is replaced by the code
    and its meaning in the tables. ``unnamed``, or else the text of the line, replaces a missing name. ``speakers``
    restricts the kind to these programs: a number means one thing to a driver and another to a library. ``alone``: no
    speaker is needed. ``late``: it may follow from the failure of an earlier step, which is then considered instead.
    ``row`` is the known cause of which this kind is another message; that cause is reported if it exists.
    """

    id: str
    patterns: Names
    cause: str
    workaround: str
    unnamed: str = ""
    root: Root = "cause"
    speakers: Names = ()
    alone: bool = False
    late: bool = False
    chain: bool = False
    row: str = ""


class CatalogFile(Record):
    """One file of known errors; ``sources`` maps the short keys in its rows to full sources.

    ``read`` is the date for all rows without one. ``witness`` adds sources to causes in other catalogues.
    """

    schema: int
    read: str = ""
    sources: Mapping[str, str] = {}
    error: tuple[KnownError, ...] = ()
    numbering: tuple[Numbering, ...] = ()
    tool: tuple[Tool, ...] = ()
    form: tuple[LineForm, ...] = ()
    observation: tuple[Observation, ...] = ()
    kind: tuple[FailureKind, ...] = ()
    witness: Mapping[str, Names] = {}


# Compared by identity: derived patterns are cached by it, and hashing thousands of rows takes longer than a log.
class Catalog(Record, eq=False):
    """Everything known about the logs of one or several tool chains.

    ``explain`` holds functions that turn a log line into (internal name, meaning in plain words) pairs.
    """

    errors: tuple[KnownError, ...] = ()
    codes: tuple[CodeMeaning, ...] = ()
    tools: tuple[Tool, ...] = ()
    forms: tuple[LineForm, ...] = ()
    observations: tuple[Observation, ...] = ()
    kinds: tuple[FailureKind, ...] = ()
    witnesses: tuple[tuple[str, Names], ...] = ()
    explain: tuple[Callable[[str], Iterable[tuple[str, str]]], ...] = ()

    def code(self, number: int) -> CodeMeaning | None:
        """Return the row with the narrowest range that includes a code, None if there is none."""
        rows = [row for row in self.codes if row.code <= number <= row.last]
        return min(rows, key=lambda row: row.last - row.code, default=None)

    def spelled_code(self, spelling: str) -> CodeMeaning | None:
        """Return the row of a code as logs spell it: in decimal, hexadecimal or words, with the right sign or not."""
        try:
            number = int(spelling, 0)
        except ValueError:
            return next((row for row in self.codes if spelling and row.words == spelling), None)
        return self.code(number % 2**32 if number < -0xFFFF else number) or self.code(-number)


def load_catalog(paths: Iterable[Path]) -> Catalog:
    """Read catalogue files. Raises InputError, with the place, for an unknown key, a bad value or a repeated id."""
    catalogs, seen = [], set[str]()
    for path in paths:
        file = sourced_file(CatalogFile, path)
        if file.schema != 1:
            raise InputError(f"{path.name}: schema: {file.schema} is not known", next="schema 1 is read")
        for error in file.error:
            if error.id in seen:
                raise InputError(f"{path.name}: error.id: {error.id!r} occurs twice")
            seen.add(error.id)
        catalogs.append(
            Catalog(
                errors=tuple(replace(row, read=row.read or file.read) for row in file.error),
                codes=tuple(code for numbering in file.numbering for code in numbering.rows()),
                tools=file.tool,
                forms=file.form,
                observations=file.observation,
                kinds=file.kind,
                witnesses=tuple(file.witness.items()),
            )
        )
    return merge_catalogs(catalogs)


def merge_catalogs(catalogs: Iterable[Catalog]) -> Catalog:
    """Merge catalogues; a row that several backends share is kept once, with the sources of all.

    The last catalogue's kinds of failure are tried first: an adapter knows its tools better than the core does.
    """
    return _merged(tuple(catalogs))


# Diagnosing a hundred logs makes one catalogue and derives its patterns once.
@lru_cache(maxsize=8)
def _merged(given: tuple[Catalog, ...]) -> Catalog:
    errors = {row.id: row for catalog in given for row in catalog.errors}
    witnesses = tuple(dict.fromkeys(row for catalog in given for row in catalog.witnesses))
    for name, source in witnesses:
        if name in errors:
            errors[name] = replace(errors[name], source=tuple(dict.fromkeys((*errors[name].source, *source))))
    return Catalog(
        errors=tuple(errors.values()),
        codes=tuple(dict.fromkeys(row for catalog in given for row in catalog.codes)),
        tools=tuple(dict.fromkeys(row for catalog in given for row in catalog.tools)),
        forms=tuple({row.id: row for catalog in reversed(given) for row in catalog.forms}.values()),
        observations=tuple({row.id: row for catalog in given for row in catalog.observations}.values()),
        kinds=tuple({row.id: row for catalog in reversed(given) for row in catalog.kinds}.values()),
        witnesses=witnesses,
        explain=tuple(dict.fromkeys(reader for catalog in given for reader in catalog.explain)),
    )


@cache
def general_errors() -> Catalog:
    """Return what is known about failures of no vendor: ONNX Runtime, Python, loaders, the machine itself."""
    return load_catalog(sorted(_GENERAL.glob("*.toml")))


def search_errors(catalog: Catalog, words: str) -> tuple[KnownError, ...]:
    """Return the rows that contain every word in their id, text, patterns or codes, ignoring case."""
    return tuple(
        row for row in catalog.errors if all(word in str(row.to_json()).lower() for word in words.lower().split())
    )
