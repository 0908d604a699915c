"""``deploykit package``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit.cli.progress import progress
from deploykit.cli.requests import RequestCommand, request_from
from deploykit.cli.terminal import emit, findings_text, status_lines

if TYPE_CHECKING:
    from deploykit.flow.pipeline import Packaged

__all__ = ["command"]


@click.command(cls=RequestCommand, several=True)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The package folder.")
@click.option("--templates", type=click.Path(path_type=Path), metavar="DIR", help="Own templates; they win.")
@click.option("--force", is_flag=True, help="Replace a package that stands there, as it was made.")
@click.option("--sbom", is_flag=True, help="Add a bill of materials, sbom.cdx.json (CycloneDX).")
@click.option("--link", is_flag=True, help="Share large weight files with MODEL instead of copying them.")
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
        emit(made[0].to_json(), lambda: _text(made[0]))
    else:
        names = [click.style(str(packaged.plan.target["name"]), bold=True) for packaged in made]
        text = "\n\n".join(f"{name}\n{_text(one)}" for name, one in zip(names, made, strict=True))
        emit({"packages": [packaged.to_json() for packaged in made]}, text)
    return max(packaged.exit_status for packaged in made)


def _text(packaged: Packaged) -> str:
    if packaged.package is None:
        no = click.style("no package was written: see the errors above", fg="red", bold=True)
        return "\n".join([findings_text(packaged.findings), "", no])
    assumed = [f"assumed    {packaged.plan.assumed}"] if packaged.plan.assumed else []
    route = packaged.plan.route
    assert route is not None
    lines = [
        *assumed,
        *status_lines(packaged.status),
        *([] if packaged.estimate is None else [f"time       {packaged.estimate.described}"]),
        "",
        findings_text(packaged.findings),
        "",
        f"route      {route.id} ({route.confidence}): {route.why}",
        f"executed   {', '.join(packaged.executed) or 'nothing'}",
        f"generated  {', '.join(packaged.generated) or 'nothing'}",
        f"package    {packaged.package} (open report.html)",
        f"digest     {packaged.digest}",
    ]
    return "\n".join(lines)
