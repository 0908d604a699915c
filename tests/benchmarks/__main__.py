"""``python tests/benchmarks [ROW…] [--times N] [--write]``: measures the rows and prints them as a table.

Ratios of one run on one machine; CPU seconds, never wall time. It is no test: a time says nothing about a change.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from rows import ROWS, Bench, Figure

__all__ = ["main"]

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end of the table -->\n"


def main() -> None:
    """Measure what is asked for; ``--write`` puts the whole table into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--times", type=int, default=5, help="runs of each thing; the median counts")
    parser.add_argument("--folder", type=Path, help="where generated models stay for the next time (4 GB)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    unknown = [name for name in given.rows if name not in ROWS]
    if unknown or (given.write and given.rows):
        parser.error(f"no such row: {unknown[0]}" if unknown else "--write measures all rows")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(folder=given.folder or Path(scratch), times=given.times)
        bench.folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for line in _lines(bench, given.rows or list(ROWS)):
            print(line, flush=True)
            lines.append(line)
    if given.write:
        _write("\n".join([*_head(given.times), *lines]) + "\n")


def _lines(bench: Bench, names: list[str]) -> Iterator[str]:
    yield "| work | measured | | at most | reached |"
    yield "|---|---|---|---|---|"
    for name in names:
        title = ROWS[name].__doc__ or name
        for figure in ROWS[name](bench):
            yield _line(title, figure)
            title = ""


def _line(title: str, figure: Figure) -> str:
    of = f"{figure.what} ({figure.of})" if figure.of else figure.what
    by = "" if figure.reached else f", {figure.value / figure.limit:.1f} times as much"
    number, limit = (f"{value:.3g} {figure.unit}" for value in (figure.value, figure.limit))
    return f"| {title} | {of} | {number} | {limit} | {'yes' if figure.reached else f'no{by}'} |"


def _head(times: int) -> tuple[str, ...]:
    tools = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime", "numpy"))
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return (f"{machine}, {tools}; medians of {times}.", "")


def _write(text: str) -> None:
    page = PAGE.read_text("utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    main()
