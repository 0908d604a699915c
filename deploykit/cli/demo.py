"""``deploykit demo``: the main job on an embedded example."""

from __future__ import annotations

from pathlib import Path

import click

from deploykit.backend.requests import make_request
from deploykit.cli.frame import Command
from deploykit.cli.packaged import package_text
from deploykit.cli.terminal import emit, progress
from deploykit.packages.manifests import MANIFEST, list_files
from deploykit.system.folders import scratch

__all__ = ["command"]

_TARGET, _SDK = "sm8650", "2.33"


@click.command(cls=Command)
@click.option("-o", "--out", metavar="DIR", type=click.Path(path_type=Path), help="Keep the package in DIR.")
def command(out: Path | None) -> int:
    """Package an embedded detector with mixed float16 encodings for a phone locked to an old SDK."""
    from deploykit.backend.demo_model import write_demo
    from deploykit.flow.pipeline import read_jobs

    with scratch() as place, progress() as tell:
        model, encodings = write_demo(place)
        folder = out or place / "package"
        (job,) = read_jobs([make_request(model, _TARGET, sdk=_SDK, encodings=encodings)], [folder], progress=[tell])
        packaged = job.make()
        tree = [] if packaged.package is None else [MANIFEST, *list_files(packaged.package)]
    typed = f"deploykit package detector.onnx --target {_TARGET} --sdk {_SDK} --encodings detector.encodings"
    shown = out or Path("out")
    lines = [f"$ {typed} -o {shown}", "", package_text(packaged, shown), "", f"{shown}/"]
    lines += [f"  {path}" for path in tree]
    if out is None:
        lines += ["", "the package is intact and was removed again; keep it with: deploykit demo -o DIR"]
    emit({**packaged.to_json(), "tree": tree}, "\n".join(lines))
    return packaged.exit_status
