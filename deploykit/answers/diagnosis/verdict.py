"""The result of a diagnosis as values: causes, what follows from them, what stays unknown; it decides nothing."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import asdict

from deploykit.answers.diagnosis.collecting import ErrorLine, Finish, Hit
from deploykit.answers.diagnosis.events import Event
from deploykit.answers.diagnosis.names import MappedName
from deploykit.findings import Severity
from deploykit.findings.records import Json, Record, field
from deploykit.tables.known_errors import CodeMeaning, KnownError

__all__ = ["Cause", "CodeSeen", "Diagnosis"]

Certainty = Literal["likely", "possible"]
Conclusion = Literal["failed", "finished", "not-understood"]
"""``finished``: a tool says that it did its job, began nothing later, and no line looks like a failure."""


class CodeSeen(Record):
    """A numeric code of the log, read in decimal or hexadecimal; ``meaning`` is None when no table has it."""

    code: int
    spelling: str
    meaning: CodeMeaning | None

    def to_json(self) -> Json:
        """The published shape."""
        row = self.meaning
        return {
            "code": self.code,
            "hex": hex(self.code),
            "spelling": self.spelling,
            "area": "" if row is None else row.area,
            "meaning": None if row is None else row.meaning,
            "source": [] if row is None else list(row.source),
        }


class Cause(Record):
    """One root cause: how often and where it shows, which names it concerns, and what follows from it.

    ``certainty`` is ``possible`` when only a general wording points to the row. ``hits`` are the first ones.
    """

    error: KnownError
    certainty: Certainty
    count: int
    hits: tuple[Hit, ...] = ()
    names: tuple[MappedName, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    fields: dict[str, str] = field(default_factory=dict)
    follow_ups: tuple[Cause, ...] = ()
    because: str = ""

    @property
    def first_line(self) -> int:
        """The first line of the log that shows it."""
        return self.hits[0].line

    @property
    def words(self) -> int:
        """How many letters of the first line its wording speaks of: of two causes on a line the longer says more."""
        return self.hits[0].words

    def to_json(self) -> Json:
        """The published shape: the row, then what the log says about it."""
        return {
            **self.error.to_json(),
            "certainty": self.certainty,
            "because": self.because,
            "count": self.count,
            "first_line": self.first_line,
            "lines": [{"line": hit.line, "text": hit.text} for hit in self.hits[:5]],
            "names": [asdict(name) for name in self.names],
            "terms": [{"term": term, "meaning": meaning} for term, meaning in self.terms],
            "fields": self.fields,
            "follow_ups": [
                {"id": later.error.id, "cause": later.error.cause, "count": later.count, "first_line": later.first_line}
                for later in self.follow_ups
            ],
        }


class Diagnosis(Record):
    """What a log says: causes by likelihood, errors before warnings before information.

    ``numbers`` are what the tools counted, by observation id. ``finished`` are the lines by which tools say that they
    did their job. ``unknown`` are lines that look like a failure and that no row explains, ``doubts`` those that look
    like a warning; both are shown when no cause of a failure was found. ``unfinished`` names tools that began after the
    last such line, ``overlooked`` says that there were too many lines to look at each. ``collect`` is what to gather.
    ``recognised``: a tool on the way of a model onto the NPU wrote something of the log.
    """

    causes: tuple[Cause, ...] = ()
    codes: tuple[CodeSeen, ...] = ()
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    finished: tuple[Finish, ...] = ()
    unfinished: tuple[str, ...] = ()
    unknown: tuple[ErrorLine, ...] = ()
    doubts: tuple[ErrorLine, ...] = ()
    overlooked: bool = False
    recognised: bool = True
    tail: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    lines: int = 0
    size: int = 0

    @property
    def errors(self) -> tuple[Cause, ...]:
        """The error-level causes, likeliest first."""
        return tuple(cause for cause in self.causes if cause.error.severity is Severity.ERROR)

    @property
    def understood(self) -> bool:
        """True when a cause was found, or when a tool says that it finished and nothing speaks against it.

        False when there are only messages that follow from a cause which the log does not show, or only warnings
        beside lines that no row explains.
        """
        if self.conclusion == "finished" or any(cause.error.root != "follow-up" for cause in self.errors):
            return True
        warned = any(cause.error.severity is Severity.WARNING for cause in self.causes)
        return warned and not (self.errors or self.unknown)

    @property
    def conclusion(self) -> Conclusion:
        """What the log as a whole says; an all-clear needs a line of the tool that it did its job."""
        if self.errors:
            return "failed"
        against = self.unknown or self.unfinished or self.overlooked
        return "finished" if self.finished and not against else "not-understood"

    @property
    def exit_status(self) -> int:
        """0 only for a log whose tool says that it finished, and that shows no failure; else 1."""
        return int(self.conclusion != "finished")

    def to_json(self) -> Json:
        """The published shape of ``deploykit diagnose --json``."""
        return {
            "causes": [cause.to_json() for cause in self.causes],
            "codes": [code.to_json() for code in self.codes],
            "numbers": {name: list(values) for name, values in self.numbers.items()},
            "events": [event.to_json() for event in self.events],
            "conclusion": self.conclusion,
            "understood": self.understood,
            "finished": [asdict(line) for line in self.finished],
            "unfinished": list(self.unfinished),
            "unknown": [line.to_json() for line in self.unknown],
            "doubts": [line.to_json() for line in self.doubts],
            "overlooked": self.overlooked,
            "recognised": self.recognised,
            "tail": list(self.tail),
            "tools": list(self.tools),
            "collect": list(self.collect),
            "lines": self.lines,
            "bytes": self.size,
        }
