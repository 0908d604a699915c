"""What was measured of operators as rows of ``deploykit compat op X``: it reads tables and imports no onnx, no numpy.

Two tables stand behind it. ``data/atlas/kernels.jsonl`` holds what each release that was run makes of some 450 small
graphs; the rows of the atlas say under which condition a kernel of the newest release is wrong, narrowed or refused. A
release that was run is ``observed``; one between or before two that were run is ``inferred`` from the nearest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from deploykit_qualcomm.atlas.rows import Row, atlas_rows, nearest_sdk, where_it_holds
from deploykit_qualcomm.atlas.verdicts import Cost, costs
from deploykit_qualcomm.tables import tables

__all__ = ["DATA", "FAMILY", "LIMITS", "Cell", "kernel_rows", "operator_rows", "recorded"]

FAMILY = "kernels of QAIRT"

DATA = Path(__file__).parent / "data" / "atlas" / "kernels.jsonl"

LIMITS = {"fp16": 35.0, "w8a16": 35.0, "w8a8": 20.0}
"""dB below which a kernel is wrong, as in the core's table of limits ("sqnr/device", "sqnr/device/8")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one release makes of one form in one type.

    ``answer`` is taken, refused, failed (to be finalized), crashed or timed-out; ``decibels`` are of the worst output
    on the emulator against the CPU, None where nothing ran; ``why`` are the compiler's words.
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
        """``right``, ``wrong``, ``taken`` where nothing ran, else the compiler's answer."""
        if self.answer != "taken" or self.decibels is None:
            return self.answer
        return "right" if self.decibels >= LIMITS[self.type] else "wrong"


@cache
def recorded(path: Path = DATA) -> tuple[Cell, ...]:
    """Every cell of the file. Raises InputError for a line that is none."""
    cells: list[Cell] = []
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            cells += [_long(line, release, short) for release, short in line["releases"].items()]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path.name}: line {number} is no row", why=f"{type(error).__name__}: {error}") from None
    return tuple(cells)


def _long(line: dict[str, Any], release: str, short: float | str) -> Cell:
    about: dict[str, Any] = {name: line[name] for name in ("op", "form", "type")} | {"release": release}
    if isinstance(short, (int, float)):
        return Cell(**about, answer="taken", decibels=float(short))
    answer, _, why = short.partition(": ")
    return Cell(**about, answer=answer, why=why)


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
"""Of a compiler's own words about one form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Releases about which a column speaks: from ``since`` to ``until`` ("" for still so)."""

    since: str
    until: str
    ran: str
    observed: bool


_SPANS = (
    _Span(since="2.33.0", until="2.36.0", ran="2.36.1", observed=False),
    _Span(since="2.36.1", until="2.36.1", ran="2.36.1", observed=True),
    _Span(since="2.37.0", until="2.41.99", ran="2.36.1", observed=False),
    _Span(since="2.42.0", until="2.46.99", ran="2.47.0", observed=False),
)
"""Releases whose compiler does not run here, and the one that speaks for them: the nearest."""


def operator_rows(cells: Iterable[Cell] | None = None) -> Iterator[CompatRow]:
    """A row per operator, state and release, in the order of the operators."""
    ordered = sorted(recorded() if cells is None else cells, key=lambda cell: cell.op)
    for op, found in groupby(ordered, key=lambda cell: cell.op):
        columns: dict[str, list[Cell]] = {}
        for cell in found:
            columns.setdefault(cell.release, []).append(cell)
        for span in _spans(sorted(columns, key=_numbers)):
            if span.ran in columns:
                yield from _rows(op, span, columns[span.ran])


def _spans(releases: Sequence[str]) -> Iterator[_Span]:
    """The fixed ones, and each later release that was run up to the one before the next."""
    yield from _SPANS
    later = [release for release in releases if _numbers(release) >= (2, 47)]
    for release, following in pairwise((*later, "")):
        until = f"{following.rpartition('.')[0]}" if following else ""
        yield _Span(since=release, until=_before(until), ran=release, observed=True)


