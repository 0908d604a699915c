"""``deploykit audit``: every kernel of a model by itself, over all that it may be given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from deploykit.backend.audits import Audit, AuditedKernel
from deploykit.cli.output import emit, findings_text, table
from deploykit.cli.progress import progress
from deploykit.cli.requests import RequestCommand, request_from
from deploykit.findings import exit_status

__all__ = ["command"]

_ORDER = ("wrong", "refused", "narrowed", "not judged", "right")


@click.command(cls=RequestCommand)
@click.option(
    "--audit",
    type=click.Choice(["quick", "auto", "full"]),
    default="full",
    show_default=True,
    help="Kernels under suspicion, what is quick to run, or all of them.",
)
def command(audit: str, **given: Any) -> int:
    """Run each distinct kernel of MODEL on the emulator, alone and among its neighbours, over its whole grid.

    Exit status 1 when one computes something else than the model says, or is refused.
    """
    from deploykit.flow.auditing import audit as run

    with progress() as tell:
        found = run(request_from(**given), level=audit, progress=tell)
    emit({**found.to_json(), "measured_before": found.known}, lambda: "\n".join(_lines(found, audit)))
    return exit_status(found.findings)


def _lines(found: Audit, level: str) -> Iterator[str]:
    none = "none is under suspicion; --audit full looks at all" if level == "quick" else "there is none to look at"
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    yield f"{len(found.kernels)} kernels by {found.by}: {told or none}"
    yield f"{found.known} of them were measured before" if found.known else ""
    shown = sorted(
        (kernel for kernel in found.kernels if kernel.verdict != "right"),
        key=lambda kernel: (_ORDER.index(kernel.verdict), kernel.node),
    )
    if shown:
        yield table([_row(kernel) for kernel in shown], header=("verdict", "operators", "type", "node", "what"))
    if found.findings:
        yield findings_text(found.findings)


def _row(kernel: AuditedKernel) -> tuple[str, ...]:
    count = f" (and {kernel.count - 1} more)" if kernel.count > 1 else ""
    return kernel.verdict, " > ".join(kernel.operators), kernel.type, f"{kernel.node}{count}", kernel.why
