"""A package in words: whether it can be shipped, what each output lost, what was decided and why, what was changed.

All comes from the manifest; nothing is judged anew.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from deploykit.accuracy.latency import in_time
from deploykit.backend.status import Compiled, Correctness, PackageStatus, Right, status_from_json, status_of
from deploykit.findings import Finding, group_findings
from deploykit.findings.records import Json, Published, grouped
from deploykit.model.facts import in_words
from deploykit.packages.manifests import content_of, read_manifest

__all__ = ["ON_A_DEVICE", "Explanation", "Word", "costs_by_output", "explain", "explained"]
__all__ += ["samples_wanted", "shipping"]

ON_A_DEVICE = "On a device"
_FROM_USER = frozenset({"given", "recorded"})
# This many samples, with one decision each, are enough to tell a failure from chance.
_DATA = "package it again with --calibration DATA, 20 samples or more with every kind of answer, or --input NAME=VALUE"
_RUN = (
    "deploykit build {0}; "
    "deploykit run {0} --on ssh://user@host, or adb: the device's outputs are judged (of a package with one graph); "
    "{0}/scripts/run_on_device.sh runs it by hand"
)


class Word(StrEnum):
    """The answer to whether to ship a package."""

    SHIP = "ship it"
    NO = "do not ship it"
    NOT_JUDGED = "not judged"


class Shipping(Published, kw_only=False):
    """The answer, the reason in one sentence, its evidence ("" for none), and what to do next."""

    word: Word
    why: str
    evidence: str
    next: str = ""


_LOCATE = (
    "'deploykit accuracy locate' names the first operator that is off, 'deploykit accuracy layers' what costs most"
)
_BUILD = "deploykit build {} where the SDK is installed"


def samples_wanted(right: Correctness) -> str:
    """The advice to give real samples, if these would settle an open verdict; else ""."""
    told = bool(right.label) or any(word in right.why for word in ("made up", "made-up", "--calibration"))
    return _DATA if told and right.state is Right.NOT_JUDGED and "hand in" not in right.why else ""


def shipping(status: PackageStatus, findings: Sequence[Finding], package: Path | None = None) -> Shipping:
    """The answer for a package with these facts and findings; reasons against it come first."""
    compiled, right = status.compiled, status.right
    blocking = [finding for finding in findings if finding.blocks]
    hint = next((finding.hint for finding in blocking if finding.hint), "")
    by = f"compiled by {compiled.by}" if compiled.by else ""
    # The number of values compared with limits, the samples, and the reference.
    judged = [number for number in right.numbers if number.get("passes") is not None]
    against = " and ".join(dict.fromkeys(str(number.get("against")) for number in judged)) or right.against
    measured = ""
    if right.label:
        held = f"{len(judged)} number{'s' if len(judged) != 1 else ''} held to limits, " if judged else ""
        some = f"{right.count} {right.label} sample{'s' if right.count != 1 else ''}"
        measured = f"{held}on {some}{f' against {against}' if against else ''}"
    # A number without a limit judges nothing.
    is_against_float = right.against == "float" or any(
        number.get("against") == "float" and number.get("passes") for number in right.numbers
    )

    def no(why: str, evidence: str = "", next_: str = "") -> Shipping:
        return Shipping(Word.NO, why, evidence=evidence, next=next_)

    named = "PACKAGE" if package is None else shlex.quote(str(package))
    if not status.intact:
        return no("its files are not as they were recorded", next_="make the package again")
    if compiled.state is Compiled.REFUSED:
        return no(f"the compiler refuses it{f': {compiled.why}' if compiled.why else ''}", compiled.by, hint)
    if right.state is Right.NO:
        tried = next((finding.hint for finding in findings if finding.slug == "lost-by-quantization"), hint)
        return no(f"its numbers are wrong{f': {right.why}' if right.why else ''}", measured, tried or _LOCATE)
    if blocking:
        first = blocking[0]
        return no(f"{first.code} {first.slug}: {first.message}", by, first.hint)
    if right.state is not Right.YES:
        told = right.why.removeprefix("not judged: ")
        lacks = "no real samples say" if samples_wanted(right) else "nothing says yet"
        lacks = "its samples do not say" if right.label in _FROM_USER else lacks
        why = f"the package is made, and {lacks} whether its outputs are right{f': {told}' if told else ''}"
        next_ = samples_wanted(right) or _RUN.format(named)
        return Shipping(Word.NOT_JUDGED, why, evidence=by, next=next_)
    ran = right.where == "device"
    if compiled.state is not Compiled.YES and not ran:
        why, next_ = "its numbers are right in simulation, but no compiler has seen it", _BUILD.format(named)
    elif not is_against_float:
        why = "the device computes what the encodings say, but whether they are good enough was not judged"
        next_ = _DATA
    elif right.label not in _FROM_USER:
        why, next_ = "it is compiled and right, but on inputs that were made up from what is known of them", _DATA
    else:
        how = "it ran on the device" if ran else "it is compiled"
        as_meant = "its outputs are right against the float model"
        if "lost is in your encodings" in right.why:
            as_meant = "loses what its encodings lose"
        return Shipping(Word.SHIP, f"{how}, and {as_meant}", evidence="; ".join(filter(None, (by, measured))))
    return Shipping(Word.NOT_JUDGED, why, evidence=measured, next=next_)


_BLAMED = {"float": "the precision and all that follows", "quantized": "the device", "device": "another device"}


class OutputCost(Published):
    """One output, or a ``part`` of it that is judged separately, such as scores beside boxes in pixels.

    ``decibels`` are the signal-to-noise ratios by reference; ``worst`` are other
    judged numbers that miss their limit, in words.
    """

    output: str
    part: str
    decibels: Mapping[str, float]
    worst: tuple[str, ...]

    @property
    def name(self) -> str:
        """The output and its part, in words."""
        return f"{self.output}, {self.part}" if self.part else self.output

    def __str__(self) -> str:
        told = [f"{value:.1f} dB left by {_BLAMED.get(name, name)}" for name, value in self.decibels.items()]
        return f"{self.name}: {', '.join([*told, *self.worst]) or 'as asked'}."


def costs_by_output(numbers: Iterable[Json]) -> tuple[OutputCost, ...]:
    """Each output once, or each of its parts, in the order of the numbers; of several equal ones the lowest counts.

    Numbers about a part without decibels of its own are added to the output's first part.
    """
    decibels = dict[tuple[str, str], dict[str, float]]()
    missed = list[tuple[tuple[str, str], str]]()
    for number in numbers:
        value = number.get("value")
        if not isinstance(value, int | float) or not math.isfinite(value):
            value = None
        place = str(number.get("output", "")), str(number.get("where", ""))
        if number.get("measure") == "sqnr" and value is not None:
            held, against = decibels.setdefault(place, {}), str(number.get("against", ""))
            held[against] = min(held.get(against, math.inf), float(value))
        unit = f" {number['unit']}" if number.get("unit") else ""
        where = f" of {place[1]}" if place[1] else ""
        asked = f"where {number.get('threshold')}{unit} is asked"
        fails = number.get("passes") is False and value is not None
        missed.append((place, f"{number.get('measure')}{where} {value:g}{unit} {asked}" if fails else ""))
    first = {output: (output, part) for output, part in reversed(decibels)}
    worst = dict[tuple[str, str], list[str]]()
    for place, words in missed:
        if place not in decibels:
            place = first.setdefault(place[0], (place[0], ""))
            decibels.setdefault(place, {})
        if words:
            worst.setdefault(place, []).append(words)
    return tuple(
        OutputCost(output=place[0], part=place[1], decibels=db, worst=tuple(worst.get(place, ())))
        for place, db in decibels.items()
    )


class Chapter(Published):
    """One question with its answer in sentences."""

    title: str
    lines: tuple[str, ...]


class Explanation(Published):
    """A package's explanation; ``costs`` are the numbers behind the chapter on measurements."""

    title: str
    shipping: Shipping
    chapters: tuple[Chapter, ...]
    costs: tuple[OutputCost, ...]


