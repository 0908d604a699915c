"""Known errors as data: the rows, the codes, the tools' marks, read from data files; it reads no log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from deploykit.errors import InputError
from deploykit.findings import Confidence, Severity
from deploykit.tables.reading import read_toml, structure

__all__ = [
    "GAP",
    "Catalog",
    "CatalogFile",
    "CodeMeaning",
    "FailureKind",
    "FinishMark",
    "KnownError",
    "Observation",
    "Speaker",
    "ToolMark",
    "Witness",
    "general_errors",
    "load_catalog",
    "merge_catalogs",
    "search_errors",
]

_GENERAL = Path(__file__).parent / "data" / "known_errors"

Root = Literal["cause", "symptom", "follow-up"]

GAP = "…"
"""Stands in a fragment for whatever a line has between two pieces: numbers, paths, names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """One known failure of a vendor's tool.

    ``match`` holds fragments without line breaks, found in any case, ``GAP`` standing for whatever a line has between
    two pieces: one is enough (``any``) or every one must occur (``all``), within ``within`` lines of the first where
    that is given; not on a line that holds one of ``unless``. An empty ``match`` is a failure without a message: it can
    be looked up, never found; ``symptom`` says how it shows. ``weak`` fragments are too general to stand alone: they
    count only in a log that carries a mark of one of ``tools``. ``root`` orders a cascade: a ``cause`` explains later
    ``symptom`` (general wording) and ``follow-up`` lines. ``codes`` are decimal. ``way_out`` is a command, with words
    in capitals for what the user has to fill in.
    """

    id: str
    cause: str
    workaround: str
    source: tuple[str, ...]
    confidence: Confidence
    match: tuple[str, ...] = ()
    match_mode: Literal["any", "all"] = "any"
    within: int | None = None
    unless: tuple[str, ...] = ()
    weak: bool = False
    root: Root = "cause"
    stage: str = ""
    severity: Severity = Severity.ERROR
    codes: tuple[int, ...] = ()
    code_note: str = ""
    way_out: str = ""
    versions: str = ""
    tools: tuple[str, ...] = ()
    product: str = ""
    symptom: str = ""
    note: str = ""
    confidence_note: str = ""

    def __post_init__(self) -> None:
        if not self.match and not self.symptom:
            raise ValueError("neither match nor symptom")
        if any(max(map(len, fragment.split(GAP))) < 4 or "\n" in fragment for fragment in self.match):
            raise ValueError("a fragment is shorter than four characters or has a line break")
        if self.weak and not self.tools:
            raise ValueError("weak fragments need tools whose marks corroborate them")

    def to_json(self) -> dict[str, Any]:
        """The row in the published shape."""
        return {
            "id": self.id,
            "severity": str(self.severity),
            "stage": self.stage,
            "tools": list(self.tools),
            "product": self.product,
            "match": list(self.match),
            "match_mode": self.match_mode,
            "weak": self.weak,
            "root": self.root,
            "symptom": self.symptom,
            "codes": list(self.codes),
            "cause": self.cause,
            "workaround": self.workaround,
            "way_out": self.way_out,
            "versions": self.versions,
            "note": self.note,
            "source": list(self.source),
            "confidence": str(self.confidence),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMeaning:
    """What one numeric code, or every code from ``code`` to ``last``, means."""

    code: int
    meaning: str
    source: tuple[str, ...]
    confidence: Confidence
    area: str = ""
    last: int | None = None

    def covers(self, code: int) -> bool:
        """True when this row speaks of ``code``."""
        return self.code <= code <= (self.code if self.last is None else self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMark:
    """Fragments by which a log tells which tool wrote it; ``collect`` is what helps when its failure is unknown."""

    tool: str
    marks: tuple[str, ...]
    collect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishMark:
    """Fragments that a tool prints only when it has done its job: the only evidence for an all-clear."""

    tool: str
    marks: tuple[str, ...]
    source: tuple[str, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A number that a tool prints and that a build wants to judge; ``pattern`` has one group per number.

    With ``whole`` the line is a tally, and the numbers are two: the sum of what every match of ``pattern`` counts, and
    the sum of what every match of ``whole`` does; no match of ``pattern`` is a sum of zero then.
    """

    id: str
    fragment: str
    pattern: str
    meaning: str
    source: tuple[str, ...]
    confidence: Confidence
    whole: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """Further sources of a row that another catalogue has: a vendor's users met a failure that is nobody's own."""

    id: str
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """Whose code a line or a frame of a stack belongs to, by words of its paths and prefixes.

    ``/`` in ``marks`` stands for both slashes. ``advice`` is what helps with any failure of it that has no row of its
    own, a sentence without a full stop.
    """

    id: str
    name: str
    marks: tuple[str, ...]
    advice: str
    source: tuple[str, ...]
    confidence: Confidence
    stage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKind:
    """One way to fail, whoever fails: regular expressions, in which the group ``name`` is what the line names.

    ``cause`` and ``workaround`` are sentences with ``{speaker}``, ``{name}`` and any further group of the patterns; a
    number in the group ``code`` is spelled out with what the tables say of it. ``unnamed`` stands for a name that the
    line leaves out; where it is empty, the line itself does. With ``speakers`` the kind is theirs alone: a number means
    one thing to a driver and another to a library. ``alone``: the line says enough by itself, whoever wrote it.
    """

    id: str
    patterns: tuple[str, ...]
    cause: str
    workaround: str
    source: tuple[str, ...]
    confidence: Confidence
    unnamed: str = "something"
    root: Root = "cause"
    speakers: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFile:
    """One file of known errors; ``sources`` spells out the short keys that rows use."""

    schema: int
    sources: Mapping[str, str] = field(default_factory=dict)
    error: tuple[KnownError, ...] = ()
    code: tuple[CodeMeaning, ...] = ()
    tool: tuple[ToolMark, ...] = ()
    finish: tuple[FinishMark, ...] = ()
    observation: tuple[Observation, ...] = ()
    witness: tuple[Witness, ...] = ()
    speaker: tuple[Speaker, ...] = ()
    kind: tuple[FailureKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Everything known about the logs of one or several tool chains.

    ``explain`` turns a log line into (internal name, meaning in plain words) pairs.
    """

    errors: tuple[KnownError, ...] = ()
    codes: tuple[CodeMeaning, ...] = ()
    tools: tuple[ToolMark, ...] = ()
    finishes: tuple[FinishMark, ...] = ()
    observations: tuple[Observation, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    speakers: tuple[Speaker, ...] = ()
    kinds: tuple[FailureKind, ...] = ()
    explain: tuple[Callable[[str], Iterable[tuple[str, str]]], ...] = ()

    def code(self, number: int) -> CodeMeaning | None:
        """The row that speaks of a code most precisely, or None."""
        rows = [row for row in self.codes if row.covers(number)]
        return min(rows, key=lambda row: (row.last or row.code) - row.code, default=None)


def load_catalog(paths: Iterable[Path]) -> Catalog:
    """Read catalogue files; an unknown key, a bad word or an id used twice is answered with its place."""
    files = [(path, _load_file(path)) for path in paths]
    catalog = Catalog(
        errors=tuple(row for _, file in files for row in file.error),
        codes=tuple(row for _, file in files for row in file.code),
        tools=tuple(row for _, file in files for row in file.tool),
        finishes=tuple(row for _, file in files for row in file.finish),
        observations=tuple(row for _, file in files for row in file.observation),
        witnesses=tuple(row for _, file in files for row in file.witness),
        speakers=tuple(row for _, file in files for row in file.speaker),
        kinds=tuple(row for _, file in files for row in file.kind),
    )
    _refuse_twins(catalog.errors, ", ".join(path.name for path, _ in files))
    return catalog


def _load_file(path: Path) -> CatalogFile:
    file = structure(CatalogFile, read_toml(path), where=path.name)
    if file.schema != 1:
        raise InputError(f"{path.name}: schema: {file.schema} is not known", next="schema 1 is read")
    return CatalogFile(
        schema=file.schema,
        error=_spell_out(file.error, file.sources),
        code=_spell_out(file.code, file.sources),
        tool=file.tool,
        finish=_spell_out(file.finish, file.sources),
        observation=_spell_out(file.observation, file.sources),
        witness=_spell_out(file.witness, file.sources),
        speaker=_spell_out(file.speaker, file.sources),
        kind=_spell_out(file.kind, file.sources),
    )


S = TypeVar("S", KnownError, CodeMeaning, FinishMark, Observation, Witness, Speaker, FailureKind)


def _spell_out(rows: tuple[S, ...], sources: Mapping[str, str]) -> tuple[S, ...]:
    """Replace the short keys of sources by what they stand for."""
    return tuple(replace(row, source=tuple(_source(text, sources) for text in row.source)) for row in rows)


def _source(text: str, sources: Mapping[str, str]) -> str:
    key, _, rest = text.partition(" ")
    if key not in sources:
        return text
    return f"{sources[key]}: {rest}" if rest else sources[key]


def _refuse_twins(errors: Iterable[KnownError], where: str) -> None:
    seen: set[str] = set()
    for error in errors:
        if error.id in seen:
            raise InputError(f"{where}: error.id: {error.id!r} occurs twice")
        seen.add(error.id)


def merge_catalogs(catalogs: Iterable[Catalog]) -> Catalog:
    """One catalogue of several; a row that several backends share is kept once, with what all say of its sources.

    The last catalogue's kinds of failure are tried first: an adapter knows its tools more nearly than the core does.
    """
    given = list(catalogs)
    errors = {row.id: row for catalog in given for row in catalog.errors}
    witnesses = tuple(dict.fromkeys(row for catalog in given for row in catalog.witnesses))
    for witness in witnesses:
        if witness.id in errors:
            row = errors[witness.id]
            errors[witness.id] = replace(row, source=tuple(dict.fromkeys((*row.source, *witness.source))))
    return Catalog(
        errors=tuple(errors.values()),
        codes=tuple(dict.fromkeys(row for catalog in given for row in catalog.codes)),
        tools=tuple(dict.fromkeys(row for catalog in given for row in catalog.tools)),
        finishes=tuple(dict.fromkeys(row for catalog in given for row in catalog.finishes)),
        observations=tuple({row.id: row for catalog in given for row in catalog.observations}.values()),
        witnesses=witnesses,
        speakers=tuple({row.id: row for catalog in given for row in catalog.speakers}.values()),
        kinds=tuple({row.id: row for catalog in reversed(given) for row in catalog.kinds}.values()),
        explain=tuple(dict.fromkeys(reader for catalog in given for reader in catalog.explain)),
    )


@cache
def general_errors() -> Catalog:
    """What is known of failures that belong to no vendor: ONNX Runtime, linkers, Python, the machine itself."""
    return load_catalog(sorted(_GENERAL.glob("*.toml")))


def search_errors(catalog: Catalog, words: str) -> tuple[KnownError, ...]:
    """The rows that contain every word, in their id, text, fragments or codes, case-insensitively."""
    wanted = words.lower().split()
    return tuple(row for row in catalog.errors if all(word in str(row.to_json()).lower() for word in wanted))
