"""One self-contained HTML page that tells a ladder's story: candidates, conclusions, the step taken, the choice.

Pure: from what was measured to text; the section itself is ``deploykit.report.ladder_section``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploykit.findings import Finding
from deploykit.flow.ladder import Ladder
from deploykit.report.ladder_section import ladder_section
from deploykit.report.rendering import render

__all__ = ["render_ladder"]


def render_ladder(
    ladder: Ladder, model_name: str, samples: str, *, findings: Sequence[Finding] = (), templates: Path | None = None
) -> str:
    """The page; ``samples`` says in words what was measured on."""
    values = {
        "model_name": model_name,
        "ladder": ladder_section(ladder.to_json()),
        "samples": samples,
        "findings": findings,
    }
    return render("ladder.html.j2", values, templates=templates)
