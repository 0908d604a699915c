"""``python -m deploykit_ort_qnn.atlas RELEASE``: measures a release's compiler and writes its column; minutes long.

    python -m deploykit_ort_qnn.atlas 2.48 [--types fp16 w8a16] [--only MatMul GridSample] [--data FILE]
    python -m deploykit_ort_qnn.atlas 2.51 --rows [--soc 30]    the case of every row, for another chip or release
    python -m deploykit_ort_qnn.atlas 2.51 --cases FILE --soc 30    those of a sweep that the conditions were drawn from

The compiler is the one installed beside this Python, or that of ``deploykit toolchain install htp-RELEASE``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploykit.errors import ToolError
from deploykit_ort_qnn.atlas.elsewhere import run_cases, run_rows
from deploykit_ort_qnn.atlas.forms import all_forms
from deploykit_ort_qnn.atlas.measuring import points_of
from deploykit_ort_qnn.atlas.records import DATA, Cell, keep
from deploykit_ort_qnn.atlas.sweep import Measured, sweep
from deploykit_ort_qnn.atlas.units import TYPES, unit
from deploykit_ort_qnn.atlas.writing import write_place
from deploykit_ort_qnn.compiler import installed_wheel
from deploykit_ort_qnn.hosts import toolchain_host
from deploykit_ort_qnn.prepare import wheel_for

__all__ = ["main"]

_SOC = 57
"""SM8650, HTP v75: the chip that every release from 2.22 on knows."""


def main() -> None:
    """Measure and keep; ToolError where the release's compiler is not here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release")
    parser.add_argument("--types", nargs="*", default=TYPES, choices=TYPES)
    parser.add_argument("--only", nargs="*", default=(), help="operators")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", action="store_true", help="the rows' cases instead of the forms")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="cases drawn from a sweep's measurements instead")
    parser.add_argument("--soc", type=int, default=_SOC)
    given = parser.parse_args()
    wheel = wheel_for(given.release)
    host, installed = toolchain_host(wheel), installed_wheel()
    if host is None and (installed is None or installed["wheel"] != wheel.version):
        raise ToolError(f"QAIRT {wheel.sdk} is not here", next=f"deploykit toolchain install htp-{wheel.sdk}")
    if given.rows:
        write_place(run_rows(sdk=wheel.sdk, soc=given.soc, host=host, progress=_say))
        return
    if given.cases is not None:
        points = points_of(given.cases)
        write_place(run_cases(points, sdk=wheel.sdk, soc=given.soc, host=host, progress=_say))
        return
    forms = [form for form in all_forms() if not given.only or form.op in given.only]
    units = [unit(form, kind, number) for kind in given.types for number, form in enumerate(forms)]
    measured = sweep(units, host=host, soc_model=given.soc, progress=_say)
    keep([_cell(one, wheel.sdk) for one in measured], given.data)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cell(one: Measured, release: str) -> Cell:
    form = one.unit.form
    return Cell(
        op=form.op,
        form=form.name,
        type=one.unit.kind,
        release=release,
        answer=one.answer,
        decibels=one.decibels,
        why=one.why,
    )


if __name__ == "__main__":
    main()
