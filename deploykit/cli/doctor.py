"""``deploykit doctor``: what this machine can do."""

from __future__ import annotations

from collections.abc import Iterator

import click

from deploykit.answers.machine import examine
from deploykit.backend.plugins import backend_ids, load_backend
from deploykit.backend.probes import CheckLine
from deploykit.cli.frame import Command
from deploykit.cli.progress import progress
from deploykit.cli.terminal import emit
from deploykit.cli.toolchain import known_toolchains
from deploykit.errors import DeploykitError
from deploykit.system.environments import environment_of
from deploykit.system.store import Room, cache_folder, clear, limit, rooms

__all__ = ["command"]

_COLORS = {"ok": "green", "problem": "red", "absent": "yellow"}


@click.command("doctor", cls=Command)
@click.option("--clear-cache", is_flag=True, help="Delete what is kept between runs; that costs time and no more.")
def command(clear_cache: bool) -> int:
    """Look for SDKs, their tools, compilers, devices, Python packages that load, toolchains and room on the disk.

    Exit status 1 when something that is there does not work; what is absent is listed with how to get it.
    """
    if clear_cache:
        gone = clear()
        text = f"{sum(room.entries for room in gone)} entries, {_megabytes(gone)} are gone from {cache_folder()}"
        emit({"folder": str(cache_folder()), "cleared": [room.to_json() for room in gone]}, text)
        return 0
    lines: list[CheckLine] = []
    backends = []
    with progress() as show:
        show("looking at this machine")
        for name in backend_ids():
            try:
                backends.append(load_backend(name))
            except DeploykitError as error:
                lines.append(_broken(name, error))
        lines = [*examine(backends), *lines, *_toolchains(), _cache()]
    problems = sum(line.state == "problem" for line in lines)
    emit(
        {"ok": not problems, "lines": [line.to_json() for line in lines]},
        lambda: "\n".join([*(_text(line) for line in lines), f"{problems} problems" if problems else "no problem"]),
    )
    return int(problems > 0)


def _broken(name: str, error: DeploykitError) -> CheckLine:
    return CheckLine(id=f"backend:{name}", state="problem", detail=f"{error.what}: {error.why}", next=error.next)


def _cache() -> CheckLine:
    """What is kept between runs, by kind."""
    kept = rooms()
    words = ", ".join(f"{room.kind} {room.entries}" for room in kept) or "nothing"
    return CheckLine(
        id="cache",
        state="ok",
        detail=f"{_megabytes(kept)} of at most {limit() / 1e6:,.0f} MB in {cache_folder()}: {words}",
        facts={"folder": str(cache_folder()), "limit": limit(), "kinds": [room.to_json() for room in kept]},
    )


def _megabytes(kept: tuple[Room, ...]) -> str:
    return f"{sum(room.bytes for room in kept) / 1e6:,.1f} MB"


def _toolchains() -> Iterator[CheckLine]:
    try:
        specs = known_toolchains()
    except DeploykitError as error:
        yield _broken("toolchains", error)
        return
    for spec in specs:
        state = environment_of(spec).state()
        ready, absent = state.state == "ready", state.state == "absent"
        yield CheckLine(
            id=f"toolchain:{spec.name}-{spec.version}",
            state="ok" if ready else "absent" if absent else "problem",
            detail=f"{state.state}{f': {state.detail}' if state.detail else ''}",
            next="" if ready else f"deploykit toolchain install {spec.id}",
            facts={"path": str(state.path), "size_mb": state.size_mb},
        )


def _text(line: CheckLine) -> str:
    word = click.style(f"{line.state:<8}", fg=_COLORS[line.state], bold=line.state == "problem")
    advice = f"\n         next: {line.next}" if line.next else ""
    return f"{word} {line.id}: {line.detail}{advice}"
