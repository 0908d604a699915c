"""``deploykit doctor``: what this machine can do."""

from __future__ import annotations

import click

from deploykit.answers.machine import examine
from deploykit.backend.backend import AnyBackend
from deploykit.backend.plugins import backend_ids, load_backend
from deploykit.backend.probes import CheckLine
from deploykit.cli.frame import Command
from deploykit.cli.options import flag
from deploykit.cli.terminal import emit, progress
from deploykit.cli.toolchain import known_toolchains
from deploykit.errors import DeploykitError
from deploykit.system.environments import environment_of
from deploykit.system.specs import ToolchainSpec
from deploykit.system.store import Room, cache_folder, clear, limit, rooms

__all__ = ["command"]

_COLORS = {"ok": "green", "problem": "red", "absent": "yellow"}


@click.command("doctor", cls=Command)
@flag("--clear-cache", "Delete what is kept between runs; the next run takes longer.")
def command(clear_cache: bool) -> int:
    """Look for SDKs, tools, compilers, devices, Python packages, toolchains and disk space.

    Exit status 1 when something that is there does not work; what is absent is listed with how to get it.
    """
    if clear_cache:
        gone = clear()
        text = f"{sum(room.entries for room in gone)} entries, {_megabytes(gone)} are gone from {cache_folder()}"
        emit({"folder": str(cache_folder()), "cleared": gone}, text)
        return 0
    lines = list[CheckLine]()
    backends = list[AnyBackend]()
    specs: tuple[ToolchainSpec, ...] = ()
    with progress() as show:
        show("looking at this machine")
        for name in backend_ids():
            try:
                backends.append(load_backend(name))
            except DeploykitError as error:
                lines.append(_broken(f"backend:{name}", error))
        lines = [*examine(backends), *lines]
        try:
            specs = known_toolchains()
        except DeploykitError as error:
            lines.append(_broken("backend:toolchains", error))
        for spec in specs:
            found = environment_of(spec).state()
            lines.append(
                CheckLine(
                    f"toolchain:{spec.name}-{spec.version}",
                    state="ok" if found.state == "ready" else "absent" if found.state == "absent" else "problem",
                    detail=f"{found.state}{f': {found.detail}' if found.detail else ''}",
                    next="" if found.state == "ready" else f"deploykit toolchain install {spec.id}",
                    facts={"path": str(found.path), "size_mb": found.size_mb},
                )
            )
        kept = rooms()
        words = ", ".join(f"{room.kind} {room.entries}" for room in kept) or "nothing"
        detail = f"{_megabytes(kept)} of at most {limit() / 1e6:,.0f} MB in {cache_folder()}: {words}"
        facts = {"folder": str(cache_folder()), "limit": limit(), "kinds": kept}
        lines.append(CheckLine("cache", state="ok", detail=detail, facts=facts))
    problems = sum(line.state == "problem" for line in lines)

    def text_of(line: CheckLine) -> str:
        advice = f"\n         next: {line.next}" if line.next else ""
        word = click.style(f"{line.state:<8}", fg=_COLORS[line.state], bold=line.state == "problem")
        return f"{word} {line.id}: {line.detail}{advice}"

    told = [*map(text_of, lines), f"{problems} problem{'s' * (problems > 1)}" if problems else "no problem"]
    emit({"ok": not problems, "lines": lines}, "\n".join(told))
    return int(problems > 0)


def _broken(name: str, error: DeploykitError) -> CheckLine:
    return CheckLine(name, state="problem", detail=f"{error.what}: {error.why}", next=error.next)


def _megabytes(kept: tuple[Room, ...]) -> str:
    return f"{sum(room.bytes for room in kept) / 1e6:,.1f} MB"
