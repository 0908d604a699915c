"""``deploykit inspect``: what a compiled context binary is for, and whether it will load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from deploykit.cli.frame import Command
from deploykit.cli.output import emit
from deploykit.contract.optional import AnswersBinaries, Inspects
from deploykit.contract.plugins import load_backend, load_backends
from deploykit.contract.targets import find_device
from deploykit.errors import UsageError

__all__ = ["command"]


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--backend", metavar="ID", help="Whose binary it is. Default: the first backend that reads such files.")
@click.option("--sdk", default="", metavar="VERSION", help="The release on the device: will it load there?")
@click.option("--target", default="", metavar="DEVICE", help="The device it is to be loaded on.")
def command(file: Path, backend: str | None, sdk: str, target: str) -> int:
    """Show who built a context binary (or …_ctx.onnx), for which chip, with which inputs and outputs.

    With --sdk and --target it also says whether the binary will load there, and how sure that is.
    """
    known = _reader(backend)
    info = known.inspect(file)
    answers = _loads(info, known, sdk, target)
    emit({**info, "loads": answers}, lambda: _text(info, answers))
    return int(any(answer["status"] == "unsupported" for answer in answers))


def _reader(backend: str | None) -> Inspects:
    candidates = load_backends() if backend is None else (load_backend(backend),)
    for known in candidates:
        if isinstance(known, Inspects):
            return known
    raise UsageError(f"{backend or 'no installed backend'}: reads no compiled files")


def _loads(info: Mapping[str, Any], known: Inspects, sdk: str, target: str) -> list[dict[str, Any]]:
    if not (sdk or target):
        return []
    if not isinstance(known, AnswersBinaries):
        return []
    built_with, arch = str(info["release"]), str(info.get("arch") or "")
    on = find_device(known.devices(), target).fact("arch") if target else arch
    return [row.to_json() for row in known.binary_rows(built_with, arch, sdk or built_with, str(on or ""))]


def _text(info: Mapping[str, Any], answers: list[dict[str, Any]]) -> str:
    lines = [
        f"file      {info['file']}",
        f"built by  {info['maker']} {info['release']} ({info['build']})",
        *([f"carrier   {info['carrier']}"] if info.get("carrier") else []),
        f"for       soc_model {info['soc_model']}{' ' + info['arch'] if info.get('arch') else ''}",
        f"APIs      core {info['core_api']}, backend {info['backend_api']}, blob {info['blob_version']}",
        f"graphs    {info['graph_count']}",
    ]
    for graph in info["graphs"]:
        lines.append(f"graph     {graph['name']}")
        for side in ("inputs", "outputs"):
            lines += [f"  {side[:-1]:<7} {_tensor(tensor)}" for tensor in graph[side]]
    lines += [f"loads     {row['status']} ({row['confidence']}): {row['note']}" for row in answers]
    return "\n".join(lines)


def _tensor(tensor: Mapping[str, Any]) -> str:
    grid = "" if tensor["scale"] is None else f", scale {tensor['scale']:.6g}, zero point {tensor['zero_point']}"
    return f"{tensor['name']}: {tensor['dtype']} {tensor['shape']}{grid}"
