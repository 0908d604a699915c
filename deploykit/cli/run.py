"""``deploykit run``: runs a package on its device."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.cli.diagnose import diagnosis_text
from deploykit.cli.frame import Command
from deploykit.cli.options import argument, flag, option, path
from deploykit.cli.terminal import emit, plain, progress
from deploykit.report.for_ci import junit_text, run_cases
from deploykit.system.files import write_files

if TYPE_CHECKING:
    from deploykit.devices.record import RunRecord
    from deploykit.devices.run import RunReport

__all__ = ["command"]

_DEAREST = 5
_LAST_LINES = 12


@click.command(cls=Command)
@argument("package")
@option("--on", "WHERE", "local, adb[:SERIAL], ssh://user@host[:port], or a name.", required=True)
@path("--data", "DATA", "Samples instead of the package's own.")
@option("--iterations", None, "Timed runs.", type=click.IntRange(0, 1_000_000), default=100, show_default=True)
@option("--warmup", None, "Runs before them.", type=click.IntRange(0, 100_000), default=10, show_default=True)
@option("--seconds", None, "Most that they take.", type=click.FloatRange(0.1, 3600), default=10, show_default=True)
@option("--power", None, "Instead of what the package says.", type=click.Choice(["burst", "balanced", "saver"]))
@click.option("--profile/--no-profile", default=True, help="Times of operators, in a run of their own. Default: yes.")
@option("--max-p90", "TIME", "A budget, such as 5ms: exit status 1 beyond it.", default="")
@path("--against", "RUN", "A record or package: is this faster?")
@option("--python", "PATH", "The Python on the device. Default: python3.", default="")
@flag("--keep", "Leave the run's folder on the device.")
@path("--junit", "FILE", "Write what a CI server shows as JUnit.")
@path("--draft", "FOLDER", "Draft the file of an unknown chip here.")
@path("--file", None, "Where devices have names.", default="deploykit.toml")
def command(package: Path, junit: Path | None, draft: Path | None, **given: Any) -> int:
    """Run PACKAGE on a device: its outputs are judged there, its time is measured, its dearest operators are named.

    \b
    deploykit run out --on adb
    deploykit run out --on ssh://user@board --max-p90 5ms --json
    """
    with progress() as tell:
        report = api.run(package, progress=tell, **{**given, "power": given["power"] or ""})
    if junit is not None:
        write_files({junit: junit_text("deploykit run", {package.name: run_cases(report.to_json())})}, force=True)
    chip = "" if report.record is None else _unknown_chip(report.record, draft)
    emit(report, lambda: _text(report, keep=given["keep"]) + chip)
    return report.exit_status


def _unknown_chip(record: RunRecord, folder: Path | None) -> str:
    """A line about a chip that no table has, whose file is written with ``--draft``; "" for a known chip."""
    from deploykit.backend.plugins import load_backend
    from deploykit.devices.places import draft_device

    text = draft_device(record.device, load_backend(record.backend), record.target)
    if not text:
        return ""
    advice = "--draft FOLDER writes a file for it"
    if folder is not None:
        path = folder / f"{tomllib.loads(text)['id']}.toml"
        folder.mkdir(parents=True, exist_ok=True)
        write_files({path: text}, force=False)
        advice = f"its file is drafted: {path}; with DEPLOYKIT_DEVICES={folder} it is known"
    return f"\n{'chip':<10} no table has {plain(record.device.soc)}; {advice}"


def _text(report: RunReport, *, keep: bool) -> str:
    record = report.record
    if record is None:
        lines = [plain(line) for line in report.said[-_LAST_LINES:]]
        if report.diagnosis is not None:
            lines += ["", diagnosis_text(report.diagnosis)]
        return "\n".join([*lines, f"the program on the device failed (status {report.status}); nothing was recorded"])
    place = {"device": "on the device", "emulator": "on the emulator"}.get(record.where, "on this machine's processor")
    rows = [("right", plain(f"{record.right}, {place}"))]
    if record.emulator is not None:
        rows.append(("emulator", plain(f"{record.emulator}, when it was packaged")))
    for output in record.outputs:
        if output.parts:
            told = f"{output.output}: {output.device_db} dB here, {output.emulator_db} dB on the emulator"
            rows.append(("parts", plain(told)))
    if record.latency is not None:
        rows.append(("latency", record.latency.described))
        if not record.times_mean_something:
            rows.append(("", "these times mean nothing: no device computed this"))
    if record.init_us is not None:
        memory = "" if record.peak_mb is None else f", {record.peak_mb:,.0f} MiB at most"
        rows.append(("start", f"{record.init_us / 1000:,.1f} ms{memory}"))
    heat = [f"{value:.0f}" for value in (record.device.temperature, record.temperature_after) if value is not None]
    warm = f", {' to '.join(heat)} °C" if heat else ""
    rows.append(("device", plain(f"{record.device.name}{warm}")))
    if record.units:
        rows.append(("nodes", ", ".join(f"{count} on {unit}" for unit, count in record.units.items())))
    dearest = sorted(record.operators, key=lambda one: -one.value)[:_DEAREST]
    guessed = {row.node: row.estimated_cycles for row in record.estimate if row.estimated_cycles is not None}
    for one in dearest:
        beside = f" (the compiler's estimate: {guessed[one.node]:,.0f})" if one.node in guessed else ""
        rows.append(("dearest", plain(f"{one.node or one.raw}: {one.value:,.0f} {one.unit}{beside}")))
    if record.budget is not None:
        held = "held" if record.budget["held"] else "missed"
        rows.append(("budget", f"{held}: p90 of at most {record.budget['p90_us'] / 1000:g} ms was asked"))
    if record.against is not None:
        rows.append(("against", f"{record.against.words} (A is this run)"))
    rows.append(("record", report.path))
    if keep:
        rows.append(("kept", plain(f"{record.device.folder}, on the device")))
    return "\n".join(f"{name:<10} {words}" for name, words in rows)
