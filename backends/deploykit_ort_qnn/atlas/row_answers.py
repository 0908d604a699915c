"""What the atlas says as rows of ``deploykit compat op X``: wrong, narrowed, refused; and what right kernels cost.

Releases between the measured one and the one before it that was measured in another way are answered by inference. It
imports neither onnx nor numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from deploykit_ort_qnn.atlas.answers import FAMILY
from deploykit_qualcomm.atlas.elsewhere import told_elsewhere
from deploykit_qualcomm.atlas.rows import Row, atlas_rows, nearest_sdk
from deploykit_qualcomm.atlas.verdicts import Cost, costs

__all__ = ["kernel_rows"]

_STATUS = {"wrong": Status.BROKEN, "narrowed": Status.BROKEN, "refused": Status.UNSUPPORTED}
_BEFORE = ("2.48.0", "2.50.99")
"""Releases of which this was not measured, and that lie nearest to the one of which it was."""


def kernel_rows() -> Iterator[CompatRow]:
    """Two for each row and cost: as it was measured, and as it is inferred for the releases before."""
    measured = nearest_sdk("")
    for row in atlas_rows():
        yield from _both(
            f"op {row.op} in {' '.join(row.types)}, {row.verdict}", _STATUS[row.verdict], _told(row), row.sdk
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


def _told(row: Row) -> str:
    off = f", up to {100 * min(row.most / row.span, 1):.3g} % of its range off" if row.span else ""
    elsewhere = told_elsewhere(row)
    also = f"; its case is {elsewhere}" if elsewhere else ""
    return f'when {row.condition} ({row.cases} cases{off}){also}; deploykit atlas probe "{row.id}"'


def _cost(cost: Cost) -> str:
    return f"the middle of {cost.forms} forms is {cost.most:g} steps off at most, {cost.usual:g} in 99 of 100 values"
