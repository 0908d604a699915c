"""Rows of ``deploykit compat``: provider options, session entries, and measurements of operators.

It reads tables and imports no onnx, no numpy. Operator rows come from two tables: ``data/atlas/kernels.jsonl`` holds
what each release that was run makes of some 450 small graphs; the rows of the atlas say under which condition a kernel
of the newest release is wrong, narrowed or refused. A release that was run is ``observed``; one between or before two
that were run is ``inferred`` from the nearest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.findings.records import Record, grouped
from deploykit.tables.capabilities import CompatRow, Status, compat_row
from deploykit_ort_qnn.provider_keys import load_options
from deploykit_qualcomm.atlas.rows import atlas_rows, costs, where_it_holds
from deploykit_qualcomm.tables import tables

__all__ = ["kernel_rows", "operator_rows", "option_rows"]

FAMILY = "kernels of QAIRT"

_kernels = partial(compat_row, "ort-qnn", family=FAMILY)

DATA = Path(__file__).parent / "data" / "atlas" / "kernels.jsonl"

_LIMITS = {"fp16": 35.0, "w8a16": 35.0, "w8a8": 20.0}
"""The decibels below which a kernel alone is called wrong, by its type. The core allows a whole model to lose more."""


class KernelCell(Record):
    """The result of one release for one form of an operator in one type.

    ``answer`` is taken, refused, failed (to be finalized), crashed or timed-out; ``decibels`` is the worst output's
    signal-to-noise ratio on the emulator against the CPU, None if nothing ran; ``why`` holds the compiler's words.
    """

    op: str
    form: str
    type: str
    release: str
    answer: str
    decibels: float | None = None
    why: str = ""

    @property
    def state(self) -> str:
        """``right`` or ``wrong``; ``taken`` if nothing ran; else the compiler's answer."""
        if self.answer != "taken" or self.decibels is None:
            return self.answer
        return "right" if self.decibels >= _LIMITS[self.type] else "wrong"


@cache
def recorded(path: Path = DATA) -> tuple[KernelCell, ...]:
    """Every cell of the file. Raises InputError for a line that is not a valid row."""
    cells = list[KernelCell]()
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            for release, short in line["releases"].items():
                answer, _, why = short.partition(": ") if isinstance(short, str) else ("taken", "", "")
                decibels = None if isinstance(short, str) else float(short)
                about = {name: line[name] for name in ("op", "form", "type")}
                cells.append(KernelCell(**about, release=release, answer=answer, why=why, decibels=decibels))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path.name}: line {number} is no row", why=f"{type(error).__name__}: {error}") from None
    return tuple(cells)


_STATE = {
    "right": Status.SUPPORTED,
    "taken": Status.SUPPORTED,
    "wrong": Status.BROKEN,
    "refused": Status.UNSUPPORTED,
    "failed": Status.UNSUPPORTED,
    "crashed": Status.UNSUPPORTED,
    "timed-out": Status.UNSUPPORTED,
}
_WORDS = {
    "right": "taken and right",
    "taken": "taken, not run",
    "wrong": "taken and wrong",
    "failed": "not finalized",
    "crashed": "the compiler dies",
    "timed-out": "the compiler does not end",
}
_MOST_WORDS = 80
"""How many characters of the compiler's words are shown for one form."""


class _Span(Record, kw_only=False):
    """A range of releases, from ``since`` to ``until`` ("" for open), and the release ``ran`` that speaks for it."""

    since: str
    until: str
    ran: str
    observed: bool


_SPANS = (
    _Span("2.33.0", "2.36.0", ran="2.36.1", observed=False),
    _Span("2.36.1", "2.36.1", ran="2.36.1", observed=True),
    _Span("2.37.0", "2.41.99", ran="2.36.1", observed=False),
    _Span("2.42.0", "2.46.99", ran="2.47.0", observed=False),
)
"""The releases whose compiler does not run here, each with the nearest one that was run."""


def operator_rows(cells: Iterable[KernelCell] | None = None) -> Iterator[CompatRow]:
    """Yields a row per operator, state and release, in the order of the operators."""
    ordered = sorted(recorded() if cells is None else cells, key=lambda cell: cell.op)
    for op, found in groupby(ordered, key=lambda cell: cell.op):
        columns = grouped((cell.release, cell) for cell in found)
        for span in _spans(sorted(columns, key=_numbers)):
            if span.ran in columns:
                yield from _rows(op, span, columns[span.ran])


def _spans(releases: Sequence[str]) -> Iterator[_Span]:
    """Yields the fixed spans, then spans from each later release that was run up to the next one."""
    yield from _SPANS
    later = [release for release in releases if _numbers(release) >= (2, 47)]
    for release, following in pairwise((*later, "")):
        # The span ends with the series before the next release: 2.48 gives
        # 2.47.99. Only a release's own series is observed.
        major, minor = _numbers(release)[:2]
        before = _numbers(following)[1] - 1 if following else minor
        yield _Span(release, f"{major}.{minor}.99" if following else "", ran=release, observed=True)
        if before > minor:
            yield _Span(f"{major}.{minor + 1}.0", f"{major}.{before}.99", ran=release, observed=False)


