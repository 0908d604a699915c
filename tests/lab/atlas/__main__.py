"""Measures kernels and draws the atlas's rows from that; run it in ``tests/lab``.

    python -m atlas run --out FILE [--sdk 2.51] [--soc N] [--most N] [--executor dask://HOST:PORT]
    python -m atlas fold FILE [--sdk 2.51] [--pages DIR]     rows, costs and pages drawn from measurements
    python -m atlas probe ROW                                the case of one row, measured again
    python -m atlas column 2.48 [--types fp16 w8a16] [--only MatMul GridSample] [--data FILE]
    python -m atlas rows 2.51 [--soc 30]                     the case of every row, for another chip or release
    python -m atlas cases 2.51 FILE [--soc 30]               those of a sweep that the conditions were drawn from

A sweep takes hours; it may be stopped and taken up again at any time. The compiler is the one installed beside this
Python, or that of ``deploykit toolchain install htp-RELEASE``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atlas.commands import SOC, fold, host_of, measure_more, probe
from atlas.elsewhere import run_cases, run_rows
from atlas.forms import all_forms
from atlas.measuring import points_of
from atlas.spreading import spread_over
from atlas.sweep import sweep
from atlas.units import TYPES, unit
from atlas.writing import keep, write_place
from deploykit.fleet.cluster import address_of
from deploykit_ort_qnn.compat import DATA, KernelCell
from deploykit_ort_qnn.prepare import wheel_for

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """One of the commands above; 1 where a probed row does not hold any more."""
    given = _parser().parse_args(argv)
    work: Callable[[argparse.Namespace], int | None] = given.work
    return work(given) or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="atlas", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, work: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:
        made = commands.add_parser(name)
        made.set_defaults(work=work)
        return made

    run = command("run", _run)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--sdk", default="")
    run.add_argument("--soc", type=int)
    run.add_argument("--most", type=int)
    run.add_argument("--executor", default="local")
    folding = command("fold", _fold)
    folding.add_argument("file", type=Path)
    folding.add_argument("--sdk", default="")
    folding.add_argument("--pages", type=Path)
    command("probe", _probe).add_argument("row")
    column = command("column", _column)
    column.add_argument("release")
    column.add_argument("--types", nargs="*", default=TYPES, choices=TYPES)
    column.add_argument("--only", nargs="*", default=(), help="operators")
    column.add_argument("--data", type=Path, default=DATA)
    rows = command("rows", _rows)
    rows.add_argument("release")
    cases = command("cases", _cases)
    cases.add_argument("release")
    cases.add_argument("file", type=Path)
    for one in (column, rows, cases):
        one.add_argument("--soc", type=int, default=SOC)
    return parser


def _run(given: argparse.Namespace) -> None:
    asked: dict[str, Any] = {"release": given.sdk, "soc": given.soc, "most": given.most, "progress": _say}
    address = address_of(given.executor)
    if address is None:
        measure_more(given.out, **asked)
        return
    with spread_over(address, lambda name, line: _say(f"{name}: {line}")) as spread:
        measure_more(given.out, **asked, spread=spread)


def _fold(given: argparse.Namespace) -> None:
    print(json.dumps(dict(fold(given.file, release=given.sdk, pages=given.pages))))


def _probe(given: argparse.Namespace) -> int:
    found = probe(given.row)
    print(json.dumps(found, indent=1))
    return int(not found["holds"])


def _column(given: argparse.Namespace) -> None:
    forms = [form for form in all_forms() if not given.only or form.op in given.only]
    units = [unit(form, kind, number) for kind in given.types for number, form in enumerate(forms)]
    sdk = wheel_for(given.release).sdk
    measured = sweep(units, host=host_of(given.release), soc_model=given.soc, progress=_say)
    cells = (
        KernelCell(
            op=one.unit.form.op,
            form=one.unit.form.name,
            type=one.unit.kind,
            release=sdk,
            answer=one.answer,
            decibels=one.decibels,
            why=one.why,
        )
        for one in measured
    )
    keep(cells, given.data)


def _rows(given: argparse.Namespace) -> None:
    host, sdk = host_of(given.release), wheel_for(given.release).sdk
    write_place(run_rows(sdk=sdk, soc=given.soc, host=host, progress=_say))


def _cases(given: argparse.Namespace) -> None:
    host, sdk, points = host_of(given.release), wheel_for(given.release).sdk, points_of(given.file)
    write_place(run_cases(points, sdk=sdk, soc=given.soc, host=host, progress=_say))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
