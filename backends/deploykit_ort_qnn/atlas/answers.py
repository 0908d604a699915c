"""What the recorded table says as rows of ``deploykit compat op X``: one per operator, state and run of releases.

A release that was run is ``observed``; one between or before two that were run is ``inferred`` from the nearest, and
``unknown`` where its neighbours differ and neither is near. It reads the table and imports neither onnx nor numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from deploykit_ort_qnn.atlas.records import Cell, recorded
from deploykit_qualcomm.tables import tables

__all__ = ["FAMILY", "operator_rows"]

FAMILY = "kernels of QAIRT"

_STATUS = {
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
            status=_STATUS[state],
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