def _rows(op: str, span: _Span, cells: Sequence[KernelCell]) -> Iterator[CompatRow]:
    builds = {wheel.sdk: wheel.build for wheel in tables().wheels}
    for state, found in sorted(grouped((cell.state, cell) for cell in cells).items()):
        spoken = f"{span.ran}: {_WORDS.get(state, state)} (observed, build {builds.get(span.ran, '?')})"
        inferred = "" if span.observed else "; for this release inferred from it"
        yield _kernels(
            f"op {op}, {_WORDS.get(state, state)}",
            None,
            f"{spoken}{inferred}",
            _forms(found),
            sdk=span.since,
            status=_STATE[state],
            since=span.since,
            until=span.until,
            source=(f"{len(cells)} small graphs for soc_model 57 (HTP v75) on the compiler of QAIRT {span.ran}",),
            confidence=Confidence.OBSERVED if span.observed else Confidence.INFERRED,
            ran=span.ran,
        )


def _forms(cells: Sequence[KernelCell]) -> str:
    """The forms by type, with the decibels of a wrong one, or the compiler's words if there are any."""
    by_type = dict[str, list[str]]()
    for cell in cells:
        told = (
            f" {cell.decibels:.0f} dB" if cell.state == "wrong" else f" ({cell.why[:_MOST_WORDS]})" if cell.why else ""
        )
        by_type.setdefault(cell.type, []).append(f"{cell.form}{told}")
    return "; ".join(f"{kind}: {', '.join(forms)}" for kind, forms in sorted(by_type.items()))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


_STATUS = {"wrong": Status.BROKEN, "narrowed": Status.BROKEN, "refused": Status.UNSUPPORTED}
_BEFORE = ("2.48.0", "2.50.99")
"""The releases nearest to the measured one for which nothing was measured."""


def kernel_rows() -> Iterator[CompatRow]:
    """Yields two rows for each row of the atlas and each cost: as measured, and as inferred for the releases before."""
    measured = atlas_rows()[0].sdk
    for row in atlas_rows():
        off = f", up to {100 * min(row.most / row.span, 1):.3g} % of its range off" if row.span else ""
        elsewhere = where_it_holds(row)
        also = f"; its case is {elsewhere}" if elsewhere else ""
        told = f'when {row.condition} ({row.cases} cases{off}){also}; shown by the case "{row.id}"'
        feature = f"op {row.op} in {' '.join(row.types)}, {row.verdict}"
        yield from _both(feature, _STATUS[row.verdict], told, row.sdk)
    for cost in costs().values():
        feature = f"op {cost.op} in {cost.type}, right where no row says otherwise"
        middle = f"the middle of {cost.forms} forms is {cost.most:g} steps off at most"
        yield from _both(feature, Status.SUPPORTED, f"{middle}, {cost.usual:g} in 99 of 100 values", measured)


def _both(feature: str, status: Status, note: str, sdk: str) -> Iterator[CompatRow]:
    source = (f"small graphs over their whole grids, run for soc_model 57 (HTP v75) on the emulator of QAIRT {sdk}",)
    for since, until, confidence in ((sdk, "", Confidence.OBSERVED), (*_BEFORE, Confidence.INFERRED)):
        inferred = "" if confidence is Confidence.OBSERVED else f"; for this release inferred from {sdk}"
        told = {"since": since, "until": until, "sdk": since, "status": status, "confidence": confidence}
        yield _kernels(feature, None, f"{note}{inferred}", source=source, ran=sdk, **told)


# The releases in these rows are those of the QAIRT in a wheel, since ``--sdk`` asks for one of these.
_row = partial(compat_row, "ort-qnn", tool="onnxruntime-qnn", family="QAIRT in onnxruntime-qnn")


def option_rows() -> Iterator[CompatRow]:
    """Yields one row per option, per session entry, and per name that never existed."""
    table, inside = load_options(), {row.version: row.sdk for row in tables().wheels}
    # The QAIRT of the wheel before the one that brought an option.
    before = {later.version: row.sdk for row, later in pairwise(tables().wheels)}
    for option in table.option:
        values = f"; values {' '.join(option.values)}" if option.values else ""
        limits = f"; {option.range[0]} to {option.range[1]}" if option.range else ""
        first = f"; from wheel {option.since} on" if option.since else f"; first seen in {table.checked_with}"
        managed = "; deploykit sets it" if option.managed else ""
        managed += f"; not beside {', '.join(option.excludes)}" if option.excludes else ""
        when = {"compile": "compiling", "run": "running", "both": "compiling and running"}[option.phase]
        note = f"{option.type}, when {when}; {option.note}{values}{limits}{managed}{first}"
        yield _row(f"provider-option {option.name}", option, note, since=inside.get(option.since, ""))
        if option.since in before:
            note = f"not before wheel {option.since}; an older one ignores it without a word"
            lacking = {"status": Status.UNSUPPORTED, "since": tables().wheels[0].sdk, "until": before[option.since]}
            yield _row(f"provider-option {option.name}", option, note, **lacking)
    for entry in table.entry:
        yield _row(f"session-entry {entry.name}", entry, entry.note)
    for refused in table.refused:
        yield _row(
            f"provider-option {refused.name}",
            refused,
            refused.why,
            f"use {refused.instead}" if refused.instead else "",
            status=Status.UNSUPPORTED,
            renamed_to=f"provider-option {refused.instead}" if refused.instead else "",
        )
