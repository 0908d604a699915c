"""``deploykit build``: run a package's own script and record what it made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.diagnose import diagnosis_text
from deploykit.cli.frame import Command, settings
from deploykit.cli.terminal import defused, emit

if TYPE_CHECKING:
    from deploykit.packages.building import BuildReport

__all__ = ["command"]


@click.command(cls=Command)
@click.argument("package", type=click.Path(path_type=Path))
def command(package: Path) -> int:
    """Run the build script of PACKAGE, keep its log, explain a failure, and record the artifacts in the manifest."""
    quiet = settings().json or settings().verbosity < 0
    report = api.build(package, on_line=None if quiet else lambda line: click.echo(defused(line), err=True))
    emit(report, lambda: _text(report))
    return report.exit_status


def _text(report: BuildReport) -> str:
    lines = []
    if report.diagnosis is not None:
        lines += [diagnosis_text(report.diagnosis), ""]
    # On a terminal the script has printed it already.
    lines += report.said if settings().verbosity < 0 else ()
    verdict = {0: "built", 1: "not built: the precision would have changed"}.get(report.exit_status, "not built")
    lines.append(f"{verdict}; done: {', '.join(report.done) or 'nothing'}; log: {report.log}")
    lines.append(f"digest: {report.digest}")
    return "\n".join(lines)