def explain(package: Path) -> Explanation:
    """Explains a package from its manifest. Raises PackageError if the folder is not a package or was changed."""
    return explained(read_manifest(package), package)


def explained(manifest: Json, package: Path | None = None) -> Explanation:
    """Explains a manifest that is already read; ``package`` is its folder's name for people, if known."""
    decision, sdk = _table(manifest, "decision"), _table(manifest, "sdk")
    findings = tuple(_findings(manifest))
    status = status_of(manifest, content_of(manifest))
    costs = costs_by_output(status.right.numbers)
    told = (
        ("What was decided", _decided(manifest, decision)),
        ("What was not taken", _not_taken(decision)),
        ("What was tried", _tried(decision)),
        ("What was changed in the graph", _changed(decision, findings)),
        ("Where the encodings come from", _quantized(_table(manifest, "quantization"))),
        ("What was measured", map(str, costs)),
        (ON_A_DEVICE, _on_devices(manifest)),
        ("How fast it will be", _estimated(_table(manifest, "estimate"))),
        ("What ran here, and what did not", _ran(manifest)),
        ("What is open", _open(findings)),
    )
    model = next((str(row.get("name", "")) for row in _rows(manifest, "inputs") if row.get("role") == "model"), "")
    release = f", {sdk.get('name', '')} {sdk['version']}".rstrip() if sdk.get("version") else ""
    chapters = (Chapter(title=title, lines=tuple(lines)) for title, lines in told)
    return Explanation(
        title=f"{model} for {_table(manifest, 'target').get('name', '?')} ({manifest.get('backend', '')}{release})",
        shipping=shipping(status, findings, package),
        chapters=tuple(chapter for chapter in chapters if chapter.lines),
        costs=costs,
    )


