"""Known errors as data: causes, codes, tools and kinds of failure, read from TOML files; it reads no log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from msgspec import to_builtins

from deploykit.errors import InputError
from deploykit.findings import Confidence, Severity
from deploykit.findings.records import Json, Record, replace
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
"""A cause explains later symptoms (general wordings) and follow-ups."""


class KnownError(Record):
    """One cause of failures, with the wordings by which releases report it.

    A pattern is text that one line holds, in any case. ``…`` stands for anything, ``{name}`` for a part that is kept,
    ``{name:n}`` for a number that is kept; ``&&`` joins patterns that all stand within 16 lines.
    ``match`` names the cause; ``general`` are wordings that other causes have too; ``follows`` only follow from it;
    ``mild`` are warnings; ``weak`` count only in a log that one of ``tools`` wrote. Lines with one of ``unless`` are
    let go. A cause without patterns has a ``symptom``: it can be looked up, never found. ``codes`` are decimal.
    ``late``: it may follow from an earlier step that failed.
    ``cause``, ``workaround`` and ``way_out`` may use what the patterns keep. ``read`` is when the sources were read.
    """

    id: str
    cause: str
    workaround: str
    source: tuple[str, ...]
    confidence: Confidence
    match: tuple[str, ...] = ()
    general: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    mild: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    root: Root = "cause"
    stage: str = ""
    severity: Severity = Severity.ERROR
    codes: tuple[int, ...] = ()
    way_out: str = ""
    versions: str = ""
    read: str = ""
    tools: tuple[str, ...] = ()
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
    def patterns(self) -> tuple[str, ...]:
        """All wordings, the telling ones first."""
        return (*self.match, *self.general, *self.follows, *self.mild, *self.weak)

    def to_json(self) -> Json:
        """The row in the published shape."""
        told = {
            key: value
            for key, value in to_builtins(self).items()
            if key not in ("general", "follows", "mild", "unless", "late")
        }
        return {**told, "match": list(self.patterns), "weak": bool(self.weak)}


class CodeMeaning(SourcedRow):
    """What one numeric code, or every code up to ``last``, means in one numbering; ``words`` stand for it in logs."""

    code: int
    last: int
    meaning: str
    area: str
    words: str = ""


class Numbering(SourcedRow):
    """The codes of one numbering: ``meanings`` by code or range, such as ``1002`` or ``1000-1999``.

    ``words`` are what programs print for a code, the device's, which may differ from those of who reads its log.
    """

    area: str
    meanings: Mapping[str, str]
    words: Mapping[str, str] = {}

    def rows(self) -> Iterable[CodeMeaning]:
        """The codes one by one."""
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


class Tool(Record):
    """A program that writes logs: how to recognise it, and what helps with any failure of it.

    ``marks`` say that it wrote the log, ``done`` that it did its job: the only evidence for an all-clear. ``speaks``
    are parts of its paths and prefixes by which a line or a frame is its own (``/`` stands for both slashes),
    ``lines`` regular expressions of lines that only it writes.
    A ``foreign`` tool is not part of the way of a model onto an NPU: its failures are named as its own. So are those
    of one that ``drives_others`` (a framework over many chips) in a log in which no tool of the NPU speaks.
    """

    id: str
    name: str = ""
    marks: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    speaks: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    advice: str = ""
    stage: str = ""
    collect: tuple[str, ...] = ()
    foreign: bool = False
    drives_others: bool = False
    source: tuple[str, ...] = ()
    confidence: Confidence = Confidence.REPORTED


class LineForm(Record):
    """How tools begin a line: a regular expression with groups ``level`` and, where the line says it, ``where``."""

    id: str
    pattern: str
    source: tuple[str, ...] = ()


class Observation(SourcedRow):
    """A number that a tool prints and that a build wants to judge; ``pattern`` has one group per number.

    With ``whole`` the line is a tally: the numbers are the sums of what ``pattern`` and ``whole`` find.
    """

    id: str
    fragment: str
    pattern: str
    meaning: str
    whole: str = ""


class FailureKind(SourcedRow):
    """One way to fail, whoever fails: regular expressions, in which the group ``name`` is what the line names.

    ``cause`` and ``workaround`` use ``{speaker}``, ``{name}`` and any further group; ``{code}`` is spelled out with
    what the tables say of it. ``unnamed``, or the line's words, stand for a name that it leaves out. With ``speakers``
    the kind is theirs alone: a number means one thing to a driver and another to a library. ``alone``: no speaker is
    needed. ``late``: it may follow from an earlier step that failed, which then is asked in its place.
    ``row`` is the cause that this kind is one more wording of; it answers where it is known.
    """

    id: str
    patterns: tuple[str, ...]
    cause: str
    workaround: str
    unnamed: str = ""
    root: Root = "cause"
    speakers: tuple[str, ...] = ()
    alone: bool = False
    late: bool = False
    chain: bool = False
    row: str = ""


class CatalogFile(Record):
    """One file of known errors; ``sources`` spells out the short keys that rows use.

    ``read`` is the date of all rows that give none. ``witness`` adds sources to causes of another catalogue.
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
    witness: Mapping[str, tuple[str, ...]] = {}


# Compared by identity: what is made of its patterns is kept for it, and to hash thousands takes longer than a log.
class Catalog(Record, eq=False):
    """Everything known about the logs of one or several tool chains.

    ``explain`` turns a log line into (internal name, meaning in plain words) pairs.
    """

    errors: tuple[KnownError, ...] = ()
    codes: tuple[CodeMeaning, ...] = ()
    tools: tuple[Tool, ...] = ()
    forms: tuple[LineForm, ...] = ()
    observations: tuple[Observation, ...] = ()
    kinds: tuple[FailureKind, ...] = ()
    witnesses: tuple[tuple[str, tuple[str, ...]], ...] = ()
    explain: tuple[Callable[[str], Iterable[tuple[str, str]]], ...] = ()

    def code(self, number: int) -> CodeMeaning | None:
        """The row that speaks of a code most precisely, or None."""
        rows = [row for row in self.codes if row.code <= number <= row.last]
        return min(rows, key=lambda row: row.last - row.code, default=None)


def load_catalog(paths: Iterable[Path]) -> Catalog:
    """Read catalogue files; an unknown key, a bad word or an id used twice is answered with its place."""
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
    """One catalogue of several; a row that several backends share is kept once, with what all say of its sources.

    The last catalogue's kinds of failure are tried first: an adapter knows its tools more nearly than the core does.
    """
    return _merged(tuple(catalogs))


# Who diagnoses a hundred logs gets one catalogue, and what is made of its patterns, once.
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
    """What is known of failures that belong to no vendor: ONNX Runtime, Python, loaders, the machine itself."""
    return load_catalog(sorted(_GENERAL.glob("*.toml")))


def search_errors(catalog: Catalog, words: str) -> tuple[KnownError, ...]:
    """The rows that contain every word, in their id, text, fragments or codes, case-insensitively."""
    return tuple(
        row for row in catalog.errors if all(word in str(row.to_json()).lower() for word in words.lower().split())
    )
