"""``deploykit plan``: the decision, nothing written."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from deploykit.cli.output import emit, findings_text
from deploykit.cli.requests import RequestCommand, request_from
from deploykit.findings import exit_status

if TYPE_CHECKING:
    from deploykit.backend.plans import Alternative, Plan

__all__ = ["command", "plan_text"]


@click.command(cls=RequestCommand)
def command(**given: Any) -> int:
    """Decide how MODEL would be packaged: route, rejected routes, commands, configurations, findings."""
    from deploykit.flow.pipeline import make_plan

    plan = make_plan(request_from(**given))
    emit(plan.to_json(), lambda: plan_text(plan))
    wrong = plan.route is None or plan.right.state == "no"
    return 1 if wrong else exit_status(plan.findings)


def plan_text(plan: Plan[Any]) -> str:
    """A plan for people."""
    sdk = f", {plan.sdk['name']} {plan.sdk['version']}" if plan.sdk.get("version") else ""
    lines = [click.style(f"{plan.target['name']} ({plan.backend}{sdk})", bold=True), findings_text(plan.findings), ""]
    lines += [_way(way) for way in plan.candidates]
    lines += [f"assumed    {plan.assumed}"] if plan.assumed else []
    lines.append(f"right      {plan.right}")
    if plan.route is None:
        lines.append("route      none")
    else:
        lines.append(f"route      {plan.route.id} ({plan.route.confidence}): {plan.route.why}")
    lines += [f"rejected   {row.id}: {', '.join(row.because)}" for row in plan.rejected]
    lines += [_alternative(row) for row in plan.alternatives]
    lines += [f"{step.id:<10} {shlex.join(step.argv)}" for step in plan.steps]
    counts = plan.precision.to_json()
    if counts["intended"]:
        lines.append("precision  " + ", ".join(f"{count} {kind}" for kind, count in counts["expected"].items()))
    return "\n".join(lines)


def _alternative(row: Alternative) -> str:
    """A route that was not reached, what stands against it, and how to insist on it."""
    against = f"; against it: {', '.join(row.because)}" if row.because else ""
    return f"or         {row.id} ({row.confidence}{against}): {row.why} [{row.ask}]"


def _way(way: Mapping[str, Any]) -> str:
    """One way to deploy a precision mix, with its simulated quality, and why it won or lost."""
    mark = click.style("way *     ", bold=True) if way["won"] else "way       "
    if way["overall_db"] is None:
        return f"{mark} {way['id']}: {way['why']}"
    return f"{mark} {way['id']}: {way['overall_db']:.1f} dB, {way['float16_tensors']} float16 tensors; {way['why']}"