def _findings(manifest: Json) -> Iterator[Finding]:
    """Yields the recorded findings; one with an unknown kind or severity is left out."""
    for row in _rows(manifest, "findings"):
        with suppress(msgspec.ValidationError):
            yield msgspec.convert(row, Finding)


def _decided(manifest: Json, decision: Json) -> Iterator[str]:
    if route := _table(manifest, "route"):
        yield f"The route is {route.get('id')} ({route.get('confidence')}): {route.get('why')}."
    if decision.get("assumed"):
        yield f"The precision is {decision['assumed']}."
    counts = Counter(map(str, _table(_table(manifest, "precision"), "intended").values()))
    if counts:
        yield "Tensors: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) + "."


def _not_taken(decision: Json) -> Iterator[str]:
    for row in _rows(decision, "rejected"):
        codes = ", ".join(map(str, _list(row.get("because"))))
        yield f"{row.get('id')} cannot be taken ({codes}): {row.get('why') or 'see these rules'}."
    for row in _rows(decision, "alternatives"):
        codes = ", ".join(map(str, _list(row.get("because"))))
        against = f" Against it: {codes}." if codes else ""
        insist = f" Insist on it with {row['ask']}." if row.get("ask") else ""
        yield f"{row.get('id')} ({row.get('confidence')}) was not needed: {row.get('why')}.{against}{insist}"


def _tried(decision: Json) -> Iterator[str]:
    for row in sorted(_rows(decision, "candidates"), key=lambda row: not row.get("won")):
        db = row.get("overall_db")
        shown = f"{db:.1f} dB in simulation; " if isinstance(db, int | float) else ""
        yield f"{row.get('id')}{' (taken)' if row.get('won') else ''}: {shown}{row.get('why')}."


def _changed(decision: Json, findings: Sequence[Finding]) -> Iterator[str]:
    """Yields each kind of change once, with its places, and the findings that the rewritten model no longer has."""
    places = grouped(
        (
            in_words(*(list(map(str, _list(row.get(side)))) for side in ("before", "after"))),
            str(next(iter(_list(row.get("nodes"))), "new")),
        )
        for row in _rows(decision, "changes")
    )
    for words, nodes in places.items():
        more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
        yield f"{words}, at {len(nodes)} place{'s' if len(nodes) > 1 else ''} ({', '.join(nodes[:3])}{more})."
    for group in group_findings(findings)[1]:
        first = group.first
        times = f", {group.count} times" if group.count > 1 else ""
        yield f"{first.code} {first.slug}{times}: {first.message}. What is done: {first.handled}."


