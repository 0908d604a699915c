"""The pages of a package: README.md and report.html, which also tells of runs on devices. It decides nothing."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.latency import in_time
from deploykit.backend.backend import Execution, Situation
from deploykit.backend.plans import Plan
from deploykit.backend.status import PackageStatus
from deploykit.encodings.float_sets import collect_coverage
from deploykit.findings import Findings, group_findings, headline
from deploykit.findings.records import Json, Names, grouped
from deploykit.model.facts import GraphChange
from deploykit.report.charts import decibels, loss_bars, network_strip, range_chart, share_of, timeline
from deploykit.report.explaining import ON_A_DEVICE, costs_by_output, explained, shipping
from deploykit.report.rendering import render

if TYPE_CHECKING:
    from deploykit.backend.opinions import Audit

__all__ = ["render_readme", "render_report", "with_runs"]

_SERIES = {"float": "quantization", "quantized": "device"}
"""What a number in decibels is about, by its reference."""
_CLEAN_DB = 80.0
"""The decibels of a bar without length: float16 itself is no better. A full bar is 0 dB, as much noise as signal."""

_FLOATS = {"float16": "float16", "fp16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32"}
"""The type of every tensor in a model without encodings, by route or assumed precision."""


def render_readme(
    plan: Plan[Any],
    model_name: str,
    execution: Execution,
    generated: Names,
    status: PackageStatus,
    findings: Findings,
    templates: Path | None,
) -> str:
    """The README: how to build and run the package, and its findings in words."""
    still_open, handled = group_findings(findings)
    values = {
        "plan": plan,
        "model_name": model_name,
        "executed": execution.executed,
        "generated": generated,
        "status": [(label, words) for _, label, words in _facts(plan, status)],
        "headline": headline(findings),
        "open": still_open,
        "handled": handled,
        "host_steps": [step for step in plan.steps if step.where == "host"],
        "device_steps": [step for step in plan.steps if step.where == "device"],
    }
    return render("README.md.j2", values, templates=templates)


def _facts(plan: Plan[Any], status: PackageStatus) -> Iterator[tuple[str, str, str]]:
    """Yields the head of the page, as (good, bad, open or "", label, words): an assumed precision and the
    three facts.
    """
    if plan.assumed:
        yield "", "assumed", plan.assumed
    states = (str(status.compiled.state), str(status.right.state))
    for (label, words), state in zip(status.lines(), ("yes" if status.intact else "no", *states), strict=True):
        yield {"yes": "good", "no": "bad", "refused": "bad"}.get(state, "open"), label, words


def render_report(
    plan: Plan[Any],
    situation: Situation,
    changes: Sequence[GraphChange],
    execution: Execution,
    generated: Names,
    status: PackageStatus,
    findings: Findings,
    files: Sequence[Json],
    templates: Path | None,
    detections: Json | None,
) -> str:
    """One HTML page without outside references: verdict, findings, changes, precision, costs, commands.

    ``files`` are those written so far; ``detections`` are the drawn ones, None without any.
    """
    coverage = Counter[str]()
    if situation.encodings is not None:
        coverage.update(map(str, collect_coverage(situation.facts, situation.encodings).values()))
    types = []
    for title, kinds in (("intended", plan.precision.intended), ("expected", plan.precision.expected)):
        parts = [(kind, n, share_of(n, len(kinds))) for kind, n in sorted(Counter(kinds.values()).items())]
        types.append({"title": title, "total": len(kinds), "parts": parts})
    costs = [
        (cost.name, {_SERIES[against]: value for against, value in cost.decibels.items() if against in _SERIES})
        for cost in costs_by_output(status.right.numbers)
    ]
    estimate = execution.estimate
    times = () if estimate is None else estimate.operators
    whole = sum(item.share for item in times) or 1.0
    places = grouped((str(change), (change.before or change.after)[0].label) for change in changes)
    assumed = (plan.assumed.partition(",")[0], "" if plan.route is None else plan.route.id)
    still_open, handled = group_findings(findings)
    ladder: object = None
    if situation.ladder is not None:
        from deploykit.report.ladders import ladder_section

        ladder = ladder_section(situation.ladder)
    values = {
        "plan": plan,
        "facts": situation.facts,
        "model_name": situation.request.model.name,
        "execution": execution,
        "generated": generated,
        "heading": list(_facts(plan, status)),
        "headline": headline(findings),
        "open": still_open,
        "handled": handled,
        "ladder": ladder,
        "made": None if situation.quantized is None else quantized_section(situation.quantized.record),
        "coverage": dict(coverage.most_common()),
        "types": types,
        "strip": network_strip(
            plan.precision,
            situation.facts,
            findings,
            shares={item.node: item.share / whole for item in times},
            kind=next((_FLOATS[name] for name in assumed if name in _FLOATS), ""),
        ),
        "estimate": estimate,
        "timeline": None if estimate is None else timeline(estimate),
        "dearest": [
            (
                item.node,
                in_time(item.share * estimate.us_per_cycle),
                f"{item.share / whole:.1%}",
                in_time(item.waiting * estimate.us_per_cycle),
                f"{item.ddr_bytes:,} bytes",
                item.reason or "–",
            )
            for item in times[:10]
            if estimate is not None
        ],
        "audit": None if execution.audit is None else audit_section(execution.audit),
        "detections": detections,
        "ranges": None if situation.encodings is None else range_chart(situation.encodings),
        "shipping": shipping(status, findings),
        "costs": loss_bars([(label, series) for label, series in costs if series], _CLEAN_DB),
        "changes": sorted(places.items(), key=lambda item: -len(item[1])),
        "files": files,
    }
    return render("report.html.j2", values, templates=templates)


_WORST_FIRST = ("wrong", "refused", "narrowed", "not judged", "right")
_MOST_ROWS = 200


def audit_section(audit: Audit) -> Json:
    """The section on kernels. ``open`` are those that are not right, worst first; ``left_out`` counts those
    not shown.
    """
    ranked = sorted(audit.kernels, key=lambda kernel: _WORST_FIRST.index(kernel.verdict))
    right = [kernel for kernel in ranked if kernel.verdict == "right"]
    still_open = [kernel for kernel in ranked if kernel.verdict != "right"]
    return {
        "by": audit.by,
        "level": audit.level,
        "counts": {verdict: audit.counts[verdict] for verdict in sorted(audit.counts, key=_WORST_FIRST.index)},
        "open": still_open[:_MOST_ROWS],
        "right": right[:_MOST_ROWS],
        "left_out": len(still_open[_MOST_ROWS:]) + len(right[_MOST_ROWS:]),
    }


def quantized_section(record: Json) -> Json:
    """The section on a published quantizer's record: labelled facts, notes, and the numbers of each output."""

    def said(db: float | None) -> str:
        return decibels(math.inf if db is None else db)  # the record has null if nothing differs

    numbers, calibration = record["numbers"], record["calibration"]
    own, samples = numbers["quantizers_own"], numbers["samples"]
    tool = record["toolchain"] or record["quantizer"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
    judged = "held out" if samples["held_out"] else "of the same"
    # Switches that are off, and options that are not set, are left out.
    options = {name: value for name, value in record["options"].items() if value is not None and value is not False}
    seconds = sum(record["seconds"].values())
    simulated = f"{said(own['sqnr_db'])}; the two agree to {said(own['agreement_db'])}"
    if own["exact"]:
        simulated = f"{said(own['sqnr_db'])}, the same to the bit"
    elif own["agreement_db"] is None:
        simulated = "it has none"
    return {
        "facts": [
            ("made by", f"{tool} ({versions})" if versions else tool),
            ("precision", record["precision"]),
            ("options", ", ".join(k if v is True else f"{k} {v}" for k, v in options.items()) or "none"),
            ("samples", f"{calibration['seen']} to calibrate, {samples['count']} {judged} to judge"),
            ("took", f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"),
            ("signal to noise, of what was written", said(numbers["sqnr_db"])),
            ("in the quantizer's own simulation", simulated),
        ],
        "notes": record["notes"],
        "seconds": record["seconds"].items(),
        "outputs": [
            (
                row["name"],
                said(row["sqnr_db"]),
                *("–" if row[key] is None else f"{row[key]:.6g}" for key in ("cosine", "max_error")),
            )
            for row in numbers["outputs"]
        ],
    }


def with_runs(page: str, manifest: Json) -> str:
    """The report of a package with its runs on devices; "" for a report without a place for them."""
    before, began, rest = page.partition(_SINCE)
    _, ended, after = rest.partition(_SINCE_END)
    if not ended:
        return ""
    told = explained(manifest)
    there = any(run.get("where") == "device" for run in manifest["runs"])
    word = str(told.shipping.word)
    mark = {"ship it": "good", "do not ship it": "bad"}.get(word, "open")
    if there:  # the title of the window shows the verdict, too
        before = re.sub(r"<title>[✓✗?]", f"<title>{ {'good': '✓', 'bad': '✗'}.get(mark, '?') }", before, count=1)
    lines = next((chapter.lines for chapter in told.chapters if chapter.title == ON_A_DEVICE), ())
    values = {"there": there, "mark": mark, "word": word, "shipping": told.shipping, "lines": lines}
    return f"{before}{began}{render('runs.html.j2', values)}{ended}{after}"


_SINCE, _SINCE_END = "<!-- runs on devices -->", "<!-- end of runs -->"
