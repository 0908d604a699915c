"""``deploykit demo``: the main job on an embedded example."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit.backend.requests import make_request
from deploykit.cli.frame import Command
from deploykit.cli.options import path
from deploykit.cli.package import package_text
from deploykit.cli.terminal import emit, progress
from deploykit.packages.manifests import MANIFEST, list_files
from deploykit.system.folders import scratch

if TYPE_CHECKING:
    from deploykit.flow.pipeline import Packaged

__all__ = ["command"]

_TARGET, _SDK = "sm8650", "2.33"


@click.command(cls=Command)
@path("-o", "DIR", "Keep the package in DIR.", "--out")
def command(out: Path | None) -> int:
    """Package an embedded detector with mixed float16 encodings for a phone locked to an old SDK."""
    from deploykit.backend.demo_model import write_demo
    from deploykit.flow.pipeline import read_jobs

    with scratch() as place, progress() as tell:
        model, encodings = write_demo(place)
        folder = out or place / "package"
        request = make_request(model, _TARGET, sdk=_SDK, encodings=encodings)
        (job,) = read_jobs([request], [folder], progress=[tell])
        packaged = job.make()
        tree = [] if packaged.package is None else [MANIFEST, *list_files(packaged.package)]
    emit({**packaged.to_json(), "tree": tree}, lambda: _text(packaged, tree, out))
    return packaged.exit_status


def _text(packaged: Packaged, tree: list[str], out: Path | None) -> str:
    command_line = f"deploykit package detector.onnx --target {_TARGET} --sdk {_SDK} --encodings detector.encodings"
    lines = [
        f"$ {command_line} -o {out or 'out'}",
        "",
        package_text(packaged, out or Path("out")),
        "",
        f"{out or 'out'}/",
    ]
    lines += [f"  {path}" for path in tree]
    if out is None:
        lines += ["", "the package is intact and was removed again; keep it with: deploykit demo -o DIR"]
    return "\n".join(lines)
