"""JUnit XML, which continuous integration servers show: of cells of a matrix, and of a run on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

__all__ = ["JUnitCase", "junit_text", "run_cases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JUnitCase:
    """One row: ``failure`` is a no, ``error`` is no answer, ``skipped`` did not run; "" passed and says ``message``."""

    name: str
    kind: Literal["", "failure", "error", "skipped"] = ""
    message: str = ""
    text: str = ""
    seconds: float | None = None


def junit_text(name: str, suites: Mapping[str, Sequence[JUnitCase]]) -> str:
    """The whole document."""
    top = ElementTree.Element("testsuites", name=_clean(name))
    for title, cases in suites.items():
        suite = ElementTree.SubElement(top, "testsuite", name=_clean(title), tests=str(len(cases)))
        for case in cases:
            row = ElementTree.SubElement(suite, "testcase", classname=_clean(title), name=_clean(case.name))
            if case.seconds is not None:
                row.set("time", f"{case.seconds:.6g}")
            if case.kind:
                told = ElementTree.SubElement(row, case.kind, message=_clean(case.message))
                told.text = _clean(case.text) or None
            elif case.message:
                ElementTree.SubElement(row, "system-out").text = _clean(case.message)
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(kind, str(sum(case.kind == tag for case in cases)))
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(letter if letter >= " " or letter in "\t\n" else " " for letter in text)


def run_cases(record: Mapping[str, Any]) -> tuple[JUnitCase, ...]:
    """The rows of one run on a device, from what ``deploykit run`` publishes: right, and within its budget."""
    if "right" not in record:
        told = f"the program on the device failed (status {record.get('status')})"
        return (JUnitCase(name="run", kind="error", message=told, text="\n".join(record.get("log", ()))),)
    state, latency = str(record.get("right", {}).get("right", "")), record.get("latency") or {}
    kinds: dict[str, Literal["", "failure", "skipped"]] = {"yes": "", "no": "failure"}
    told = f"{record.get('where')}: right: {state or 'not judged'}"
    cases = [JUnitCase(name="right", kind=kinds.get(state, "skipped"), message=told)]
    if latency:
        line = f"median {latency['median_us']:g} us, p90 {latency['p90_us']:g} us, {latency['count']} samples"
        cases.append(JUnitCase(name="latency", seconds=latency["median_us"] / 1e6, message=line))
    budget: Mapping[str, Any] | None = record.get("budget")
    if budget is not None:
        limit = f"p90 {latency.get('p90_us', 0):g} us, at most {budget['p90_us']:g} us were allowed"
        cases.append(JUnitCase(name="budget", kind="" if budget["held"] else "failure", message=limit))
    return tuple(cases)
