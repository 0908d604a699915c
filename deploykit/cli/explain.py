"""``deploykit explain``: what a package, a rule, a context binary or a file of encodings is, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.options import option
from deploykit.cli.terminal import columns, emit, plain, table
from deploykit.errors import DeploykitError, UsageError
from deploykit.system.files import read_regular

if TYPE_CHECKING:
    from deploykit.answers.binaries import BinaryReport
    from deploykit.report.explaining import Explanation

__all__ = ["command", "emit_binary"]

_COLORS = {"ship it": "green", "do not ship it": "red", "not judged": "yellow"}
_BINARIES = frozenset({".bin", ".dlc", ".serialized"})
_TIME_LIMIT = 120.0  # seconds for the vendor's library, which may hang on a damaged binary


@click.command(cls=Command)
@click.argument("what", metavar="WHAT")
@option("--backend", "ID", "For a binary: whose it is. Default: the first that reads it.")
@option("--sdk", "VERSION", "For a binary: will it load on this release?", "--runtime", default="")
@option("--target", "DEVICE", "For a binary: will it load on this device?", default="")
@option(
    "--time-limit",
    "SECONDS",
    "For a binary: stop the vendor's library that reads it after so long.",
    type=click.FloatRange(min=1),
    default=_TIME_LIMIT,
    show_default=True,
)
def command(what: str, backend: str | None, sdk: str, target: str, time_limit: float) -> int:
    """Explain WHAT: a package folder, a rule by its code or name ('rules' lists all), a context binary or ..._ctx.onnx,
    or a file of encodings.

    For a package: can it be shipped, what was decided and why, what was changed and measured, from its manifest.
    'deploykit verify' checks the files.

    \b
    deploykit explain out
    deploykit explain QNN101
    deploykit explain model_ctx.bin --sdk 2.37 --target sm8650
    """
    path = Path(what)
    if path.is_dir() or path.name == "manifest.json":
        told = api.explain(path.parent if path.name == "manifest.json" else path)
        emit(told, lambda: _text(told))
        return 0
    if path.suffix in _BINARIES or path.name.endswith("_ctx.onnx") or backend or sdk or target:
        return emit_binary(path, backend=backend, runtime=sdk, target=target, time_limit=time_limit)
    if path.exists():
        return _explain_file(path, time_limit)
    from deploykit.answers.rule_pages import all_rules, find_rule, rule_page
    from deploykit.flow.rules import core_registries

    entries = all_rules(core_registries())
    if what == "rules":
        rows = [(one.rule.code, one.rule.severity, one.rule.slug, one.rule.what) for one in entries]
        emit(
            {"rules": entries},
            lambda: f"{table(rows, header=('CODE', 'SEVERITY', 'NAME', 'WHAT'))}\n{len(rows)} rules",
        )
        return 0
    if "/" in what or "." in what:
        raise UsageError(f"{what}: no such file or folder", next="name a package, a rule, a binary or encodings")
    entry = find_rule(what, entries)
    emit({"rule": entry}, lambda: rule_page(entry))
    return 0


def _explain_file(path: Path, time_limit: float) -> int:
    """Explains a file as encodings if it can be read as such; any other file is offered to the readers of binaries."""
    from deploykit.cli.encodings import show_text
    from deploykit.encodings.files import show_encodings

    # An ONNX file with a node of this type contains a compiled context.
    if path.suffix == ".onnx" and b"EPContext" in read_regular(path):
        return emit_binary(path, time_limit=time_limit)
    try:
        found = show_encodings(path, model=None, names=(), arrays=False)
    except DeploykitError as first:
        try:
            return emit_binary(path, time_limit=time_limit)
        except DeploykitError:
            raise first from None
    emit(found, lambda: show_text(found))
    return 0


def _text(told: Explanation) -> str:
    def wrapped(text: str, indent: str = "") -> list[str]:
        width, more = columns(100), f"{indent}  "
        return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=more, break_on_hyphens=False)

    word = click.style(str(told.shipping.word), fg=_COLORS[told.shipping.word], bold=True)
    lines = [click.style(plain(told.title), bold=True), *wrapped(f"{word}: {plain(told.shipping.why)}")]
    lines += wrapped(f"evidence: {plain(told.shipping.evidence)}") if told.shipping.evidence else []
    lines += wrapped(f"next: {plain(told.shipping.next)}") if told.shipping.next else []
    for chapter in told.chapters:
        lines += ["", click.style(chapter.title, bold=True)]
        lines += [line for text in chapter.lines for line in wrapped(plain(text), "  ")]
    return "\n".join(lines)


def emit_binary(
    path: Path, *, backend: str | None = None, runtime: str = "", target: str = "", time_limit: float = _TIME_LIMIT
) -> int:
    """Prints the metadata of a binary; returns 1 if it will not load as asked, or is too large for its chip."""
    from deploykit.answers.binaries import report_binary
    from deploykit.system.limits import limited_time

    with limited_time(time_limit):
        report = report_binary(path, backend=backend, runtime=runtime, target=target)
    emit(report, lambda: "\n".join(_binary_lines(report)))
    return int(report.refused)


def _binary_lines(report: BinaryReport) -> Iterator[str]:
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
        yield f"graph     {graph['name']}"
        for side in ("inputs", "outputs"):
            for tensor in graph[side]:
                no_grid = tensor["scale"] is None
                grid = "" if no_grid else f", scale {tensor['scale']:.6g}, zero point {tensor['zero_point']}"
                yield f"  {side[:-1]:<7} {tensor['name']}: {tensor['dtype']} {tensor['shape']}{grid}"
        named = {"VTCM": graph.get("vtcm_bytes"), **{use.replace("_", " "): n for use, n in graph["memory"].items()}}
        sizes = [f"{name} {_size(number)}" for name, number in named.items() if number is not None]
        yield f"  memory  {', '.join(sizes) or 'not stated'}"
        if (fits := graph.get("fits")) is not None:
            counted = f"{_size(fits['counted_bytes'])} of constants and operator data"
            limit = "what one graph may have on this architecture is not known"
            if fits["limit_bytes"] is not None:
                parts = "" if fits["ok"] else f": split it into {fits['parts']} graphs or more"
                source = "; ".join(fits["source"])
                limit = f"one graph may have {_size(fits['limit_bytes'])} ({source}){parts}"
            yield f"  limit   {counted}{', ' if fits['limit_bytes'] is not None else '; '}{limit}"
    for row in report.loads[:1]:
        yield f"loads     {row.status} ({row.confidence}): {row.note}"
    # The releases that load it are one range; the packages with the newest ones are named too.
    loading = [runtime for runtime in report.runtimes if str(runtime.status) == "supported"]
    if loading:
        yield f"runtimes  {loading[0].release} to {loading[-1].release}, of those in the tables"
    elif report.runtimes:
        yield "runtimes  none of the releases in the tables loads it"
    carriers = [f"{name} ({runtime.release})" for runtime in loading for name in runtime.carriers]
    if carriers:
        yield f"inside    {', '.join(carriers)}"


def _size(number: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number} B"
