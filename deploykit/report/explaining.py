"""A package in words: what was decided and why, what was not, what was changed, what was measured, what is open.

From the manifest alone, which is a stranger's file: what is not of the known shape is left out. It judges nothing anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploykit.backend.status import status_from_json
from deploykit.findings import Finding, Severity, Subject, SubjectKind, group_findings
from deploykit.model.changes import in_words
from deploykit.packages.manifests import read_manifest
from deploykit.report.costs_by_output import OutputCost, costs_by_output
from deploykit.report.shipping import Shipping, shipping
from deploykit.system.published import published

__all__ = ["Chapter", "Explanation", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One question, answered in sentences."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What there is to say; ``costs`` are the numbers behind the chapter about what was measured."""

    title: str
    shipping: Shipping
    chapters: tuple[Chapter, ...]
    costs: tuple[OutputCost, ...]

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit explain --json``."""
        return published(self) | {
            "chapters": [{"title": chapter.title, "lines": list(chapter.lines)} for chapter in self.chapters]
        }


def explain(package: Path) -> Explanation:
    """What the manifest of a package tells; raises PackageError where the folder is none or it was changed."""
    manifest = read_manifest(package)
    findings = tuple(_findings(manifest))
    status = status_from_json(_table(manifest, "status"))
    costs = costs_by_output(status.right.numbers)
    decision = _table(manifest, "decision")
    told = (
        ("What was decided", _decided(manifest, decision)),
        ("What was not taken", _rejected(decision)),
        ("What was tried", _tried(decision)),
        ("What was changed in the graph", _changed(decision, findings)),
        ("Where the encodings come from", _quantized(_table(manifest, "quantization"))),
        ("What was measured", tuple(map(str, costs))),
        ("What ran here, and what did not", _ran(manifest)),
        ("What is open", tuple(_open(findings))),
    )
    return Explanation(
        title=_title(manifest),
        shipping=shipping(status, findings),
        chapters=tuple(Chapter(title=title, lines=lines) for title, lines in told if lines),
        costs=costs,
    )


def _findings(manifest: Mapping[str, Any]) -> Iterator[Finding]:
    """The recorded findings; one of a kind or severity that is none is left out."""
    for row in _rows(manifest, "findings"):
        subject = _table(row, "subject")
        if str(row.get("severity")) in list(Severity) and str(subject.get("kind")) in list(SubjectKind):
            yield Finding(
                code=str(row.get("code", "")),
                slug=str(row.get("slug", "")),
                severity=Severity(row["severity"]),
                subject=Subject(kind=SubjectKind(subject["kind"]), name=str(subject.get("name", ""))),
                message=str(row.get("message", "")),
                hint=str(row.get("hint", "")),
                handled=None if row.get("handled") is None else str(row["handled"]),
            )


def _title(manifest: Mapping[str, Any]) -> str:
    model = next((str(row.get("name", "")) for row in _rows(manifest, "inputs") if row.get("role") == "model"), "")
    sdk = _table(manifest, "sdk")
    release = f", {sdk.get('name', '')} {sdk['version']}".rstrip() if sdk.get("version") else ""
    return f"{model} for {_table(manifest, 'target').get('name', '?')} ({manifest.get('backend', '')}{release})"


def _decided(manifest: Mapping[str, Any], decision: Mapping[str, Any]) -> tuple[str, ...]:
    route = _table(manifest, "route")
    lines = [f"The route is {route.get('id')} ({route.get('confidence')}): {route.get('why')}."] if route else []
    if decision.get("assumed"):
        lines.append(f"The precision is {decision['assumed']}.")
    counts = Counter(map(str, _table(_table(manifest, "precision"), "intended").values()))
    if counts:
        lines.append("Tensors: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) + ".")
    return tuple(lines)


def _rejected(decision: Mapping[str, Any]) -> tuple[str, ...]:
    no = [
        f"{row.get('id')} cannot be taken ({_codes(row)}): {row.get('why') or 'see these rules'}."
        for row in _rows(decision, "rejected")
    ]
    other = [
        f"{row.get('id')} ({row.get('confidence')}) was not needed: {row.get('why')}."
        + (f" Against it: {_codes(row)}." if row.get("because") else "")
        + (f" Insist on it with {row['ask']}." if row.get("ask") else "")
        for row in _rows(decision, "alternatives")
    ]
    return (*no, *other)


def _codes(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, _list(row.get("because"))))


def _tried(decision: Mapping[str, Any]) -> tuple[str, ...]:
    rows = sorted(_rows(decision, "candidates"), key=lambda row: not row.get("won"))
    return tuple(
        f"{row.get('id')}{' (taken)' if row.get('won') else ''}: {_decibels(row)}{row.get('why')}." for row in rows
    )


def _decibels(row: Mapping[str, Any]) -> str:
    value = row.get("overall_db")
    return f"{value:.1f} dB in simulation; " if isinstance(value, int | float) else ""


def _changed(decision: Mapping[str, Any], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Each kind of change once, with the number of its places, and what the rewritten model no longer has."""
    places: dict[str, list[str]] = {}
    for row in _rows(decision, "changes"):
        words = in_words(*(list(map(str, _list(row.get(side)))) for side in ("before", "after")))
        places.setdefault(words, []).append(str(next(iter(_list(row.get("nodes"))), "new")))
    lines = [
        f"{words}, at {len(nodes)} place{'s' if len(nodes) > 1 else ''} ({_some(nodes)})."
        for words, nodes in places.items()
    ]
    for group in group_findings(findings)[1]:
        first = group.first
        times = f", {group.count} times" if group.count > 1 else ""
        lines.append(f"{first.code} {first.slug}{times}: {first.message}. What is done: {first.handled}.")
    return tuple(lines)


def _quantized(made: Mapping[str, Any]) -> tuple[str, ...]:
    lines = []
    if made.get("quantizer"):
        seen = _table(made, "calibration").get("seen", 0)
        lines.append(f"{made['quantizer']} made them as {made.get('precision')}, from {seen} samples.")
    ladder = _table(made, "ladder")
    if ladder:
        lines.append(f"The precision was chosen: {ladder.get('chosen') or 'nothing'}, {ladder.get('why')}.")
    return tuple(lines)


def _ran(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    ran, left = _list(manifest.get("executed")), _list(manifest.get("generated"))
    lines = [f"Run here: {', '.join(map(str, ran))}."] if ran else ["Nothing was run here."]
    return (*lines, f"Only written down: {', '.join(map(str, left))}.") if left else tuple(lines)


def _open(findings: Sequence[Finding]) -> Iterator[str]:
    for group in group_findings(findings)[0]:
        first = group.first
        others = f" (and {group.others})" if group.others else ""
        advice = f" Next: {first.hint}." if first.hint else ""
        yield f"{first.severity} {first.code} {first.slug}: {first.message}{others}.{advice}"


def _some(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _table(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _rows(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [row for row in _list(value.get(key)) if isinstance(row, Mapping)]
