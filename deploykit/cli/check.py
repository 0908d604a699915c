"""``deploykit check``: findings only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from deploykit.backend.plugins import all_registries
from deploykit.cli.output import emit, findings_text
from deploykit.cli.progress import progress
from deploykit.cli.requests import RequestCommand, request_from
from deploykit.findings import Finding, exit_status, summarize
from deploykit.report.baseline import (
    apply_baseline,
    apply_severity_overrides,
    read_baseline,
    write_baseline_file,
)
from deploykit.report.sarif import to_sarif

__all__ = ["command"]


@click.command(cls=RequestCommand)
@click.option("--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text", show_default=True)
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Findings accepted before.")
@click.option("--write-baseline", type=click.Path(path_type=Path), metavar="FILE", help="Accept what is found now.")
@click.option("--severity", multiple=True, metavar="CODE=WORD", help="error, warning, info or off; repeatable.")
def command(
    form: str, baseline: Path | None, write_baseline: Path | None, severity: tuple[str, ...], **given: Any
) -> int:
    """Say what stands in the way of MODEL on one target, and what to do about it; nothing is written."""
    from deploykit.flow.checking import check

    request = request_from(**given)
    with progress() as tell:
        found = check(request, progress=tell)
    findings = _adjusted(found, baseline, write_baseline, severity)
    if form == "sarif":
        click.echo(json.dumps(_sarif(findings, request.model), indent=1))
    else:
        value = {"findings": [finding.to_json() for finding in findings], "summary": summarize(findings)}
        if form == "json":
            click.echo(json.dumps({"schema": 1, **value}, indent=1, ensure_ascii=False))
        else:
            emit(value, lambda: findings_text(findings))
    return exit_status(findings)


def _adjusted(
    findings: tuple[Finding, ...], baseline: Path | None, write_baseline: Path | None, severity: tuple[str, ...]
) -> tuple[Finding, ...]:
    adjusted = apply_severity_overrides(findings, severity)
    if write_baseline is not None:
        write_baseline_file(write_baseline, adjusted)
    return adjusted if baseline is None else apply_baseline(adjusted, read_baseline(baseline))


def _sarif(findings: tuple[Finding, ...], model: Path) -> dict[str, Any]:
    return to_sarif(findings, [rule for registry in all_registries() for rule in registry], model)
