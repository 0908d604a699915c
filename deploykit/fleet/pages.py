"""Results as pages: ``matrix.html`` for people, JUnit XML for continuous integration servers. It judges nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from deploykit.accuracy.latency import in_time
from deploykit.fleet.results import CELLS, PACKAGE, CellVerdict, Results
from deploykit.report.rendering import render

__all__ = ["junit_text", "render_matrix", "size_text"]

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
    squares = {cell: _Square(words="not run", kind="open") for cell in results.not_run}
    for cell in results.cells:
        worst = "" if cell.worst_db is None else f"{cell.worst_db:.1f} dB"
        time = "" if cell.time_us is None else f"about {in_time(cell.time_us)}"
        parts = [worst, time, size_text(cell.bytes) if cell.bytes else "", f"{cell.seconds:.1f} s"]
        squares[cell.cell] = _Square(
            words=str(cell.verdict),
            kind=_CLASSES[str(cell.verdict)],
            details=" · ".join(part.replace(" ", _NO_BREAK) for part in parts if part),
            why=cell.why,
            page=f"{CELLS}/{cell.cell}/{PACKAGE}/report.html" if cell.outcome.get("package") else "",
        )
    rows = [(model, [squares.get(f"{model}/{target}") for target in results.targets]) for model in results.models]
    bad = [cell for cell in results.cells if squares[cell.cell].kind == "bad"]
    # The colour of the whole is that of its worst cell: green only where every cell is right.
    yes = sum(square.kind == "good" for square in squares.values())
    state = "bad" if bad else "good" if yes == len(squares) else "open"
    values = {
        "name": name,
        "state": state,
        "word": f"{yes} of {len(squares)} {'is' if yes == 1 else 'are'} right",
        "counts": [(word, count) for word, count in results.counts.items() if count],
        "not_run": len(results.not_run),
        "targets": results.targets,
        "rows": rows,
        "bad": [(cell, squares[cell.cell].page) for cell in bad],
    }
    return render("matrix.html.j2", values, templates=templates)


def size_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < _STEP:
            return f"{size:.0f} {unit}"
        size /= _STEP
    return f"{size:.1f} GiB"


def junit_text(results: Results, name: str) -> str:
    """The whole document. A no is a failure, no answer an error, what did not run is skipped."""
    top = ElementTree.Element("testsuites", name=_clean(name))
    by_id = {cell.cell: cell for cell in results.cells}
    for model in results.models:
        ids = [cell for cell in (*by_id, *results.not_run) if cell.partition("/")[0] == model]
        suite = ElementTree.SubElement(top, "testsuite", name=model, tests=str(len(ids)))
        for cell in ids:
            case = ElementTree.SubElement(suite, "testcase", classname=model, name=cell.partition("/")[2])
            result = by_id.get(cell)
            if result is None:
                ElementTree.SubElement(case, "skipped", message="not run")
                continue
            case.set("time", f"{result.seconds:.3f}")
            if result.verdict is CellVerdict.NO:
                ElementTree.SubElement(case, "failure", message=_clean(result.why))
            elif result.verdict is CellVerdict.FAILED:
                error = ElementTree.SubElement(case, "error", message=_clean(result.why))
                error.text = _clean("\n".join(str(text) for text in result.error.values() if text))
            else:
                ElementTree.SubElement(case, "system-out").text = _clean(f"{result.verdict}: {result.why}")
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(letter if letter >= " " or letter in "\t\n" else " " for letter in text)
