"""``matrix.html``: models in rows, targets in columns, a verdict in each cell that leads to its report. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploykit.fleet.results import CellResult, Results, pages_of
from deploykit.report.rendering import render

__all__ = ["render_matrix", "size_text"]

_CLASSES = {"yes": "good", "no": "bad", "failed": "bad", "not judged": "open"}
_STEP = 1024.0
_NO_BREAK = "\N{NO-BREAK SPACE}"
"""Between a number and its unit: a narrow cell breaks between facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Square:
    """One cell as it is shown; ``kind`` colours it."""

    words: str
    kind: str
    details: str = ""
    why: str = ""
    page: str = ""


def render_matrix(results: Results, name: str, *, templates: Path | None = None) -> str:
    """The page; links are relative to the result folder."""
    squares = {
        cell.cell: _square(cell, page) for cell, page in zip(results.cells, pages_of(results.cells), strict=True)
    }
    squares |= {cell: _Square(words="not run", kind="open") for cell in results.not_run}
    rows = [(model, [squares.get(f"{model}/{target}") for target in results.targets]) for model in results.models]
    bad = [cell for cell in results.cells if _CLASSES[str(cell.verdict)] == "bad"]
    values = {
        "name": name,
        "counts": [(word, count) for word, count in results.counts.items() if count],
        "not_run": len(results.not_run),
        "targets": results.targets,
        "rows": rows,
        "bad": [(cell, squares[cell.cell].page) for cell in bad],
    }
    return render("matrix.html.j2", values, templates=templates)


def _square(cell: CellResult, page: str) -> _Square:
    worst = "" if cell.worst_db is None else f"{cell.worst_db:.1f} dB"
    parts = [worst, size_text(cell.bytes) if cell.bytes else "", f"{cell.seconds:.1f} s"]
    return _Square(
        words=str(cell.verdict),
        kind=_CLASSES[str(cell.verdict)],
        details=" · ".join(part.replace(" ", _NO_BREAK) for part in parts if part),
        why=cell.why,
        page=page,
    )


def size_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < _STEP:
            return f"{size:.0f} {unit}"
        size /= _STEP
    return f"{size:.1f} GiB"
