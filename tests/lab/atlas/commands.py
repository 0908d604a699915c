"""Probe a row, measure more cases, fold measurements into rows. Each is one function."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atlas.cases import Case, all_cases, case_of
from atlas.folding import costs_of, counted, is_about, measured_cases, rows_of, verdict_of_point
from atlas.measuring import Point, measure, point_of, points_of, sweep_cases
from atlas.pages import write_pages
from atlas.spreading import Spread
from atlas.writing import write_costs, write_rows, write_stated
from deploykit.errors import InputError, ToolError, UnknownTargetError
from deploykit_ort_qnn.compiler.hosts import Host, installed_wheel, toolchain_host
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.atlas.rows import atlas_rows
from deploykit_qualcomm.devices import qualcomm_devices

__all__ = ["SOC", "fold", "host_of", "measure_more", "measured_lines", "probe"]

SOC = 57
"""SM8650, HTP v75: the chip that every release from 2.22 on knows."""
_PART = 80
"""Cases that one worker takes at a time: what one graph holds."""
_PARTS = 16
"""Such parts between two looks at what is suspect so far."""


def probe(text: str) -> dict[str, Any]:
    """The case of a row, measured now; InputError where no row has it, ToolError without the row's compiler."""
    row = next((row for row in atlas_rows() if row.id == text), None)
    if row is None:
        raise InputError(f"no row {text!r}", next="'deploykit compat op OPERATOR' names them")
    (point,) = measure([case_of(row.example)], host=host_of(row.sdk), soc_model=row.soc)
    verdict = verdict_of_point(point)
    return {
        "row": row.id,
        "said": row.verdict,
        "verdict": str(verdict),
        "holds": str(verdict) == row.verdict,
        "numbers": point.to_json(),
    }


def measure_more(
    file: Path,
    *,
    release: str,
    soc: int | None = None,
    most: int | None,
    progress: Callable[[str], None],
    spread: Spread | None = None,
) -> None:
    """More of the sweep, here or by ``spread`` on machines that have the release's compiler.

    Raises UnknownTargetError for a chip of no table: the compiler would take the number, and refuse every kernel.
    """
    chip = SOC if soc is None else soc
    known = {device.fact("soc_model") for device in qualcomm_devices()} - {None}
    if chip not in known:
        raise UnknownTargetError(f"no device has soc_model {chip}", next="deploykit targets lists devices and numbers")
    if spread is None:
        measured = partial(measure, host=host_of(release), soc_model=chip)
        sweep_cases(all_cases(), file, measured=measured, progress=progress, most=most)
        return

    def elsewhere(cases: Sequence[Case]) -> Iterator[Point]:
        parts = [[case.id for case in cases[start : start + _PART]] for start in range(0, len(cases), _PART)]
        for lines in spread(partial(measured_lines, release=release, soc=chip), parts):
            yield from map(point_of, lines)

    sweep_cases(all_cases(), file, measured=elsewhere, at_once=_PARTS * _PART, progress=progress, most=most)


def measured_lines(cases: Sequence[str], *, release: str, soc: int) -> list[str]:
    """Cases by their ids, measured on the machine that this is called on; lines of the sweep's file."""
    points = measure([case_of(case) for case in cases], host=host_of(release), soc_model=soc)
    return [json.dumps(point.to_json()) for point in points]


def fold(file: Path, *, release: str, pages: Path | None) -> Mapping[str, int]:
    """Costs first, since verdicts are drawn by them; then rows, and pages where a folder is given for them.

    What stated rows hold for, they tell: no other row is drawn from it.
    """
    points = points_of(file)
    write_costs(costs_of(points))
    measured = list(measured_cases(points))
    sdk = wheel_for(release or None).sdk
    stated = [counted(row, measured) for row in atlas_rows() if row.mechanism and row.sdk == sdk]
    left = [one for one in measured if not any(is_about(row, one) for row in stated)]
    rows = list(rows_of(left, sdk=sdk, soc=SOC))
    write_rows(rows, sdk=sdk)
    write_stated(stated)
    if pages is not None:
        write_pages(measured, file, pages, sdk=sdk)
    verdicts = Counter(str(one.verdict) for one in measured)
    return {"cases": len(measured), **dict(sorted(verdicts.items())), "rows": len(rows) + len(stated)}


def host_of(release: str) -> Host | None:
    """Who compiles for a release; ToolError where nobody here does."""
    wheel = wheel_for(release or None)
    host, installed = toolchain_host(wheel), installed_wheel()
    if host is None and (installed is None or installed["wheel"] != wheel.version):
        raise ToolError(f"QAIRT {wheel.sdk} is not here", next=f"deploykit toolchain install htp-{wheel.sdk}")
    return host
