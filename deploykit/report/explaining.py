"""A package in words: can it be shipped, what each output lost, what was decided and why, what was changed.

From the manifest alone. It judges nothing anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from deploykit.backend.status import Compiled, PackageStatus, Right, status_from_json
from deploykit.findings import Finding, Severity, Subject, SubjectKind, group_findings
from deploykit.model.changes import in_words
from deploykit.packages.manifests import read_manifest
from deploykit.system.published import Published, published

__all__ = ["Chapter", "Explanation", "OutputCost", "Shipping", "Word", "costs_by_output", "explain", "shipping"]

_FROM_USER = frozenset({"given", "recorded"})
_DATA = "make the package again with --calibration and samples of the field, or --input NAME=VALUE"
_COMPARE = (
    "build it, run it with samples of the field, and hold its outputs to the float model's: "
    "'deploykit accuracy compare'"
)


class Word(StrEnum):
    """The answer in a word."""

    SHIP = "ship it"
    NO = "do not ship it"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipping(Published):
    """The answer, why in one sentence, what the sentence rests on ("" where on nothing), and what to do next."""

    word: Word
    why: str
    evidence: str = ""
    next: str = ""


def shipping(status: PackageStatus, findings: Iterable[Finding]) -> Shipping:
    """The answer for a package with these facts and findings; what speaks against it comes first."""
    blocking = [finding for finding in findings if finding.blocks]
    if not status.intact:
        return Shipping(word=Word.NO, why="its files are not as they were recorded", next="make the package again")
    if status.compiled.state is Compiled.REFUSED:
        why = f"the compiler refuses it: {status.compiled.why or 'the findings say what'}"
        return Shipping(word=Word.NO, why=why, evidence=_compiler(status), next=_hint(blocking))
    if status.right.state is Right.NO:
        why = f"its numbers are wrong: {status.right.why}" if status.right.why else "its numbers are wrong"
        return Shipping(word=Word.NO, why=why, evidence=_numbers(status), next=_hint(blocking) or _LOCATE)
    if blocking:
        first = blocking[0]
        return Shipping(word=Word.NO, why=f"{first.code} {first.slug}: {first.message}", next=first.hint)
    return _without_objection(status)


_LOCATE = (
    "'deploykit accuracy locate' names the first operator that is off, 'deploykit accuracy layers' what costs most"
)


def _without_objection(status: PackageStatus) -> Shipping:
    """Nothing speaks against it: is there enough that speaks for it?"""
    judged = status.right.state is Right.YES
    if not judged:
        why = f"its numbers were not judged: {status.right.why}" if status.right.why else "its numbers were not judged"
        wants_data = bool(status.right.label) or "--calibration" in status.right.why
        return Shipping(
            word=Word.NOT_JUDGED, why=why, evidence=_compiler(status), next=_DATA if wants_data else _COMPARE
        )
    if status.compiled.state is not Compiled.YES:
        why = "its numbers are right in simulation, but no compiler has seen it"
        step = "'deploykit build' where the tools are installed, or scripts/build.sh"
        return Shipping(word=Word.NOT_JUDGED, why=why, evidence=_numbers(status), next=step)
    if not _against_float(status):
        why = "the device computes what the encodings say, but whether they are good enough was not judged"
        return Shipping(word=Word.NOT_JUDGED, why=why, evidence=_numbers(status), next=_DATA)
    if status.right.label not in _FROM_USER:
        why = "it is compiled and right, but on inputs that were made up from what is known of them"
        return Shipping(word=Word.NOT_JUDGED, why=why, evidence=_numbers(status), next=_DATA)
    why = "it is compiled, and its outputs are right against the float model"
    return Shipping(word=Word.SHIP, why=why, evidence=f"{_compiler(status)}; {_numbers(status)}")


def _against_float(status: PackageStatus) -> bool:
    """Whether a number was held against the float model, and passed; one without a limit judges nothing."""
    judged = any(number.get("against") == "float" and number.get("passes") for number in status.right.numbers)
    return status.right.against == "float" or judged


def _compiler(status: PackageStatus) -> str:
    return f"compiled by {status.compiled.by}" if status.compiled.by else ""


def _numbers(status: PackageStatus) -> str:
    """How many numbers were held to limits, on which samples, against what."""
    judged = [number for number in status.right.numbers if number.get("passes") is not None]
    count, references = len(judged), dict.fromkeys(str(number.get("against")) for number in judged)
    against = " and ".join(references) or status.right.against
    against = f" against {against}" if against else ""
    held = f"{count} number{'s' if count != 1 else ''} held to limits, " if count else ""
    some = "sample" if status.right.count == 1 else "samples"
    return f"{held}on {status.right.count} {status.right.label} {some}{against}" if status.right.label else ""


def _hint(blocking: list[Finding]) -> str:
    return next((finding.hint for finding in blocking if finding.hint), "")


_BLAMED = {"float": "quantization and all that follows", "quantized": "the device", "device": "another device"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCost(Published):
    """One output, or a ``part`` of it that is judged by itself, such as the scores beside boxes in pixels.

    ``decibels`` are the signal to noise by what it was compared with; ``worst`` are the other judged numbers that do
    not pass, in words.
    """

    output: str
    part: str = ""
    decibels: Mapping[str, float] = field(default_factory=dict)
    worst: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The output and its part, in words."""
        return f"{self.output}, {self.part}" if self.part else self.output

    def __str__(self) -> str:
        told = [f"{value:.1f} dB left by {_BLAMED.get(name, name)}" for name, value in self.decibels.items()]
        return f"{self.name}: {', '.join([*told, *self.worst]) or 'as asked'}."


