"""Turns the Qualcomm tables into rows of ``deploykit compat``, as ranges of releases. It answers no query itself.

docs/compat.md documents the names of features: a bare name is a feature, ``flag --x`` a
command-line flag, ``key graphs[].O`` a configuration key; ``missing-encoding …``, ``rule …``,
``release …``, ``fact …`` and ``wheel …`` name the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, TypeVar

from deploykit.findings import Confidence
from deploykit.findings.records import Names
from deploykit.tables.capabilities import CompatRow, ConfigKey, Feature, Flag, SdkTable, Status, compat_row
from deploykit.tables.sources import NotedRow, SourcedRow
from deploykit_qualcomm.tables import FAMILY, MACHINES, Tables, Wheel, row_key, tables

__all__ = ["compat_rows", "method_rows"]


_WHEEL = "onnxruntime-qnn"

R = TypeVar("R", Flag, Feature, ConfigKey)

_row = partial(compat_row, family=FAMILY)


class MissingEncoding(NotedRow):
    """The result for a tensor without an encoding, with one tool and one choice of options."""

    id: str
    tools: Names
    quantizer: str
    input_list: str
    float_fallback: str
    status: Status
    result: str
    trigger: str = ""
    needs: str = ""
    known_bad: str = ""


class CompatRule(NotedRow):
    """One statement about files and libraries of different releases; ``words`` are further names that find it."""

    topic: str
    text: str
    words: Names = ()


class OpChange(SourcedRow):
    """One change of an operator in a release, as documented; ``onnx`` are the ONNX operators lowered to it."""

    op: str
    onnx: Names
    since: str
    text: str


class Method(SourcedRow):
    """One method of AIMET: the spellings that find it, and the quantizer's option that runs it ("" for none)."""

    name: str
    words: Names
    status: Status
    note: str
    option: str = ""


def compat_rows(backend: str, *, source: Tables | None = None) -> Iterator[CompatRow]:
    """Every row of the tables about one backend (``qnn-htp`` or ``ort-qnn``), without devices."""
    shelf = source or tables()
    found = shelf.all()
    for row, until in _ranges(found, lambda table: table.features):
        # The provider runs none of the SDK's tools. A row without a tool holds for both backends.
        if row.tool in ("", _WHEEL) if backend == "ort-qnn" else row.tool != _WHEEL:
            notes, only = (row.note, row.confidence_note), {"since": row.since, "until": until}
            yield _row(backend, row.feature, row, *notes, tool=row.tool, arch=row.arch, **only)
    if backend == "ort-qnn":
        yield from _wheel_rows(backend, shelf.wheels)
    else:
        yield from _flag_rows(backend, found)
        yield from _key_rows(backend, found)
        for case in shelf.rows(MissingEncoding, "missing_encoding.toml", "case"):
            for tool in case.tools:
                yield _row(
                    backend,
                    f"missing-encoding {case.id}",
                    case,
                    f"--input_list {case.input_list}, float fallback {case.float_fallback}, quantizer {case.quantizer}",
                    case.result,
                    _said("when", case.trigger),
                    _said("needs", case.needs),
                    _said("known bad:", case.known_bad),
                    case.confidence_note,
                    tool=tool,
                )
    for rule in shelf.rows(CompatRule, "compat_rules.toml", "rule"):
        notes = (rule.text, rule.confidence_note)
        yield _row(backend, f"rule {rule.topic}", rule, *notes, words=rule.words)
    # The documents' statements about operators, beside measurements; before a change the status is unknown.
    for change in shelf.rows(OpChange, "op_history.toml", "op") if (shelf.data / "op_history.toml").is_file() else ():
        name = f"op {change.onnx[0]}, in the documents: {change.text}"
        note = f"{change.op}: the history names it with {change.since}; what older releases do is not said there"
        words = (change.op, *change.onnx)
        yield _row(backend, name, change, note, since=change.since, words=words)
        yield _row(
            backend,
            name,
            change,
            note,
            since=shelf.with_rows[0],
            until=shelf.versions[shelf.versions.index(change.since) - 1],
            words=words,
            status=Status.UNKNOWN,
            confidence=Confidence.INFERRED,
        )
    for version in shelf.versions:
        file = shelf.file(version)
        name, only = f"release {version}", {"since": version, "until": version}
        yield _row(
            backend,
            name,
            file,
            "a release",
            _said("released", file.month),
            _said("builds", ", ".join(file.builds)),
            _said("met only inside", file.carrier),
            "" if file.extends else "its tools were not read: no tables",
            **only,
        )
        for news in file.change:
            yield _row(backend, name, news, news.text, **only)
        for key, fact in file.facts.items():
            seen = f"{key.replace('_', ' ')} {fact.value} seen in this release"
            yield _row(backend, f"fact {key.replace('_', '-')} {fact.value}", fact, seen, fact.note, **only)


