"""Turns the Qualcomm tables into rows of ``deploykit compat``, as ranges of releases; it answers no query itself.

How features are called is documented in docs/compat.md: a bare name is a feature, ``flag --x`` a command-line flag,
``key graphs[].O`` a configuration key, ``missing-encoding …``, ``rule …``, ``release …``, ``fact …`` and
``wheel …`` what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, ConfigKey, Feature, Flag, SdkTable, Status, release_range
from deploykit.tables.devices import Fact
from deploykit_qualcomm.tables import Tables, Wheel, tables

__all__ = ["FAMILY", "compat_rows", "load_methods", "method_rows"]


FAMILY = "qairt"
_WHEEL = "onnxruntime-qnn"

R = TypeVar("R", Flag, Feature, ConfigKey)


def compat_rows(backend: str, *, source: Tables | None = None) -> Iterator[CompatRow]:
    """Every row of the tables that concerns one backend (``qnn-htp`` or ``ort-qnn``), devices excepted."""
    shelf = source or tables()
    found = shelf.all()
    states = _ranges(found, lambda table: table.features, lambda row: (row.feature, row.tool, row.arch))
    for row, until in states:
        # The provider runs none of the SDK's tools; what holds for no tool in particular holds for both.
        if row.tool in ("", _WHEEL) if backend == "ort-qnn" else row.tool != _WHEEL:
            note = _joined(row.note, row.confidence_note)
            yield _row(backend, row.feature, row, until, tool=row.tool, arch=row.arch, note=note)
    if backend == "ort-qnn":
        yield from _wheel_rows(backend, shelf.wheels)
    else:
        yield from _flag_rows(backend, found)
        yield from _key_rows(backend, found)
        yield from _missing_encoding_rows(backend, shelf)
    for rule in shelf.compat_rules:
        yield _plain(
            backend,
            f"rule {rule.topic}",
            _joined(rule.text, rule.confidence_note),
            rule.source,
            confidence=rule.confidence,
            contradicts=rule.contradicts,
            words=rule.words,
        )
    yield from _op_rows(backend, shelf)
    yield from _release_rows(backend, shelf)


def _ranges(
    found: Sequence[SdkTable], rows_of: Callable[[SdkTable], Iterable[R]], key: Callable[[R], Any]
) -> Iterator[tuple[R, str]]:
    """Each distinct state of each row, with the last release that has it ("" for the newest)."""
    states: dict[Any, list[R]] = {}
    for table in found:
        for row in rows_of(table):
            history = states.setdefault(key(row), [])
            # A row that a release does not change is the very object of its parent.
            if not history or history[-1] is not row:
                history.append(row)
    before = {table.version: earlier.version for earlier, table in pairwise(found)}
    for history in states.values():
        for index, row in enumerate(history):
            later = history[index + 1].since if index + 1 < len(history) else ""
            yield row, before[later] if later else ""


def _row(backend: str, feature: str, row: Flag | Feature | ConfigKey, until: str, **more: Any) -> CompatRow:
    return CompatRow(
        feature=feature,
        backend=backend,
        sdk=release_range(row.since, until),
        status=row.status,
        since=row.since,
        until=until,
        source=row.source,
        confidence=row.confidence,
        contradicts=row.contradicts,
        family=FAMILY,
        **more,
    )


def _flag_rows(backend: str, found: Sequence[SdkTable]) -> Iterator[CompatRow]:
    for row, until in _ranges(found, lambda table: table.flags, lambda row: (row.tool, row.flags)):
        note = _joined(
            row.meaning,
            _lifecycle(row),
            f"default {row.default}" if row.default is not None else "",
            row.default_note,
            f"values {' '.join(row.values)}" if row.values else "",
            row.note,
            row.version_note,
            row.confidence_note,
        )
        renamed = f"flag {row.renamed_to}" if row.renamed_to else ""
        for flag in row.flags or ("",):
            name = f"flag {flag}" if flag else f"tool {row.tool}"
            words = (*row.aliases, row.renamed_to)
            yield _row(
                backend,
                name,
                row,
                until,
                tool=row.tool,
                note=note,
                lifecycle=_lifecycle(row),
                renamed_to=renamed,
                words=words,
            )


def _key_rows(backend: str, found: Sequence[SdkTable]) -> Iterator[CompatRow]:
    for row, until in _ranges(found, lambda table: table.config_keys, lambda row: row.path):
        note = _joined(
            f"{row.type}{f' in {row.unit}' if row.unit else ''}",
            _lifecycle(row),
            f"phase {row.phase}" if row.phase else "",
            row.phase_note,
            f"default {row.default}" if row.default is not None else "",
            row.default_note,
            f"values {' '.join(row.values)}" if row.values else "",
            f"range {row.range[0]} to {row.range[-1]}" if row.range else "",
            row.note,
            row.confidence_note,
        )
        yield _row(
            backend,
            f"key {row.path}",
            row,
            until,
            tool=f"htp-config-{row.file}",
            note=note,
            lifecycle=_lifecycle(row),
            renamed_to=f"key {row.renamed_to}" if row.renamed_to else "",
            words=(row.python_name, row.renamed_to),
        )


def _lifecycle(row: Flag | ConfigKey) -> str:
    return "" if row.lifecycle == "normal" else row.lifecycle


def _plain(backend: str, feature: str, note: str, source: tuple[str, ...], **more: Any) -> CompatRow:
    fields = {"tool": "", "sdk": "", "status": Status.SUPPORTED, "since": "", "until": "", "family": FAMILY}
    row = {**fields, **more}
    if row["since"]:
        row["sdk"] = release_range(row["since"], row["until"])
    return CompatRow(feature=feature, backend=backend, note=note, source=source, **row)


def _missing_encoding_rows(backend: str, shelf: Tables) -> Iterator[CompatRow]:
    for case in shelf.missing_encodings:
        options = f"--input_list {case.input_list}, float fallback {case.float_fallback}, quantizer {case.quantizer}"
        note = _joined(
            options,
            case.result,
            f"when {case.trigger}" if case.trigger else "",
            f"needs {case.needs}" if case.needs else "",
            f"known bad: {case.known_bad}" if case.known_bad else "",
            case.confidence_note,
        )
        for tool in case.tools:
            yield _plain(
                backend,
                f"missing-encoding {case.id}",
                note,
                case.source,
                tool=tool,
                status=case.status,
                confidence=case.confidence,
                contradicts=case.contradicts,
            )


def _op_rows(backend: str, shelf: Tables) -> Iterator[CompatRow]:
    """What documents say of operators, beside what was built and run; before a change, that it is not there yet."""
    for change in shelf.op_history:
        name = f"op {change.onnx[0]}, in the documents: {change.text}"
        common: dict[str, Any] = {"confidence": change.confidence, "words": (change.op, *change.onnx)}
        note = f"{change.op}: the history names it with {change.since}; what older releases do is not said there"
        yield _plain(backend, name, note, change.source, since=change.since, **common)
        first = shelf.with_rows[0]
        before = shelf.versions[shelf.versions.index(change.since) - 1]
        common["confidence"] = Confidence.INFERRED
        unsaid = {"since": first, "until": before, "status": Status.UNKNOWN}
        yield _plain(backend, name, note, change.source, **unsaid, **common)


def _release_rows(backend: str, shelf: Tables) -> Iterator[CompatRow]:
    for version in shelf.versions:
        file = shelf.file(version)
        only = {"since": version, "until": version}
        seen = "" if file.extends else "its tools were not read: no tables"
        builds = f"builds {', '.join(file.builds)}" if file.builds else ""
        month = f"released {file.month}" if file.month else ""
        carrier = f"met only inside {file.carrier}" if file.carrier else ""
        note = _joined("a release", month, builds, carrier, seen)
        yield _plain(backend, f"release {version}", note, file.source, confidence=file.confidence, **only)
        for change in file.change:
            yield _plain(
                backend, f"release {version}", change.text, change.source, confidence=change.confidence, **only
            )
        for name, fact in file.facts.items():
            yield _fact_row(backend, name, fact, version)


def _fact_row(backend: str, name: str, fact: Fact, version: str) -> CompatRow:
    return _plain(
        backend,
        f"fact {name.replace('_', '-')} {fact.value}",
        _joined(f"{name.replace('_', ' ')} {fact.value} seen in this release", fact.note),
        fact.source,
        since=version,
        until=version,
        confidence=fact.confidence,
        contradicts=fact.contradicts,
    )


def _wheel_rows(backend: str, wheels: Iterable[Wheel]) -> Iterator[CompatRow]:
    """A row per ONNX Runtime that a wheel was tried with, and one per build of its compiler; each holds at one release.

    The family is one of their own: a release that only a wheel carries has no table of tools.
    """
    for wheel in wheels:
        apis = f", QNN API {wheel.qnn_api}, HTP API {wheel.htp_api}" if wheel.qnn_api else ""
        apis += f", writes context blobs {wheel.blob}" if wheel.blob else ""
        common: dict[str, Any] = {
            "source": wheel.source,
            "confidence": wheel.confidence,
            "words": (wheel.sdk, wheel.build),
            "since": wheel.sdk,
            "until": wheel.sdk,
            "family": f"QAIRT in {_WHEEL}",
        }
        name, carries = f"wheel {_WHEEL} {wheel.version}", f"carries QAIRT {wheel.build}{apis}"
        for pair in wheel.onnxruntime:
            reads = f"reads operator sets up to {pair.opset}, IR up to {pair.ir}"
            note = _joined(f"with onnxruntime {pair.version}", pair.note, reads, carries)
            yield _plain(backend, name, note, tool=f"onnxruntime {pair.version}", status=pair.status, **common)
        if wheel.reads is not None:
            note = f"its ONNX Runtime reads operator sets up to {wheel.reads.opset}, IR up to {wheel.reads.ir}"
            own = {"source": wheel.reads.source, "confidence": wheel.reads.confidence}
            yield _plain(backend, name, note, tool=f"onnxruntime {wheel.version}", **{**common, **own})
        for host in wheel.host:
            code = "ARM64" if host.machine == "aarch64" else host.machine
            seen = f"seen: {', '.join(host.observed)}" if host.observed else "not run"
            note = _joined(carries, f"{code} code, runs on {' or '.join(map(_place, host.runs))}", seen)
            yield _plain(backend, name, note, tool=f"{host.system} {host.machine}", **common)


def _place(run: str) -> str:
    return {
        "linux-x86-64": "Linux x86-64",
        "wine-x86-64": "Linux x86-64 under Wine",
        "windows-x86-64": "Windows x86-64",
        "windows-arm64": "Windows on ARM",
    }[run]


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


_TOOL = "aimet-onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: the spellings that find it, and the option of the quantizer that runs it ("" for none)."""

    name: str
    words: tuple[str, ...]
    status: Status
    note: str
    source: tuple[str, ...]
    confidence: Confidence
    option: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MethodFile:
    schema: int
    method: tuple[Method, ...]


def load_methods() -> tuple[Method, ...]:
    """Every row of ``methods.toml``, sources written out."""
    return tables().further(_MethodFile, "methods.toml").method


def method_rows(backend: str) -> Iterator[CompatRow]:
    """The rows for one backend; they depend on AIMET's version, not on an SDK's."""
    for method in load_methods():
        ran = f"; 'deploykit quantize --with aimet --option {method.option}=…'" if method.option else ""
        yield CompatRow(
            feature=method.name,
            backend=backend,
            tool=_TOOL,
            sdk="",
            status=method.status,
            since="",
            until="",
            note=f"{method.note}{ran}",
            source=method.source,
            confidence=method.confidence,
            words=method.words,
        )