def costs_by_output(numbers: Iterable[Mapping[str, Any]]) -> tuple[OutputCost, ...]:
    """Each output once, or each of its parts, in the order of the numbers; of equal numbers the lowest stands.

    What is said of no part that has decibels of its own is said of the first one.
    """
    told = list(numbers)
    decibels: dict[tuple[str, str], dict[str, float]] = {}
    for number in told:
        if number.get("measure") == "sqnr" and _is_finite(number.get("value")):
            held = decibels.setdefault(_place(number), {})
            against = str(number.get("against", ""))
            held[against] = min(held.get(against, math.inf), float(number["value"]))
    first = {output: (output, part) for output, part in reversed(decibels)}
    worst: dict[tuple[str, str], list[str]] = {}
    for number in told:
        place = _place(number)
        place = place if place in decibels else first.setdefault(place[0], (place[0], ""))
        decibels.setdefault(place, {})
        if number.get("passes") is False and _is_finite(number.get("value")):
            worst.setdefault(place, []).append(_words(number))
    return tuple(
        OutputCost(output=place[0], part=place[1], decibels=db, worst=tuple(worst.get(place, ())))
        for place, db in decibels.items()
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _place(number: Mapping[str, Any]) -> tuple[str, str]:
    return str(number.get("output", "")), str(number.get("where", ""))


def _words(number: Mapping[str, Any]) -> str:
    where = f" of {number['where']}" if number.get("where") else ""
    unit = f" {number['unit']}" if number.get("unit") else ""
    return f"{number.get('measure')}{where} {number['value']:g}{unit} where {number.get('threshold')}{unit} is asked"


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
        ("How fast it will be", _estimated(_table(manifest, "estimate"))),
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


def _estimated(estimate: Mapping[str, Any]) -> tuple[str, ...]:
    """The compiler's own estimate and its dearest operators; a number that is missing is left out."""
    time, low, high = (estimate.get(key) for key in ("time_us", "lower_us", "upper_us"))
    if not all(isinstance(value, int | float) for value in (time, low, high)):
        return ()
    least = "at least " if estimate.get("missing_ops") else "about "
    lines = [
        f"{estimate.get('compiler')} says {least}{time:,.0f} us on the accelerator ({low:,.0f} to {high:,.0f}), by its "
        f"own model of {estimate.get('soc_model')}; nothing was measured, and a call adds transport and host."
    ]
    for row in _rows(estimate, "dearest")[:5]:
        reason = f": {row['reason']}" if row.get("reason") else ""
        lines.append(f"{row.get('node')} takes {row.get('time_us')} us{reason}.")
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
    told = []
    for row in rows:
        db = row.get("overall_db")
        shown = f"{db:.1f} dB in simulation; " if isinstance(db, int | float) else ""
        told.append(f"{row.get('id')}{' (taken)' if row.get('won') else ''}: {shown}{row.get('why')}.")
    return tuple(told)


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
