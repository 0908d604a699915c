"""What was found out about a model, a plan or a package; findings accumulate and never raise.

A finding is data: whoever prints it decides how. It must not import rules, models or adapters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from deploykit.findings.records import Names, Record, grouped, replace

__all__ = [
    "Answerer",
    "Claim",
    "Confidence",
    "Finding",
    "FindingGroup",
    "Findings",
    "Severity",
    "Subject",
    "SubjectKind",
    "each_once",
    "exit_status",
    "group_findings",
    "headline",
    "listed",
    "settled_findings",
    "sort_findings",
    "summarize",
]


class _Ranked(StrEnum):
    """Words in an order."""

    @property
    def rank(self) -> int:
        """0 for the first word, rising in the order of the words."""
        return list(type(self)).index(self)


class Severity(_Ranked):
    """How much a finding matters, errors first. Only unhandled errors turn the answer into a no."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Confidence(_Ranked):
    """How sure a claim is; the weakest decisive part gives the word (docs/explain.md)."""

    DOCUMENTED = "documented"
    OBSERVED = "observed"
    REPORTED = "reported"
    INFERRED = "inferred"


class Answerer(StrEnum):
    """Who can tell by trying whether something is accepted: the device's compiler, or only the backend's own tools."""

    COMPILER = "compiler"
    TOOLS = "tools"


class Claim(Record, kw_only=False):
    """A statement that something is not accepted, which a trial can refute.

    It says nothing about numbers, files or what the user must say. ``seen_with`` is the newest release with which it
    was seen, "" where that is not known.
    """

    answered_by: Answerer
    confidence: Confidence
    seen_with: str = ""


class SubjectKind(StrEnum):
    """What kind of thing a finding speaks about."""

    MODEL = "model"
    NODE = "node"
    TENSOR = "tensor"
    ENCODINGS = "encodings"
    TARGET = "target"
    SDK = "sdk"
    FLAG = "flag"
    CONFIG_KEY = "config-key"
    STEP = "step"
    FILE = "file"
    PACKAGE = "package"
    DATA = "data"
    ENVIRONMENT = "environment"


class Subject(Record):
    """The thing a finding is about: its kind and its name as the user knows it."""

    kind: SubjectKind
    name: str


class Finding(Record):
    """One thing found, by one rule, about one subject.

    ``handled`` is None, or how the plan itself avoids the trouble; a handled error no longer makes exit status 1.
    ``evidence`` holds JSON values only. ``claim`` is None where no compiler can answer the finding.
    ``cure`` names the rewrites that may take it away.
    """

    code: str
    slug: str
    severity: Severity
    subject: Subject
    message: str
    hint: str = ""
    handled: str | None = None
    sources: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = {}
    claim: Claim | None = None
    cure: Names = ()

    @property
    def blocks(self) -> bool:
        """True for an error that nothing handles."""
        return self.severity is Severity.ERROR and self.handled is None

    @property
    def about(self) -> tuple[str, str]:
        """The code of the rule that found it, and the name of its subject."""
        return self.code, self.subject.name

    def with_handled(self, how: str) -> Finding:
        """The same finding, marked as avoided by the plan."""
        return replace(self, handled=how)

    def to_json(self) -> dict[str, Any]:
        """The finding in the published shape (docs/json.md); numbers that JSON does not have are words."""
        return {
            "code": self.code,
            "slug": self.slug,
            "severity": str(self.severity),
            "subject": {"kind": str(self.subject.kind), "name": self.subject.name},
            "message": self.message,
            "hint": self.hint,
            "handled": self.handled,
            "sources": list(self.sources),
            "confidence": None if self.claim is None else str(self.claim.confidence),
            "evidence": _in_json(self.evidence),
        }


def _in_json(value: Any) -> Any:
    """The same value with ``inf``, ``-inf`` and ``nan`` in words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _in_json(item) for key, item in value.items()}
    return [_in_json(item) for item in value] if isinstance(value, (list, tuple)) else value


Findings: TypeAlias = tuple[Finding, ...]


def sort_findings(findings: Iterable[Finding]) -> Findings:
    """Blocking errors first, then by severity, code and subject: the same order every time."""
    ordered = sorted(findings, key=lambda one: (*one.about, one.message, one.handled or ""))
    return tuple(sorted(ordered, key=lambda one: (not one.blocks, one.severity.rank)))


def settled_findings(findings: Iterable[Finding], settled: Mapping[tuple[str, str], str]) -> Findings:
    """The findings of a plan, in which those in ``settled`` are marked as handled.

    ``settled`` holds, by code and name of the subject, how running showed that the finding does not apply.
    """
    return tuple(one.with_handled(settled[one.about]) if one.about in settled else one for one in findings)


def each_once(findings: Iterable[Finding]) -> Findings:
    """The first of all findings with the same code, subject and message, in their order."""
    once = dict[Names, Finding]()
    for finding in findings:
        once.setdefault((*finding.about, finding.message), finding)
    return tuple(once.values())


def summarize(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings there are of each severity, handled ones included."""
    counts = Counter(finding.severity for finding in findings)
    return {str(severity): counts[severity] for severity in Severity}


class FindingGroup(Record):
    """Findings of one rule that are in the same state: all open, or all handled."""

    findings: Findings

    @property
    def first(self) -> Finding:
        """The finding whose words stand for the whole group."""
        return self.findings[0]

    @property
    def count(self) -> int:
        """The number of findings in the group."""
        return len(self.findings)

    @property
    def others(self) -> str:
        """How many findings there are besides the first, with at most 3 of their subjects' names.

        "" for a single finding.
        """
        if len(self.findings) == 1:
            return ""
        names = dict.fromkeys(finding.subject.name for finding in self.findings)
        rest = [name for name in names if name != self.first.subject.name]
        return f"{len(self.findings) - 1} more" + (f": {listed(rest, most=3)}" if rest else "")


def group_findings(findings: Iterable[Finding]) -> tuple[tuple[FindingGroup, ...], tuple[FindingGroup, ...]]:
    """The open findings by rule and severity, in the order of ``sort_findings``, and the handled ones likewise."""
    groups = grouped(((one.code, one.handled is None, one.severity), one) for one in sort_findings(findings))
    made = [(is_open, FindingGroup(findings=tuple(group))) for (_, is_open, _), group in groups.items()]
    return tuple(g for is_open, g in made if is_open), tuple(g for is_open, g in made if not is_open)


def headline(findings: Iterable[Finding]) -> str:
    """How many findings are open, by severity, and how many are handled: "1 error, 2 warnings, 12 handled"."""
    known = list(findings)
    counts = summarize(finding for finding in known if finding.handled is None)
    words = [f"{n} {name}{'s' if n != 1 and name != 'info' else ''}" for name, n in counts.items() if n]
    handled = sum(finding.handled is not None for finding in known)
    return ", ".join([*words, *([f"{handled} handled"] if handled else [])]) or "no findings"


def exit_status(findings: Iterable[Finding]) -> int:
    """1 when an error-level finding is not handled, else 0."""
    return int(any(finding.blocks for finding in findings))


def listed(names: Sequence[str], *, most: int = 5) -> str:
    """The first ``most`` names, and how many more there are, for a message."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
