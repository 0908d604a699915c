"""``deploykit inspect``: what a compiled context binary is for, and whether it will load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import click

from deploykit.cli.frame import Command
from deploykit.cli.output import emit

__all__ = ["command"]


@runtime_checkable
class _Inspects(Protocol):
    def inspect(self, path: Path) -> Mapping[str, Any] | None:
        """The metadata of a compiled file."""


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--backend", default="ort-qnn", show_default=True, metavar="ID", help="Whose binary it is.")
@click.option("--sdk", default="", metavar="VERSION", help="The release on the device: will it load there?")
@click.option("--target", default="", metavar="DEVICE", help="The device it is to be loaded on.")
def command(file: Path, backend: str, sdk: str, target: str) -> int:
    """Show who built a context binary (or …_ctx.onnx), for which chip, with which inputs and outputs.

    With --sdk and --target it also says whether the binary will load there, and how sure that is.
    """
    info = _info(file, backend)
    answers = _loads(info, backend, sdk, target)
    emit({**info, "loads": answers}, lambda: _text(info, answers))
    return int(any(answer["status"] == "unsupported" for answer in answers))


def _info(file: Path, backend: str) -> Mapping[str, Any]:
    from deploykit.errors import UsageError
    from deploykit.plugins import load_backend

    known = load_backend(backend)
    found = known.inspect(file) if isinstance(known, _Inspects) else None
    if found is None:
        raise UsageError(f"--backend {backend}: reads no compiled files", next="use --backend ort-qnn")
    return found


def _loads(info: Mapping[str, Any], backend: str, sdk: str, target: str) -> list[dict[str, Any]]:
    if not sdk and not target:
        return []
    from deploykit.compat import AnswersBinaries
    from deploykit.plugins import load_backend
    from deploykit.target import find_device

    known = load_backend(backend)
    if not isinstance(known, AnswersBinaries):
        return []
    built_with, built_for = str(info["qairt"]), str(info.get("arch") or "")
    arch = find_device(known.devices(), target).fact("arch") if target else built_for
    return [row.to_json() for row in known.binary_rows(built_with, built_for, sdk or built_with, str(arch or ""))]


def _text(info: Mapping[str, Any], answers: list[dict[str, Any]]) -> str:
    lines = [
        f"file      {info['file']}",
        f"built by  QAIRT {info['qairt']} ({info['build']})",
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