def _ranges(found: Sequence[SdkTable], rows_of: Callable[[SdkTable], Iterable[R]]) -> Iterator[tuple[R, str]]:
    """Yields each distinct state of each row, with the last release that has it ("" for the newest)."""
    states = dict[Any, list[R]]()
    for table in found:
        for row in rows_of(table):
            history = states.setdefault(row_key(row), [])
            # A row that a release does not change is the same object as its parent's.
            if not history or history[-1] is not row:
                history.append(row)
    before = {table.version: earlier.version for earlier, table in pairwise(found)}
    for history in states.values():
        for row, later in zip_longest(history, history[1:]):
            yield row, before[later.since] if later is not None else ""


def _flag_rows(backend: str, found: Sequence[SdkTable]) -> Iterator[CompatRow]:
    for row, until in _ranges(found, lambda table: table.flags):
        for flag in row.flags or ("",):
            yield _row(
                backend,
                f"flag {flag}" if flag else f"tool {row.tool}",
                row,
                row.meaning,
                _lifecycle(row),
                _said("default", row.default),
                row.default_note,
                _said("values", " ".join(row.values)),
                row.note,
                row.version_note,
                row.confidence_note,
                since=row.since,
                until=until,
                tool=row.tool,
                lifecycle=_lifecycle(row),
                renamed_to=_said("flag", row.renamed_to),
                words=(*row.aliases, row.renamed_to),
            )


def _key_rows(backend: str, found: Sequence[SdkTable]) -> Iterator[CompatRow]:
    for row, until in _ranges(found, lambda table: table.config_keys):
        yield _row(
            backend,
            f"key {row.path}",
            row,
            f"{row.type}{f' in {row.unit}' if row.unit else ''}",
            _lifecycle(row),
            _said("phase", row.phase),
            row.phase_note,
            _said("default", row.default),
            row.default_note,
            _said("values", " ".join(row.values)),
            f"range {row.range[0]} to {row.range[-1]}" if row.range else "",
            row.note,
            row.confidence_note,
            since=row.since,
            until=until,
            tool=f"htp-config-{row.file}",
            lifecycle=_lifecycle(row),
            renamed_to=_said("key", row.renamed_to),
            words=(row.python_name, row.renamed_to),
        )


def _said(what: str, value: object) -> str:
    """The two in words, "" if the value is not known."""
    return f"{what} {value}" if value not in (None, "") else ""


def _lifecycle(row: Flag | ConfigKey) -> str:
    return "" if row.lifecycle == "normal" else row.lifecycle


def _wheel_rows(backend: str, wheels: Iterable[Wheel]) -> Iterator[CompatRow]:
    """Yields a row per ONNX Runtime that a wheel was tried with, and one
    per build of its compiler; each for one release.

    They have a family of their own: a release that only a wheel carries has no table of tools.
    """
    for wheel in wheels:
        apis = f", QNN API {wheel.qnn_api}, HTP API {wheel.htp_api}" if wheel.qnn_api else ""
        apis += f", writes context blobs {wheel.blob}" if wheel.blob else ""
        name, carries = f"wheel {_WHEEL} {wheel.version}", f"carries QAIRT {wheel.build}{apis}"
        common: dict[str, Any] = {
            "words": (wheel.sdk, wheel.build),
            "since": wheel.sdk,
            "until": wheel.sdk,
            "family": f"QAIRT in {_WHEEL}",
        }
        for pair in wheel.onnxruntime:
            runtime = f"onnxruntime {pair.version}"
            reads = f"reads operator sets up to {pair.opset}, IR up to {pair.ir}"
            notes = (f"with {runtime}", pair.note, reads, carries)
            yield _row(backend, name, wheel, *notes, tool=runtime, status=pair.status, **common)
        if wheel.reads is not None:
            note = f"its ONNX Runtime reads operator sets up to {wheel.reads.opset}, IR up to {wheel.reads.ir}"
            yield _row(backend, name, wheel.reads, note, tool=f"onnxruntime {wheel.version}", **common)
        for host in wheel.host:
            code = "ARM64" if host.machine == "aarch64" else host.machine
            runs = f"{code} code, runs on {' or '.join(MACHINES[run] for run in host.runs)}"
            seen = f"seen: {', '.join(host.observed)}" if host.observed else "not run"
            yield _row(backend, name, wheel, carries, runs, seen, tool=f"{host.system} {host.machine}", **common)


def method_rows(backend: str) -> Iterator[CompatRow]:
    """Yields AIMET's methods for one backend; they depend on AIMET's version, not on an SDK's."""
    for method in tables().rows(Method, "methods.toml", "method"):
        ran = f"; 'deploykit quantize --with aimet --option {method.option}=…'" if method.option else ""
        note = f"{method.note}{ran}"
        yield _row(backend, method.name, method, note, tool="aimet-onnx", words=method.words, family="")
