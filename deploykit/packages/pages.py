"""The two pages of a package for people: README.md in ten lines, report.html as one self-contained page.

Pure: from the plan and the facts to text. It judges nothing; every number is already in the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.contract.backend import Execution, Situation
from deploykit.contract.plans import Plan
from deploykit.contract.status import Status
from deploykit.encodings.values import Affine
from deploykit.findings import Finding, group_findings, headline
from deploykit.packages.ladder_section import ladder_section
from deploykit.packages.quantized_section import quantized_section
from deploykit.packages.rendering import render
from deploykit.quantization.coverage import collect_coverage

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet

__all__ = ["RangeBar", "range_bars", "render_readme", "render_report"]

_MOST_BARS = 60


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
    execution: Execution,
    generated: tuple[str, ...],
    status: Status,
    findings: tuple[Finding, ...],
    templates: Path | None,
) -> str:
    """One HTML page without any outside reference: findings, ladder, coverage, precision, ranges, steps, configs."""
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
        "strip": _strip(plan, situation),
        "bars": range_bars(situation.encodings) if situation.encodings is not None else (),
        "most_bars": _MOST_BARS,
        "total_entries": len(situation.encodings) if situation.encodings is not None else 0,
    }
    return render("report.html.j2", values, templates=templates)


def _coverage(situation: Situation) -> Mapping[str, int]:
    if situation.encodings is None:
        return {}
    counts: dict[str, int] = {}
    for row in collect_coverage(situation.facts, situation.encodings).rows:
        counts[str(row.status)] = counts.get(str(row.status), 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


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


def _strip(plan: Plan[Any], situation: Situation) -> list[tuple[str, str]]:
    """The expected type of every activation, in graph order."""
    types = plan.precision.expected or plan.precision.intended
    outputs = (name for node in situation.facts.nodes for name in node.outputs)
    return [(name, types[name]) for name in (*situation.facts.inputs, *outputs) if name in types]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBar:
    """One tensor's range for the plot: real bounds, and where the bar starts and ends in percent of the axis."""

    name: str
    dtype: str
    low: float
    high: float
    left: float
    width: float


def range_bars(encodings: EncodingSet) -> tuple[RangeBar, ...]:
    """The activations of largest magnitude, on an axis that is linear within 1 and logarithmic beyond."""
    rows = sorted(_ranges(encodings), key=lambda row: -max(abs(row[2]), abs(row[3])))[:_MOST_BARS]
    if not rows:
        return ()
    reach = max(_symlog(max(abs(low), abs(high))) for _, _, low, high in rows) or 1.0
    return tuple(_bar(row, reach) for row in rows)


def _ranges(encodings: EncodingSet) -> Iterable[tuple[str, str, float, float]]:
    for entry in encodings:
        value = entry.value
        if isinstance(value, Affine) and not entry.is_param and value.granularity == "per-tensor":
            yield entry.name, entry.dtype, float(value.minimum.min()), float(value.maximum.max())


def _bar(row: tuple[str, str, float, float], reach: float) -> RangeBar:
    name, dtype, low, high = row
    left = 50 + 50 * _symlog(low) / reach
    right = 50 + 50 * _symlog(high) / reach
    return RangeBar(
        name=name, dtype=dtype, low=low, high=high, left=round(left, 2), width=round(max(0.3, right - left), 2)
    )


def _symlog(value: float) -> float:
    return value if abs(value) <= 1 else math.copysign(1 + math.log10(abs(value)), value)
