"""``deploykit verify``: judge a package on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.options import argument, flag, option, path
from deploykit.cli.terminal import emit, findings_text, plain, status_lines
from deploykit.report.explaining import samples_wanted

if TYPE_CHECKING:
    from deploykit.packages.verifying import VerifyReport

__all__ = ["command"]


@click.command(cls=Command)
@argument("package")
@flag("--numerics", "Run the packaged models, and contexts that an emulator takes, and judge them again.")
@option("--expect-digest", "DIGEST", "The digest it had when it was made; fail on any other.")
@path("--allowed-signers", "FILE", "Who may sign manifest.json (ssh-keygen -Y sign -n deploykit); fail on anyone else.")
def command(package: Path, numerics: bool, expect_digest: str | None, allowed_signers: Path | None) -> int:
    """Check every file of PACKAGE, its model and configurations, and compare intended with actual precision."""
    report = api.verify(package, numerics=numerics, expect_digest=expect_digest, allowed_signers=allowed_signers)
    emit(report, lambda: _text(report))
    return report.exit_status


def _text(report: VerifyReport) -> str:
    words = {True: click.style("ok     ", fg="green"), False: click.style("problem", fg="red", bold=True)}
    lines = [f"{words[check.ok]} {check.id}: {plain(check.detail)}" for check in report.checks]
    lines += [
        f"{words[False]} precision: {plain(name)} is {got}, intended {wanted}"
        for name, wanted, got in report.mismatches
    ]
    if report.findings:
        lines.append(findings_text(report.findings))
    wanted = samples_wanted(report.status.right)
    following = [f"next       {wanted}"] if wanted else []
    return "\n".join([*status_lines(report.status), *following, "", *lines])
