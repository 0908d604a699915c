"""The result of a diagnosis as values: causes, their consequences, and what stays unknown. It decides nothing."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import asdict

from deploykit.answers.diagnosis.collecting import ErrorLine, Finish, Hit
from deploykit.answers.diagnosis.events import Event
from deploykit.answers.diagnosis.names import MappedName
from deploykit.findings import Severity
from deploykit.findings.records import Json, Names, Pairs, Record, field
from deploykit.tables.known_errors import CodeMeaning, KnownError

__all__ = ["Cause", "CodeSeen", "Diagnosis"]

Certainty = Literal["likely", "possible"]
Conclusion = Literal["failed", "finished", "not-understood"]
"""``finished``: a tool says that it is done, none began later, and no line looks like a failure."""


class CodeSeen(Record):
    """A numeric code in the log, read as decimal or hexadecimal; ``meaning`` is None if no table has it."""

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
            "area": row.area if row else "",
            "meaning": row.meaning if row else None,
            "source": list(row.source) if row else [],
        }


class Cause(Record):
    """One root cause: how often and where it shows, the names it concerns, and its consequences.

    ``certainty`` is ``possible`` if only a general wording points to the row. ``hits`` are the first ones.
    """

    error: KnownError
    certainty: Certainty
    count: int
    hits: tuple[Hit, ...]
    names: tuple[MappedName, ...] = ()
    terms: Pairs = ()
    fields: dict[str, str] = field(default_factory=dict)
    follow_ups: tuple[Cause, ...] = ()
    because: str

    @property
    def first_line(self) -> int:
        """The first line of the log that shows the cause."""
        return self.hits[0].line

    @property
    def words(self) -> int:
        """The length of the pattern that matched the first line: of two causes on a line the longer one says more."""
        return self.hits[0].words

    def to_json(self) -> Json:
        """The published shape: the row, then the data from the log."""
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
    """The diagnosis of a log: causes by likelihood, errors before warnings before information.

    ``numbers`` are the tools' counts, by observation id. ``finished`` are the lines in which tools say that they are
    done. ``unknown`` are lines that look like a failure and that no row explains, ``doubts`` those that look like a
    warning; both are shown if no cause of a failure was found. ``unfinished`` names tools that began after the last
    such line, ``overlooked`` is True if there were too many lines to read each. ``collect`` lists what to gather for a
    report. ``recognised`` is True if a tool of the chain from a model to the NPU wrote some of the log.
    """

    causes: tuple[Cause, ...]
    codes: tuple[CodeSeen, ...]
    numbers: dict[str, tuple[float, ...]]
    events: tuple[Event, ...]
    finished: tuple[Finish, ...]
    unfinished: Names
    unknown: tuple[ErrorLine, ...]
    doubts: tuple[ErrorLine, ...]
    overlooked: bool
    recognised: bool
    tail: Names = ()
    tools: Names
    collect: Names = ()
    lines: int
    size: int

    @property
    def errors(self) -> tuple[Cause, ...]:
        """The error-level causes, likeliest first."""
        return tuple(cause for cause in self.causes if cause.error.severity is Severity.ERROR)

    @property
    def understood(self) -> bool:
        """True if a cause was found, or if a tool says that it finished and nothing contradicts.

        False if there are only consequences of a cause that the log does not show, or
        only warnings beside lines that no row explains.
        """
        if self.conclusion == "finished" or any(cause.error.root != "follow-up" for cause in self.errors):
            return True
        warned = any(cause.error.severity is Severity.WARNING for cause in self.causes)
        return warned and not (self.errors or self.unknown)

    @property
    def conclusion(self) -> Conclusion:
        """The result for the whole log; an all-clear needs a line in which a tool says that it is done."""
        if self.errors:
            return "failed"
        against = self.unknown or self.unfinished or self.overlooked
        return "finished" if self.finished and not against else "not-understood"

    @property
    def exit_status(self) -> int:
        """0 only for a log in which a tool says that it finished, without any failure; else 1."""
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
