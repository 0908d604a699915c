"""``deploykit package``: check, plan, render, write and verify one package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit.cli.frame import Command
from deploykit.cli.options import request_from, request_options
from deploykit.cli.output import emit, findings_text, progress

if TYPE_CHECKING:
    from deploykit.pipeline import Packaged

__all__ = ["command"]


@click.command(cls=Command)
@request_options
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The package folder.")
@click.option("--templates", type=click.Path(path_type=Path), metavar="DIR", help="Own templates; they win.")
@click.option("--force", is_flag=True, help="Replace a package that stands there.")
def command(out: Path, templates: Path | None, force: bool, **given: Any) -> int:
    """Package MODEL for one target: the main job.

    \b
    deploykit package model.onnx --target sm8650 --sdk 2.33 --encodings model.encodings -o out
    """
    from deploykit.pipeline import make_package

    with progress() as tell:
        packaged = make_package(request_from(**given), out, force=force, templates=templates, progress=tell)
    emit(packaged.to_json(), lambda: _text(packaged))
    return packaged.exit_status


def _text(packaged: Packaged) -> str:
    lines = [findings_text(packaged.findings), ""]
    if packaged.package is None:
        lines.append(click.style("no package was written: see the errors above", fg="red", bold=True))
        return "\n".join(lines)
    route = packaged.plan.route
    assert route is not None
    lines += [
        f"route      {route.id} ({route.confidence}): {route.why}",
        f"executed   {', '.join(packaged.executed) or 'nothing'}",
        f"generated  {', '.join(packaged.generated) or 'nothing'}",
        f"package    {packaged.package} (verified; open report.html)",
    ]
    return "\n".join(lines)
