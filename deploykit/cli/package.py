"""``deploykit package``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from deploykit.cli.options import RequestCommand, flag, path, request_from
from deploykit.cli.packaged import package_text
from deploykit.cli.terminal import emit, progress

__all__ = ["command"]


@click.command(cls=RequestCommand, several=True)
@path("-o", "DIR", "The package folder.", "--out", required=True)
@path("--templates", "DIR", "Your own templates, used before the built-in ones.")
@flag("--force", "Replace a package that is there, if nobody changed it.")
@flag("--sbom", "Add a bill of materials, sbom.cdx.json (CycloneDX).")
@flag("--link", "Share large weight files with MODEL instead of copying them.")
def command(
    targets: tuple[str, ...], out: Path, templates: Path | None, force: bool, sbom: bool, link: bool, **given: Any
) -> int:
    """Package MODEL for one target, or for each of several: the main job.

    \b
    deploykit package model.onnx --target sm8650 --sdk 2.33 --encodings model.encodings -o out
    deploykit package model.onnx --target sm8650 --precision w8a16 --calibration images -o out
    """
    from deploykit.flow.pipeline import make_packages

    requests = [request_from(target=target, **given) for target in dict.fromkeys(targets)]
    with progress() as tell:
        made = make_packages(requests, out, force=force, templates=templates, sbom=sbom, link=link, progress=tell)
    if len(made) == 1:
        emit(made[0], lambda: package_text(made[0]))
    else:
        names = [click.style(str(packaged.plan.target["name"]), bold=True) for packaged in made]
        text = "\n\n".join(f"{name}\n{package_text(one)}" for name, one in zip(names, made, strict=True))
        emit({"packages": made}, text)
    return max(packaged.exit_status for packaged in made)
