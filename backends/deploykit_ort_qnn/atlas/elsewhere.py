"""Runs the case of every row for another chip or release, and keeps what became of it; minutes long."""

from __future__ import annotations

from collections.abc import Callable

from deploykit.errors import UsageError
from deploykit_ort_qnn.atlas.cases import case_of
from deploykit_ort_qnn.atlas.folding import verdict_of_point
from deploykit_ort_qnn.atlas.measuring import measure
from deploykit_ort_qnn.hosts import Host
from deploykit_qualcomm.atlas.elsewhere import Place
from deploykit_qualcomm.atlas.rows import atlas_rows

__all__ = ["run_rows"]


def run_rows(*, sdk: str, soc: int, host: Host | None, progress: Callable[[str], None]) -> Place:
    """Every row's case there; UsageError where that is the place of the rows themselves."""
    rows = [row for row in atlas_rows() if (row.sdk, row.soc) != (sdk, soc)]
    if not rows:
        raise UsageError(f"QAIRT {sdk} for soc_model {soc} is where the rows are from", next="another chip or release")
    progress(f"{len(rows)} rows for soc_model {soc} by QAIRT {sdk}")
    points = measure([case_of(row.example) for row in rows], host=host, soc_model=soc)
    found = {point.case: str(verdict_of_point(point)) for point in points}
    otherwise = {row.id: found[row.example] for row in rows if found[row.example] != row.verdict}
    return Place(sdk=sdk, soc=soc, asked=len(rows), otherwise=otherwise)