def _before(series: str) -> str:
    """The end of the series before one: ``2.48`` gives 2.47.99, "" nothing."""
    major, _, minor = series.partition(".")
    return f"{major}.{int(minor) - 1}.99" if minor else ""


def _rows(op: str, span: _Span, cells: Sequence[Cell]) -> Iterator[CompatRow]:
    states: dict[str, list[Cell]] = {}
    for cell in cells:
        states.setdefault(cell.state, []).append(cell)
    for state, found in sorted(states.items()):
        spoken = f"{span.ran}: {_WORDS.get(state, state)} (observed, build {_builds().get(span.ran, '?')})"
        inferred = "" if span.observed else "; for this release inferred from it"
        yield CompatRow(
            feature=f"op {op}, {_WORDS.get(state, state)}",
            backend="ort-qnn",
            tool="",
            sdk=span.since,
            status=_STATE[state],
            since=span.since,
            until=span.until,
            note=f"{spoken}{inferred}; {_forms(found)}",
            source=(f"{len(cells)} small graphs for soc_model 57 (HTP v75) on the compiler of QAIRT {span.ran}",),
            confidence=Confidence.OBSERVED if span.observed else Confidence.INFERRED,
            family=FAMILY,
            ran=span.ran,
        )


def _forms(cells: Sequence[Cell]) -> str:
    """The forms by type, with a number or the compiler's words where that is not just what was expected."""
    by_type: dict[str, list[str]] = {}
    for cell in cells:
        told = (
            f" {cell.decibels:.0f} dB" if cell.state == "wrong" else f" ({cell.why[:_MOST_WORDS]})" if cell.why else ""
        )
        by_type.setdefault(cell.type, []).append(f"{cell.form}{told}")
    return "; ".join(f"{kind}: {', '.join(forms)}" for kind, forms in sorted(by_type.items()))


def _builds() -> Mapping[str, str]:
    return {wheel.sdk: wheel.build for wheel in tables().wheels}


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


_STATUS = {"wrong": Status.BROKEN, "narrowed": Status.BROKEN, "refused": Status.UNSUPPORTED}
_BEFORE = ("2.48.0", "2.50.99")
"""Releases of which this was not measured, and that lie nearest to the one of which it was."""


def kernel_rows() -> Iterator[CompatRow]:
    """Two for each row and cost: as it was measured, and as it is inferred for the releases before."""
    measured = nearest_sdk("")
    for row in atlas_rows():
        yield from _both(
            f"op {row.op} in {' '.join(row.types)}, {row.verdict}", _STATUS[row.verdict], _told_row(row), row.sdk
        )
    for cost in costs().values():
        feature = f"op {cost.op} in {cost.type}, right where no row says otherwise"
        yield from _both(feature, Status.SUPPORTED, _cost(cost), measured)


def _both(feature: str, status: Status, note: str, sdk: str) -> Iterator[CompatRow]:
    source = (f"small graphs over their whole grids, run for soc_model 57 (HTP v75) on the emulator of QAIRT {sdk}",)
    for since, until, confidence in ((sdk, "", Confidence.OBSERVED), (*_BEFORE, Confidence.INFERRED)):
        inferred = "" if confidence is Confidence.OBSERVED else f"; for this release inferred from {sdk}"
        yield CompatRow(
            feature=feature,
            backend="ort-qnn",
            tool="",
            sdk=since,
            status=status,
            since=since,
            until=until,
            note=f"{note}{inferred}",
            source=source,
            confidence=confidence,
            family=FAMILY,
            ran=sdk,
        )


def _told_row(row: Row) -> str:
    off = f", up to {100 * min(row.most / row.span, 1):.3g} % of its range off" if row.span else ""
    elsewhere = where_it_holds(row)
    also = f"; its case is {elsewhere}" if elsewhere else ""
    return f'when {row.condition} ({row.cases} cases{off}){also}; shown by the case "{row.id}"'


def _cost(cost: Cost) -> str:
    return f"the middle of {cost.forms} forms is {cost.most:g} steps off at most, {cost.usual:g} in 99 of 100 values"
