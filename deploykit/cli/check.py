"""``deploykit check``: findings only, or with --plan the whole decision; nothing is written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from deploykit.answers.rule_pages import all_rules
from deploykit.backend.opinions import Audit
from deploykit.backend.plans import Plan
from deploykit.cli.options import RequestCommand, flag, option, path, request_from
from deploykit.cli.terminal import emit, findings_text, progress, table
from deploykit.errors import UsageError
from deploykit.findings import exit_status, summarize
from deploykit.findings.records import plain
from deploykit.report.explaining import samples_wanted
from deploykit.report.for_ci import (
    apply_baseline,
    apply_severity_overrides,
    read_baseline,
    to_sarif,
    write_baseline_file,
)

__all__ = ["command"]

_ORDER = ("wrong", "refused", "narrowed", "not judged", "right")


@click.command(cls=RequestCommand)
@flag("--plan", "Show the decision: route, rejected routes, commands, precision.", "planned")
@click.option("--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text", show_default=True)
@path("--baseline", "FILE", "Findings accepted before.")
@path("--write-baseline", "FILE", "Accept what is found now.")
@option("--severity", "CODE=WORD", "error, warning, info or off; repeatable.", multiple=True)
def command(
    planned: bool,
    form: str,
    baseline: Path | None,
    write_baseline: Path | None,
    severity: tuple[str, ...],
    **given: Any,
) -> int:
    """Say what stands in the way of MODEL on one target, and what to do about it; nothing is written.

    \b
    deploykit check model.onnx --target sm8650 --sdk 2.33 --encodings model.encodings
    deploykit check model.onnx --target sm8650 --plan
    """
    from deploykit.flow.pipeline import audit, check, estimate, make_plan
    from deploykit.flow.rules import core_registries

    request = request_from(**given)
    if planned:
        if form == "sarif" or baseline or write_baseline or severity:
            raise UsageError("--plan shows the decision as it is", next="leave --format, --baseline and --severity out")
        plan, told = make_plan(request), None
        shown, lines = dict(plan.as_published()), ""
        if given.get("estimate") or given.get("max_time"):
            with progress() as tell:
                told = estimate(request, progress=tell)
            shown["estimate"] = told
            lines = f"\ntime       {'no estimate for this chip' if told is None else told.described}"
        _print(shown, lambda: plan_text(plan) + lines, form)
        return 1 if plan.route is None or plan.right.state == "no" else exit_status(plan.findings)
    with progress() as tell:
        found = apply_severity_overrides(check(request, progress=tell), severity)
    if write_baseline is not None:
        write_baseline_file(write_baseline, found)
        click.echo(f"{write_baseline}: accepts what is found now, {len(found)} findings", err=True)
    if baseline is not None:
        found = apply_baseline(found, read_baseline(baseline))
    value: dict[str, Any] = {"findings": found, "summary": summarize(found)}
    # The verdict on each kernel, if the user asked for kernels; the check has measured them, so they are at hand.
    level = given.get("kernels")
    asked = click.get_current_context().get_parameter_source("kernels") is not ParameterSource.DEFAULT
    kernels = audit(request, level=level) if form == "text" and asked and level not in (None, "off") else None
    if form == "sarif":
        rules = [entry.rule for entry in all_rules(core_registries())]
        click.echo(json.dumps(to_sarif(found, rules, request.model), indent=1))
    elif kernels is not None:
        value["audit"] = {**kernels.as_published(), "measured_before": kernels.known}
        emit(value, lambda: f"{_kernels_text(kernels)}\n{findings_text(found)}")
    else:
        _print(value, lambda: findings_text(found), form)
    return exit_status(found)


def _print(value: dict[str, Any], text: Callable[[], str], form: str) -> None:
    """Prints JSON for ``--format json`` as for ``--json``, else the text."""
    if form == "json":
        click.echo(json.dumps(plain({"schema": 1, **value}), indent=1, ensure_ascii=False))
    else:
        emit(value, text)


def _kernels_text(found: Audit) -> str:
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items()) or "there is none to look at"
    head = f"{len(found.kernels)} kernels by {found.by}: {told}"
    rows = []
    for kernel in sorted(found.kernels, key=lambda kernel: (_ORDER.index(kernel.verdict), kernel.node)):
        if kernel.verdict != "right":
            node = f"{kernel.node}{f' (and {kernel.count - 1} more)' if kernel.count > 1 else ''}"
            rows.append((kernel.verdict, " > ".join(kernel.operators), kernel.type, node, kernel.why))
    return f"{head}\n{table(rows, header=('verdict', 'operators', 'type', 'node', 'what'))}" if rows else head


def plan_text(plan: Plan[Any]) -> str:
    """A plan as text for people."""
    sdk = f", {plan.sdk['name']} {plan.sdk['version']}" if plan.sdk.get("version") else ""
    lines = [click.style(f"{plan.target['name']} ({plan.backend}{sdk})", bold=True), findings_text(plan.findings), ""]
    for way in plan.candidates:
        mark = click.style("way *     ", bold=True) if way["won"] else "way       "
        quality = ""
        if way["overall_db"] is not None:
            quality = f"{way['overall_db']:.1f} dB, {way['float16_tensors']} float16 tensors; "
        lines.append(f"{mark} {way['id']}: {quality}{way['why']}")
    lines += [f"assumed    {plan.assumed}"] if plan.assumed else []
    lines.append(f"right      {plan.right}")
    if wanted := samples_wanted(plan.right):
        lines.append(f"next       {wanted}")
    route = plan.route
    lines.append("route      none" if route is None else f"route      {route.id} ({route.confidence}): {route.why}")
    lines += [f"rejected   {row.id}: {', '.join(row.because)}" for row in plan.rejected]
    for other in plan.alternatives:
        against = f"; against it: {', '.join(other.because)}" if other.because else ""
        lines.append(f"or         {other.id} ({other.confidence}{against}): {other.why} [{other.ask}]")
    lines += [f"{step.id:<10} {shlex.join(step.argv)}" for step in plan.steps]
    counts = plan.precision.to_json()
    if counts["intended"]:
        lines.append("precision  " + ", ".join(f"{count} {kind}" for kind, count in counts["expected"].items()))
    return "\n".join(lines)
