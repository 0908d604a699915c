"""Results as JUnit XML, which continuous integration servers show as tests: one suite a model, one test a cell."""

from __future__ import annotations

from xml.etree import ElementTree

from deploykit.fleet.results import CellResult, Results, Verdict

__all__ = ["junit_text"]


def junit_text(results: Results, name: str) -> str:
    """The whole document. A no is a failure, no answer an error, what did not run is skipped."""
    top = ElementTree.Element("testsuites", name=_clean(name))
    by_id = {cell.cell: cell for cell in results.cells}
    for model in results.models:
        ids = [cell for cell in (*by_id, *results.not_run) if cell.partition("/")[0] == model]
        suite = ElementTree.SubElement(top, "testsuite", name=model, tests=str(len(ids)))
        for cell in ids:
            _add(suite, cell, by_id.get(cell))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, cell: str, result: CellResult | None) -> None:
    model, _, target = cell.partition("/")
    case = ElementTree.SubElement(suite, "testcase", classname=model, name=target)
    if result is None:
        ElementTree.SubElement(case, "skipped", message="not run")
        return
    case.set("time", f"{result.seconds:.3f}")
    if result.verdict is Verdict.NO:
        ElementTree.SubElement(case, "failure", message=_clean(result.why))
    elif result.verdict is Verdict.FAILED:
        error = ElementTree.SubElement(case, "error", message=_clean(result.why))
        error.text = _clean("\n".join(str(text) for text in result.error.values() if text))
    else:
        ElementTree.SubElement(case, "system-out").text = _clean(f"{result.verdict}: {result.why}")


def _clean(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(letter if letter >= " " or letter in "\t\n" else " " for letter in text)
