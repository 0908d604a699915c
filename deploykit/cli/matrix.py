"""``deploykit matrix``: many models times many targets, from one deploykit.toml."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.cli.frame import BranchingCommand, Command, settings
from deploykit.cli.options import argument, flag, option, path
from deploykit.cli.terminal import emit, progress, table
from deploykit.errors import UsageError
from deploykit.system.jobs import Begun

if TYPE_CHECKING:
    from deploykit.fleet.results import CellResult, Results

__all__ = ["command"]

_MOST_WHY = 110
_COLORS = {"yes": "green", "not judged": "yellow", "no": "red", "failed": "red"}


@click.command("matrix", cls=BranchingCommand)
@argument("file", default=Path("deploykit.toml"))
@path("-o", "DIR", "The result folder.", "--out", default=Path("matrix"))
@option("--only", "PATTERN", "Cells, models or targets; * is allowed. Repeatable.", multiple=True)
@flag("--dry-run", "Only list the cells.")
@flag("--run", "Then run every package on the devices that FILE names.", "on_devices")
@flag("--fail-fast", "Start no new cell after one that is wrong or failed.")
@flag("--fresh", "Make every cell again, also those whose inputs did not change.")
@option("--processes", "N", "How many at a time. Default: one per processor.", type=click.IntRange(min=1))
@option("--time-limit", "SECONDS", "Per cell. Default: 3600.", type=click.FloatRange(min=1), default=3600)
@option("--max-time", "TIME", "5ms: exit status 1 where a model is estimated slower.", default="")
@option("--executor", "WHERE", "local, or dask://HOST:PORT (extra 'dask').", default="local")
@click.option(
    "--emit",
    "engine",
    type=click.Choice(["github-actions", "gitlab", "snakemake"]),
    help="Print the same matrix for that engine, and run nothing.",
)
@path("--diff", "OLD", "Compare the result folder with an older one.", "old")
def command(
    file: Path,
    out: Path,
    only: tuple[str, ...],
    dry_run: bool,
    on_devices: bool,
    engine: str | None,
    old: Path | None,
    **how: Any,
) -> int:
    """Package every model of FILE for every target, and write one page about all of them.

    A cell whose inputs did not change is not made again, so a run that stopped goes on where it was. Exit status 1
    when a cell is wrong or failed.

    \b
    deploykit matrix deploykit.toml -o results
    deploykit matrix --only 'yolo/*' --fail-fast
    deploykit matrix --diff last-week -o results
    """
    if sum((dry_run, engine is not None, old is not None)) > 1:
        raise UsageError("--dry-run, --emit and --diff exclude each other")
    from deploykit.fleet.running import select

    if dry_run:
        cells = select(file, only=only)
        rows = [(cell.id, cell.request.model.name, cell.request.target, cell.request.backend or "-") for cell in cells]
        listed = table(rows, header=("cell", "model", "device", "backend"))
        emit({"cells": cells}, f"{listed}\n{len(cells)} cells")
        return 0
    if engine is not None:
        click.echo(api.matrix_emit(engine, file, only=only), nl=False)
        return 0
    if old is not None:
        difference = api.matrix_diff(old, out)
        lines = []
        for change in difference.changes:
            word = click.style("worse", fg="red") if change.worse else click.style("other", fg="yellow")
            lines.append(f"{word}  {change.cell}: {'; '.join(change.what)}")
        lines += [f"gone   {cell}" for cell in difference.gone] + [f"new    {cell}" for cell in difference.new]
        emit(difference, "\n".join([*lines, f"{difference.same} cells as before"]))
        return difference.exit_status
    cells = select(file, only=only)
    if on_devices:  # checked now, not after hours of packaging
        from deploykit.devices.places import devices_in
        from deploykit.fleet.on_devices import device_targets

        device_targets(devices_in(file), {cell.id.partition("/")[2] for cell in cells})
    total, done = len(cells), 0
    with progress() as tell:

        def show(result: CellResult) -> None:
            """Prints a row above the line of progress, which counts the rows."""
            nonlocal done
            done += 1
            if not settings().json:
                word = click.style(f"{result.verdict!s:<10}", fg=_COLORS[str(result.verdict)])
                why = textwrap.shorten(result.why, _MOST_WHY, placeholder="…")
                tell.say(f"{word}  {result.cell}  {why}".rstrip())
            if done < total:
                tell(Begun(f"{done} of {total} cells are done"))

        def news(cell: str, line: str) -> None:
            tell(f"{cell}: {line}")

        results = api.matrix(file, out=out, only=only, progress=news, on_result=show, **how)
        runs = api.matrix_run(results, file, out=out, progress=news) if on_devices else ()
    told = {"runs": runs} if on_devices else {}
    there = "".join(f"\n{run.device:<12} {run.cell}  {run.words}" for run in runs)
    emit({**results.to_json(), **told}, lambda: _text(results, out) + there)
    return results.exit_status or int(any(run.exit_status for run in runs))


def _text(results: Results, out: Path) -> str:
    from deploykit.accuracy.latency import in_time
    from deploykit.fleet.pages import size_text

    rows = [
        (
            cell.cell,
            str(cell.verdict),
            cell.compiled or "-",
            "-" if cell.worst_db is None else f"{cell.worst_db:.1f} dB",
            size_text(cell.bytes) if cell.bytes else "-",
            "-" if cell.time_us is None else in_time(cell.time_us),
            "kept" if cell.cell in results.kept else f"{cell.seconds:.1f} s",
        )
        for cell in results.cells
    ]
    counts = ", ".join(f"{count} {word}" for word, count in results.counts.items() if count)
    not_run = f", {len(results.not_run)} not run" if results.not_run else ""
    shown = table(rows, header=("cell", "right", "compiled", "worst", "size", "estimate", "time"))
    slow = f"\nslower than {in_time(results.max_time_us)}: {', '.join(results.too_slow)}" if results.too_slow else ""
    return f"{shown}\n\n{counts}{not_run}{slow}\nresults    {out} (open matrix.html)"


@command.branch
@click.command("init", cls=Command)
@argument("folder", default=Path())
@option("--target", "DEVICE", "Device id or name; repeatable.", "targets", required=True, multiple=True)
@flag("--force", "Replace the deploykit.toml that stands there.")
def init_command(folder: Path, targets: tuple[str, ...], force: bool) -> None:
    """Write FOLDER/deploykit.toml: every model below FOLDER for every target, with what lies beside the models.

    \b
    deploykit matrix init models --target sm8650 --target vek385 && deploykit matrix models/deploykit.toml
    """
    file, scouted = api.init(folder, targets=targets, force=force)
    lines = []
    for model in scouted.models:
        beside = " and ".join(name for name in (model.encodings, model.calibration) if name)
        lines.append(f"{model.name}: {model.path}{f' with {beside}' if beside else ''}")
    lines += [f"left out: {name}: {why}" for name, why in scouted.skipped]
    lines.append(f"written to {file}; next: deploykit matrix {file}")
    emit({"file": str(file), **scouted.to_json()}, "\n".join(lines))
