"""``python tests/lab/benchmarks [ROW…] [--times N] [--write]``: measures the rows and prints them as a table.

Ratios of one run on one machine; CPU seconds, never wall time. It is no test: a time says nothing about a change.
What was measured before, and why a row falls short, is taken from ``remarks.toml``.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rows import ROWS, Bench, Figure

__all__ = ["filled", "main", "remarks", "table"]

PAGE = Path(__file__).parents[1] / "evidence" / "benchmarks.md"
REMARKS = Path(__file__).with_name("remarks.toml")
BEGIN, END = "<!-- measured -->\n", "<!-- end of the table -->\n"


def main() -> None:
    """Measure what is asked for; ``--write`` puts the whole table into tests/lab/evidence/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--times", type=int, default=5, help="runs of each thing; the median counts")
    parser.add_argument("--folder", type=Path, help="where generated models stay for the next time (8 GB)")
    parser.add_argument("--write", action="store_true", help="put the table into tests/lab/evidence/benchmarks.md")
    given = parser.parse_args()
    unknown = [name for name in given.rows if name not in ROWS]
    if unknown or (given.write and given.rows):
        parser.error(f"no such row: {unknown[0]}" if unknown else "--write measures all rows")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(folder=given.folder or Path(scratch), times=given.times)
        bench.folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for line in table(bench, given.rows or list(ROWS), remarks()):
            print(line, flush=True)
            lines.append(line)
    if given.write:
        text = "\n".join([*_head(), *lines]) + "\n"
        PAGE.write_text(filled(PAGE.read_text("utf-8"), text), "utf-8")


def remarks() -> dict[str, dict[str, str]]:
    """What is said of a figure by its id: ``before`` anything was done about it, and ``why`` it falls short."""
    return tomllib.loads(REMARKS.read_text("utf-8"))


def table(bench: Bench, names: list[str], said: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The table, line by line as it is measured, and under it why figures fall short."""
    yield "| work | measured | reach | before | now | falls short | runs |"
    yield "|---|---|---|---|---|---|---|"
    reasons = []
    for name in names:
        title = ROWS[name].__doc__ or name
        for figure in ROWS[name](bench):
            remark = said.get(figure.id, {})
            yield _line(title, figure, remark.get("before", ""))
            if not figure.reached:
                reasons.append(f"* {figure.what} ({name}): {remark.get('why', 'not looked into')}")
            title = ""
    if reasons:
        yield from ("", "Why these fall short:", "", *reasons)


def _line(title: str, figure: Figure, before: str) -> str:
    now, reach = (f"{value:.3g} {figure.unit}" for value in (figure.value, figure.limit))
    of = f" ({figure.of})" if figure.of else ""
    short = "no" if figure.reached else f"by {figure.value / figure.limit:.2f} x"
    return f"| {title} | {figure.what} | {reach} | {before} | {now}{of} | {short} | {figure.runs} |"


def _head() -> tuple[str, ...]:
    tools = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime", "numpy"))
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return (f"{machine}, {tools}; {date.today().isoformat()}. Medians of as many runs as the last column says.", "")


def filled(page: str, text: str) -> str:
    """The page with the table in its place."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    main()