def _quantized(made: Json) -> Iterator[str]:
    if made.get("quantizer"):
        seen = _table(made, "calibration").get("seen", 0)
        yield f"{made['quantizer']} made them as {made.get('precision')}, from {seen} samples."
    if ladder := _table(made, "ladder"):
        yield f"The precision was chosen: {ladder.get('chosen') or 'nothing'}, {ladder.get('why')}."


def _on_devices(manifest: Json) -> Iterator[str]:
    """Yields the last run on each device and on the emulator, and the differences from the emulator's earlier
    verdict.
    """
    last = {(run.get("serial"), run.get("where")): run for run in _rows(manifest, "runs")}
    for run in last.values():
        where, name = str(run.get("where")), f"Run {run.get('id')} on {run.get('device')}"
        stale = "" if run.get("content") == content_of(manifest) else ", of files that were built anew since"
        yield f"{name} ({where}{stale}): right: {status_from_json(run).right}."
        if where == "device":
            told = status_from_json(_table(manifest, "status")).right
            before = {"emulator": "The emulator", "simulated": "The simulation"}.get(told.where, "The build machine")
            yield f"{before} had said: {told}."
            if parts := ", ".join(map(str, _list(run.get("parts")))):
                yield f"The device loses more than the emulator in {parts}."
            elif said := run.get("emulator"):
                differ = f"They differ: on the same samples the emulator says {said}, the device {run.get('right')}."
                yield "Both agree in every output." if said == run.get("right") else differ
            median, p90 = run.get("median_us"), run.get("p90_us")
            if isinstance(median, int | float) and isinstance(p90, int | float):
                yield f"It took {in_time(median)} (median), {in_time(p90)} (p90); more: {run.get('record')}."


def _estimated(estimate: Json) -> Iterator[str]:
    """Yields the compiler's estimate and its most expensive operators; missing numbers are left out."""
    time, low, high = (estimate.get(key) for key in ("time_us", "lower_us", "upper_us"))
    if not all(isinstance(value, int | float) for value in (time, low, high)):
        return
    if estimate.get("instead_of"):
        yield f"There is no estimate for {estimate['instead_of']}; what follows is of the nearest chip that has one."
    least = "at least " if estimate.get("missing_ops") else "about "
    yield (
        f"{estimate.get('compiler')} says {least}{time:,.0f} us on the accelerator ({low:,.0f} to {high:,.0f}), by its "
        f"own model of {estimate.get('chip') or estimate.get('soc_model')}; nothing was measured, and a call adds "
        "transport and host."
    )
    for row in _rows(estimate, "dearest")[:5]:
        reason = f": {row['reason']}" if row.get("reason") else ""
        yield f"{row.get('node')} takes {row.get('time_us')} us{reason}."
    if estimate.get("timeline"):
        yield f"Every kernel on its thread: open {estimate['timeline']} in ui.perfetto.dev."


def _ran(manifest: Json) -> Iterator[str]:
    ran, left = (", ".join(map(str, _list(manifest.get(key)))) for key in ("executed", "generated"))
    yield f"Run here: {ran}." if ran else "Nothing was run here."
    if left:
        yield f"Only written down: {left}."


def _open(findings: Sequence[Finding]) -> Iterator[str]:
    for group in group_findings(findings)[0]:
        first = group.first
        others = f" (and {group.others})" if group.others else ""
        advice = f" Next: {first.hint}." if first.hint else ""
        yield f"{first.severity} {first.code} {first.slug}: {first.message}{others}.{advice}"


def _table(value: Json, key: str) -> Json:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _rows(value: Json, key: str) -> list[Json]:
    return [row for row in _list(value.get(key)) if isinstance(row, Mapping)]
