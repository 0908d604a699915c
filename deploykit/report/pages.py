"""The two pages of a package for people: README.md in ten lines, report.html as one self-contained page.

Pure: from the plan and the facts to text. It judges nothing; every number is already in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import Execution, Situation
from deploykit.backend.plans import Plan
from deploykit.backend.status import Status
from deploykit.encodings.coverage import collect_coverage
from deploykit.findings import Finding, group_findings, headline
from deploykit.report.audit_section import audit_section, verdicts_by_node
from deploykit.report.charts import Bar
from deploykit.report.costs_by_output import costs_by_output
from deploykit.report.graph_pictures import change_pictures, precision_map
from deploykit.report.ladder_section import ladder_section
from deploykit.report.quantized_section import quantized_section
from deploykit.report.ranges import range_chart
from deploykit.report.rendering import render
from deploykit.report.shipping import shipping

if TYPE_CHECKING:
    from deploykit.model.changes import Change
    from deploykit.packages.manifests import FileRecord
    from deploykit.report.detection_pictures import DetectionPictures

__all__ = ["render_readme", "render_report"]

_SERIES = {"float": "quantization", "quantized": "device"}
"""What a number in decibels tells of, by what it was held against."""
_CLEAN_DB = 80.0
"""A bar of no length: float16 itself is no better. One of full length is 0 dB, as much noise as signal."""


def render_readme(
    plan: Plan[Any],
    model_name: str,
    execution: Execution,
    generated: tuple[str, ...],
    status: Status,
    findings: tuple[Finding, ...],
    templates: Path | None,
) -> str:
    """How to build and run the package, and its findings in words."""
    values = {
        "plan": plan,
        "model_name": model_name,
        "executed": execution.executed,
        "generated": generated,
        "status": _facts(plan, status),
        "headline": headline(findings),
        "open": group_findings(findings)[0],
        "handled": group_findings(findings)[1],
        "host_steps": [step for step in plan.steps if step.where == "host"],
        "device_steps": [step for step in plan.steps if step.where == "device"],
    }
    return render("README.md.j2", values, templates=templates)


def _facts(plan: Plan[Any], status: Status) -> tuple[tuple[str, str], ...]:
    """What heads the page: the precision that was assumed, where one was, and the three facts."""
    assumed = (("assumed", plan.assumed),) if plan.assumed else ()
    return (*assumed, *status.lines())


def render_report(
    plan: Plan[Any],
    situation: Situation,
    changes: Sequence[Change],
    execution: Execution,
    generated: tuple[str, ...],
    status: Status,
    findings: tuple[Finding, ...],
    files: Sequence[FileRecord],
    templates: Path | None,
    detections: DetectionPictures | None = None,
) -> str:
    """One HTML page without any outside reference: the verdict, findings, what was changed, precision, costs, commands.

    ``files`` are those that are written so far; ``detections`` are drawn where there are any.
    """
    values = {
        "plan": plan,
        "facts": situation.facts,
        "model_name": situation.request.model.name,
        "execution": execution,
        "generated": generated,
        "heading": _facts(plan, status),
        "headline": headline(findings),
        "open": group_findings(findings)[0],
        "handled": group_findings(findings)[1],
        "ladder": None if situation.ladder is None else ladder_section(situation.ladder),
        "made": None if situation.quantized is None else quantized_section(situation.quantized.record),
        "coverage": _coverage(situation),
        "types": _type_bars(plan),
        "map": precision_map(plan.precision, situation.facts, findings, verdicts_by_node(execution.audit)),
        "audit": audit_section(execution.audit),
        "detections": detections,
        "ranges": None if situation.encodings is None else range_chart(situation.encodings),
        "shipping": shipping(status, findings),
        "costs": _cost_bars(status),
        "changes": change_pictures(changes),
        "files": files,
    }
    return render("report.html.j2", values, templates=templates)


def _coverage(situation: Situation) -> Mapping[str, int]:
    if situation.encodings is None:
        return {}
    counts: dict[str, int] = {}
    for row in collect_coverage(situation.facts, situation.encodings).rows:
        counts[str(row.status)] = counts.get(str(row.status), 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _cost_bars(status: Status) -> tuple[Bar, ...]:
    """Per output, the noise of quantization and of the device; () where neither was measured."""
    rows = [
        (cost.name, {_SERIES[against]: value for against, value in cost.decibels.items() if against in _SERIES})
        for cost in costs_by_output(status.right.numbers)
    ]
    return tuple(
        Bar(
            label=label,
            lengths={name: round(100 * min(max(1 - db / _CLEAN_DB, 0.0), 1.0), 2) for name, db in series.items()},
            words={name: f"{db:.1f} dB" for name, db in series.items()},
        )
        for label, series in rows
        if series
    )


def _type_bars(plan: Plan[Any]) -> list[dict[str, Any]]:
    rows = []
    for title, types in (("intended", plan.precision.intended), ("expected", plan.precision.expected)):
        counts: dict[str, int] = {}
        for kind in types.values():
            counts[kind] = counts.get(kind, 0) + 1
        total = sum(counts.values())
        parts = [(kind, n, round(100 * n / total, 2)) for kind, n in sorted(counts.items())]
        rows.append({"title": title, "total": total, "parts": parts})
    return rows
