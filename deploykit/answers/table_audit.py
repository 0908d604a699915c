"""Puts every row of every installed backend's tables, and every rule's sources, to the audit; it mends nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from deploykit.backend.plugins import all_registries, load_backends
from deploykit.tables.auditing import Problem, contradictions, source_form, stale_sources, unresolved

if TYPE_CHECKING:
    from deploykit.backend.backend import AnyBackend

__all__ = ["Audit", "audit_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """How many rows and rules were looked at, what their sources name, and what is not in order."""

    rows: int
    rules: int
    forms: Mapping[str, int]
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit tables check``."""
        return {
            "rows": self.rows,
            "rules": self.rules,
            "sources": dict(self.forms),
            "problems": [{"kind": p.kind, "subject": p.subject, "detail": p.detail} for p in self.problems],
        }


def audit_tables(today: date) -> Audit:
    """Every capability row, device fact and rule of the installed backends."""
    problems: dict[Problem, None] = {}
    sources: Counter[str] = Counter()
    rows = 0
    for backend in load_backends():
        capabilities = tuple(backend.compat())
        rows += len(capabilities)
        problems.update(dict.fromkeys(contradictions(capabilities)))
        own: Counter[str] = Counter()
        for subject, given, confidence in _rows(backend, capabilities):
            own.update(given)
            problems.update(dict.fromkeys(unresolved(subject, given, confidence)))
        if backend.offers("source_dates"):
            problems.update(dict.fromkeys(stale_sources(backend.source_dates(), own, today)))
        sources.update(own)
        rows += sum(len(device.facts) for device in backend.devices())
    rules = [rule for registry in all_registries() for rule in registry]
    for rule in rules:
        problems.update(dict.fromkeys(unresolved(f"rule {rule.code}", rule.sources, None, computes=True)))
    forms: Counter[str] = Counter()
    for source, count in sources.items():
        forms[source_form(source) or "absence"] += count
    return Audit(rows=rows, rules=len(rules), forms=dict(sorted(forms.items())), problems=tuple(problems))


def _rows(backend: AnyBackend, capabilities: tuple[Any, ...]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    for row in capabilities:
        yield f"{row.feature} {row.tool or row.backend} {row.sdk}".strip(), row.source, row.confidence
    for device in backend.devices():
        for name, fact in device.facts.items():
            yield f"device {device.id} {name}", fact.source, fact.confidence
