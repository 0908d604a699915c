"""The result of a diagnosis as values: causes, what follows from them, what stays unknown; it decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from deploykit.contract.known_errors import CodeMeaning, KnownError
from deploykit.diagnosis.names import MappedName
from deploykit.diagnosis.sightings import ErrorLine, Hit
from deploykit.findings import Severity

__all__ = ["Cause", "CodeSeen", "Diagnosis", "FollowUp"]

Certainty = Literal["likely", "possible"]
_LINES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSeen:
    """A numeric code of the log, read in decimal or hexadecimal; ``meaning`` is None when no table has it."""

    code: int
    spelling: str
    meaning: CodeMeaning | None

    def to_json(self) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """A known message that an earlier cause explains."""

    error: KnownError
    count: int
    first_line: int

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "id": self.error.id,
            "cause": self.error.cause,
            "count": self.count,
            "first_line": self.first_line,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One root cause: how often and where it shows, which names it concerns, and what follows from it.

    ``certainty`` is ``possible`` when only a code or a general wording points to the row. ``hits`` are the first ones.
    """

    error: KnownError
    certainty: Certainty
    count: int
    hits: tuple[Hit, ...] = ()
    names: tuple[MappedName, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()
    because: str = ""

    @property
    def first_line(self) -> int:
        """The first line of the log that shows it, 0 when only a code points to it."""
        return self.hits[0].line if self.hits else 0

    def to_json(self) -> dict[str, Any]:
        """The published shape: the row, then what the log says about it."""
        return {
            **self.error.to_json(),
            "certainty": self.certainty,
            "because": self.because,
            "count": self.count,
            "first_line": self.first_line,
            "lines": [{"line": hit.line, "text": hit.text} for hit in self.hits[:_LINES_SHOWN]],
            "names": [name.to_json() for name in self.names],
            "terms": [{"term": term, "meaning": meaning} for term, meaning in self.terms],
            "follow_ups": [follow_up.to_json() for follow_up in self.follow_ups],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a log says: causes by likelihood, errors before warnings before information.

    ``numbers`` are what the tools counted, by observation id. ``unknown`` are error lines that no row explains, shown
    when no cause of a failure was found. ``collect`` says what to gather then.
    """

    causes: tuple[Cause, ...] = ()
    codes: tuple[CodeSeen, ...] = ()
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    unknown: tuple[ErrorLine, ...] = ()
    tail: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    lines: int = 0
    size: int = 0

    def _of(self, severity: Severity) -> Iterator[Cause]:
        return (cause for cause in self.causes if cause.error.severity is severity)

    @property
    def errors(self) -> tuple[Cause, ...]:
        """The error-level causes, likeliest first."""
        return tuple(self._of(Severity.ERROR))

    @property
    def understood(self) -> bool:
        """True when a cause was found, or when nothing in the log looks like an error.

        False when there are only messages that follow from a cause which the log does not show.
        """
        errors = self.errors
        return any(cause.error.root != "follow-up" for cause in errors) or not (errors or self.unknown)

    @property
    def exit_status(self) -> int:
        """1 when an error-level cause was found, else 0."""
        return int(bool(self.errors))

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit diagnose --json``."""
        return {
            "causes": [cause.to_json() for cause in self.causes],
            "codes": [code.to_json() for code in self.codes],
            "numbers": {name: list(values) for name, values in self.numbers.items()},
            "understood": self.understood,
            "unknown": [line.to_json() for line in self.unknown],
            "tail": list(self.tail),
            "tools": list(self.tools),
            "collect": list(self.collect),
            "lines": self.lines,
            "bytes": self.size,
        }
