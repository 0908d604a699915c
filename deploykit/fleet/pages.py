"""Writes results as pages: ``matrix.html`` for people, JUnit XML for continuous integration servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from deploykit.accuracy.latency import in_time
from deploykit.fleet.results import CELLS, PACKAGE, CellVerdict, Results
from deploykit.report.for_ci import JUnitCase, junit_text
from deploykit.report.rendering import render

__all__ = ["junit_of", "render_matrix", "size_text"]

_CLASSES = {"yes": "good", "no": "bad", "failed": "bad", "not judged": "open"}
_STEP = 1024.0
# Between a number and its unit, so that a narrow table cell breaks only between facts.
_NO_BREAK = "\N{NO-BREAK SPACE}"


def render_matrix(results: Results, name: str) -> str:
    """Render the page; its links are relative to the result folder."""
    blank = {"words": "not run", "kind": "open", "details": "", "why": "", "page": ""}
    squares = dict.fromkeys(results.not_run, blank)
    for cell in results.cells:
        worst = "" if cell.worst_db is None else f"{cell.worst_db:.1f} dB"
        time = "" if cell.time_us is None else f"about {in_time(cell.time_us)}"
        parts = [worst, time, size_text(cell.bytes) if cell.bytes else "", f"{cell.seconds:.1f} s"]
        squares[cell.cell] = {
            "words": str(cell.verdict),
            "kind": _CLASSES[str(cell.verdict)],
            "details": " · ".join(part.replace(" ", _NO_BREAK) for part in parts if part),
            "why": cell.why,
            "page": f"{CELLS}/{cell.cell}/{PACKAGE}/report.html" if cell.outcome.get("package") else "",
        }
    rows = [(model, [squares.get(f"{model}/{target}") for target in results.targets]) for model in results.models]
    bad = [cell for cell in results.cells if squares[cell.cell]["kind"] == "bad"]
    # The whole has the colour of its worst cell: green only if every cell is right.
    yes = sum(square["kind"] == "good" for square in squares.values())
    state = "bad" if bad else "good" if yes == len(squares) else "open"
    values = {
        "name": name,
        "state": state,
        "word": f"{yes} of {len(squares)} {'is' if yes == 1 else 'are'} right",
        "counts": [(word, count) for word, count in results.counts.items() if count],
        "not_run": len(results.not_run),
        "targets": results.targets,
        "rows": rows,
        "bad": [(cell, squares[cell.cell]["page"]) for cell in bad],
    }
    return render("matrix.html.j2", values)


def size_text(size: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < _STEP:
            return f"{size:.0f} {unit}"
        size /= _STEP
    return f"{size:.1f} GiB"


def junit_of(results: Results, name: str, also: Mapping[str, Sequence[JUnitCase]] | None = None) -> str:
    """Write JUnit XML with one suite per model and one case per target.

    A "no" is a failure, a missing answer an error, a cell that did not run is
    skipped. ``also`` adds suites of runs on devices.
    """
    suites: dict[str, list[JUnitCase]] = {model: [] for model in results.models}
    for cell in results.cells:
        model, _, target = cell.cell.partition("/")
        told = ": ".join(filter(None, (cell.verdict, cell.why)))
        case = JUnitCase(name=target, seconds=round(cell.seconds, 3), message=told)
        if cell.verdict is CellVerdict.NO:
            case = replace(case, kind="failure", message=cell.why)
        elif cell.verdict is CellVerdict.FAILED:
            text = "\n".join(str(text) for text in cell.error.values() if text)
            case = replace(case, kind="error", message=cell.why, text=text)
        suites[model].append(case)
    for cell_id in results.not_run:
        model, _, target = cell_id.partition("/")
        suites[model].append(JUnitCase(name=target, kind="skipped", message="not run"))
    return junit_text(name, {**suites, **(also or {})})
