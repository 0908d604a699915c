"""``deploykit toolchain``: list, install and remove the isolated environments of the vendors' tools."""

from __future__ import annotations

from collections.abc import Iterator

import click

from deploykit.cli.frame import Group
from deploykit.cli.output import emit, progress, table
from deploykit.contract.optional import HasToolchains
from deploykit.contract.plugins import load_backends
from deploykit.system import (
    ToolchainSpec,
    ToolchainState,
    environment_of,
    install,
    remove,
    select,
    toolchains_root,
)

__all__ = ["command", "known_toolchains"]


def known_toolchains() -> tuple[ToolchainSpec, ...]:
    """The toolchains of all installed backends, each once."""
    return tuple({spec.id: spec for spec in _offered()}.values())


def _offered() -> Iterator[ToolchainSpec]:
    for backend in load_backends():
        if isinstance(backend, HasToolchains):
            yield from backend.toolchains()


@click.group(cls=Group)
def command() -> None:
    """Isolated, pinned environments for the vendors' quantizers.

    They live in the user's cache folder (XDG_CACHE_HOME is honoured), or where DEPLOYKIT_TOOLCHAINS says.
    """


@command.command("list")
def list_() -> None:
    """Every known toolchain with its state and size on disk."""
    states = [environment_of(spec).state() for spec in known_toolchains()]
    emit({"root": str(toolchains_root()), "toolchains": [state.to_json() for state in states]}, lambda: _text(states))


@command.command("install")
@click.argument("name", metavar="NAME[==VERSION]")
@click.option("--anew", is_flag=True, help="Delete what is there first.")
def install_(name: str, anew: bool) -> None:
    """Install one toolchain; started again after a failure, it goes on where it stopped."""
    spec = select(known_toolchains(), name)
    with progress() as show:
        state = install(spec, show, anew=anew)
    emit(state.to_json(), f"{spec.id} is ready: {state.path} ({state.size_mb} MiB)")


@command.command("remove")
@click.argument("name", metavar="NAME[==VERSION]")
def remove_(name: str) -> None:
    """Delete one toolchain from disk."""
    spec = select(known_toolchains(), name)
    removed = remove(spec)
    emit({"name": spec.name, "version": spec.version, "removed": removed}, _removal(spec, removed))


def _removal(spec: ToolchainSpec, removed: bool) -> str:
    return f"{spec.id} is gone" if removed else f"{spec.id} was not installed"


def _text(states: list[ToolchainState]) -> str:
    rows = [
        (
            state.spec.id,
            f"{state.state}: {state.detail}" if state.detail else state.state,
            f"{state.size_mb} MiB" if state.size_mb else f"needs {state.spec.disk_mb} MiB",
            state.spec.summary,
        )
        for state in states
    ]
    return table(rows, header=("toolchain", "state", "size", "what it is"))
