"""The registry of rules: one function per rule, with a stable code and slug; codes are never reused.

It knows neither models nor vendors; the type parameter of a registry says what its rules look at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from deploykit.errors import DefectError
from deploykit.findings import Claim, Finding, Findings, Severity, Subject, SubjectKind
from deploykit.findings.records import Names, Record

__all__ = ["Finds", "Found", "Registry", "Rule"]

C = TypeVar("C")
Check: TypeAlias = Callable[[C], Iterable["Found"]]
Finds: TypeAlias = Iterator["Found"]  # what a rule function yields


class Found(Struct, frozen=True):
    """What a rule function yields; the registry adds code, slug, severity and sources. ``kind`` is a ``SubjectKind``.

    ``severity``, ``claim`` and ``cure`` override the rule's own, ``sources`` are added to the rule's. ``by_trial`` is
    False where a trial cannot answer this finding, although its rule makes a claim.
    """

    kind: str
    name: str
    message: str
    hint: str = ""
    handled: str | None = None
    severity: Severity | None = None
    sources: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = {}
    claim: Claim | None = None
    by_trial: bool = True
    cure: Names | None = None


class Rule(Record, Generic[C]):
    """One rule: what it looks for, why that matters, how to fix it, and who says so.

    ``claim`` is None where no compiler can tell whether the rule is right. ``cure`` are the rewrites, by name, that may
    take its findings away: they are applied before anything else is decided, and undone where they do not help.
    """

    code: str
    slug: str
    severity: Severity
    scope: str
    what: str
    why: str
    fix: str
    sources: tuple[str, ...]
    check: Check[C]
    claim: Claim | None
    cure: Names

    def run(self, context: C) -> Iterator[Finding]:
        """The findings of this rule for one context."""
        return map(self.finding, self.check(context))

    def finding(self, found: Found) -> Finding:
        """Stamp what the rule function yielded with this rule's identity."""
        return Finding(
            code=self.code,
            slug=self.slug,
            severity=found.severity or self.severity,
            subject=Subject(kind=SubjectKind(found.kind), name=found.name),
            message=found.message.removesuffix("."),
            hint=(found.hint or self.fix).removesuffix("."),
            handled=found.handled,
            sources=(*self.sources, *(s for s in found.sources if s not in self.sources)),
            evidence=found.evidence,
            claim=(found.claim or self.claim) if self.claim is not None and found.by_trial else None,
            cure=self.cure if found.cure is None else found.cure,
        )


class Registry(Generic[C]):
    """The rules of one scope (one context type), in the order of their codes.

    >>> RULES = Registry("situation")
    >>> @RULES.rule("DK901", "example", "error", sources=["…"])
    ... def check_example(situation):
    ...     '''A model of nothing.
    ...
    ...     It computes nothing.
    ...
    ...     Fix: leave it out
    ...     '''
    ...     yield Found("model", "m", "it is empty")

    ``sources`` are those of every rule that names none of its own.
    """

    def __init__(self, scope: str, *, sources: Sequence[str] = ()) -> None:
        self.scope = scope
        self._sources = sources
        self._rules: dict[str, Rule[C]] = {}

    def rule(
        self,
        code: str,
        slug: str,
        severity: str,
        sources: str | Sequence[str] = (),
        *,
        claim: Claim | None = None,
        cure: str | Names = (),
    ) -> Callable[[Check[C]], Check[C]]:
        """Register the decorated function under ``code``; a code or slug used twice is a defect. ``sources`` say so.

        Its docstring is the rule's page: what the rule finds, why that matters, and a paragraph that begins with
        ``Fix:``.
        """

        def register(check: Check[C]) -> Check[C]:
            if any(known.code == code or known.slug == slug for known in self._rules.values()):
                raise DefectError(f"rule {code} {slug}: the code or the slug is taken")
            said_by = (sources,) if isinstance(sources, str) else tuple(sources or self._sources)
            if not said_by:
                raise DefectError(f"rule {code} {slug}: no source")
            what = why = fix = ""
            if check.__doc__:  # python -OO has no docstrings
                page = [" ".join(text.split()) for text in re.split(r"\n\s*\n", check.__doc__)]
                if len(page) != 3 or not page[2].startswith("Fix: "):
                    raise DefectError(f"rule {code} {slug}: its docstring is not what, why and 'Fix: '")
                what, why, fix = page[0], page[1], page[2].removeprefix("Fix: ")
            self._rules[code] = Rule(
                code=code,
                slug=slug,
                severity=Severity(severity),
                scope=self.scope,
                what=what,
                why=why,
                fix=fix,
                sources=said_by,
                check=check,
                claim=claim,
                cure=(cure,) if isinstance(cure, str) else cure,
            )
            return check

        return register

    def __iter__(self) -> Iterator[Rule[C]]:
        return iter(sorted(self._rules.values(), key=lambda rule: rule.code))

    def __len__(self) -> int:
        return len(self._rules)

    def __getitem__(self, code: str) -> Rule[C]:
        return self._rules[code]

    def run(self, context: C) -> Findings:
        """All findings of all rules for one context."""
        findings = list[Finding]()
        for rule in self:
            findings += map(rule.finding, rule.check(context))
        return tuple(findings)
