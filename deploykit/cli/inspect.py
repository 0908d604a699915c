"""``deploykit inspect``: what a compiled context binary is for, and whether it will load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from deploykit.answers.binaries import BinaryReport, Runtime, report_binary
from deploykit.cli.frame import Command
from deploykit.cli.output import emit
from deploykit.system.limits import limited_time
from deploykit.tables.capabilities import Status

__all__ = ["command", "emit_binary"]


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--backend", metavar="ID", help="Whose binary it is. Default: the first backend that reads such files.")
@click.option(
    "--sdk", "--runtime", default="", metavar="VERSION", help="The release on the device: will it load there?"
)
@click.option("--target", default="", metavar="DEVICE", help="The device it is to be loaded on.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="End the vendor's library, which reads the file, after that.",
)
def command(file: Path, backend: str | None, sdk: str, target: str, time_limit: float) -> int:
    """Show who built a context binary (or …_ctx.onnx), for which chip, with which graphs, and what loads it.

    With --sdk and --target it also says whether the binary will load there, and how sure that is.
    """
    with limited_time(time_limit):
        report = report_binary(file, backend=backend, runtime=sdk, target=target)
    return emit_binary(report)


def emit_binary(report: BinaryReport) -> int:
    """Print a report; 1 when it will not load where it was asked for, or a graph is larger than its chip allows."""
    emit(report.to_json, lambda: "\n".join(_lines(report)))
    return int(report.refused)


def _lines(report: BinaryReport) -> Iterator[str]:
    info = report.info
    chip = "a chip that it does not name" if info["soc_model"] is None else f"soc_model {info['soc_model']}"
    yield f"file      {info['file']}"
    yield f"built by  {info['maker']} {info['release']} ({info['build']})"
    if info.get("carrier"):
        yield f"carrier   {info['carrier']}"
    yield f"for       {chip}{' ' + info['arch'] if info.get('arch') else ''}"
    yield f"APIs      core {info['core_api']}, backend {info['backend_api']}, blob {info['blob_version']}"
    yield f"graphs    {info['graph_count']}"
    for graph in info["graphs"]:
        yield from _graph(graph)
    for row in report.loads:
        yield f"loads     {row.status} ({row.confidence}): {row.note}"
    yield from _runtimes(report.runtimes)


def _graph(graph: Mapping[str, Any]) -> Iterator[str]:
    yield f"graph     {graph['name']}"
    for side in ("inputs", "outputs"):
        for tensor in graph[side]:
            yield f"  {side[:-1]:<7} {_tensor(tensor)}"
    named = {"VTCM": graph.get("vtcm_bytes"), **{use.replace("_", " "): n for use, n in graph["memory"].items()}}
    sizes = [f"{name} {_size(number)}" for name, number in named.items() if number is not None]
    yield f"  memory  {', '.join(sizes) or 'not stated'}"
    if (fits := graph.get("fits")) is not None:
        yield f"  limit   {_fit(fits)}"


def _fit(fits: Mapping[str, Any]) -> str:
    counted = f"{_size(fits['counted_bytes'])} of constants and operator data"
    if fits["limit_bytes"] is None:
        return f"{counted}; what one graph may have on this architecture is not known"
    limit = f"{counted}, one graph may have {_size(fits['limit_bytes'])} ({'; '.join(fits['source'])})"
    return limit if fits["ok"] else f"{limit}: split it into {fits['parts']} graphs or more"


def _size(number: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number} B"


def _runtimes(runtimes: tuple[Runtime, ...]) -> Iterator[str]:
    """The releases that load it as one range where they are one, and the packages that carry the newest ones."""
    loading = [runtime for runtime in runtimes if runtime.status is Status.SUPPORTED]
    if not runtimes:
        return
    if not loading:
        yield "runtimes  none of the releases in the tables loads it"
        return
    yield f"runtimes  {loading[0].release} to {loading[-1].release}, of those in the tables"
    carriers = [f"{name} ({runtime.release})" for runtime in loading for name in runtime.carriers]
    if carriers:
        yield f"inside    {', '.join(carriers)}"


def _tensor(tensor: Mapping[str, Any]) -> str:
    grid = "" if tensor["scale"] is None else f", scale {tensor['scale']:.6g}, zero point {tensor['zero_point']}"
    return f"{tensor['name']}: {tensor['dtype']} {tensor['shape']}{grid}"
