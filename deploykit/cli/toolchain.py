"""``deploykit toolchain``: list, install and remove the isolated environments of the vendors' tools."""

from __future__ import annotations

import click

from deploykit.backend.plugins import device_named, load_backend, load_backends
from deploykit.cli.frame import Group
from deploykit.cli.options import flag, option
from deploykit.cli.terminal import emit, progress, table
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.system.environments import environment_of, toolchains_root
from deploykit.system.installing import install, remove
from deploykit.system.specs import ToolchainSpec, select

__all__ = ["command", "known_toolchains"]


def known_toolchains() -> tuple[ToolchainSpec, ...]:
    """The toolchains of all installed backends, each once."""
    return tuple({spec.id: spec for backend in load_backends() for spec in backend.toolchains()}.values())


@click.group(cls=Group)
def command() -> None:
    """Isolated, pinned environments for the vendors' quantizers.

    They live in the user's cache folder (XDG_CACHE_HOME is honoured), or where DEPLOYKIT_TOOLCHAINS says.
    """


@command.command("list")
def list_() -> None:
    """Every known toolchain with its state and size on disk."""
    states = [environment_of(spec).state() for spec in known_toolchains()]
    rows = [
        (
            state.spec.id,
            f"{state.state}: {state.detail}" if state.detail else state.state,
            f"{state.size_mb} MiB" if state.size_mb else f"needs {state.spec.disk_mb} MiB",
            state.spec.summary,
        )
        for state in states
    ]
    shown = table(rows, header=("toolchain", "state", "size", "what it is"))
    emit({"root": str(toolchains_root()), "toolchains": states}, shown)


@command.command("install")
@click.argument("name", metavar="[NAME[==VERSION]]", required=False)
@option("--target", "DEVICE", "The version that packaging for this device wants.")
@option("--sdk", "VERSION", "Of the target; default: the newest.")
@flag("--anew", "Delete what is there first.")
def install_(name: str | None, target: str | None, sdk: str | None, anew: bool) -> None:
    """Install one toolchain; started again after a failure, it goes on where it stopped.

    With --target it is the version that packages for that device use, which need not be the newest.
    """
    spec = _asked(name, target, sdk)
    with progress() as show:
        state = install(spec, show, anew=anew, waiting=show.say)
    emit(state, f"{spec.id} is ready: {state.path} ({state.size_mb} MiB)")


@command.command("remove")
@click.argument("name", metavar="NAME[==VERSION]")
def remove_(name: str) -> None:
    """Delete one toolchain from disk."""
    spec = select(known_toolchains(), name)
    removed = remove(spec)
    emit(
        {"name": spec.name, "version": spec.version, "removed": removed},
        f"{spec.id} {'is gone' if removed else 'was not installed'}",
    )


def _asked(name: str | None, target: str | None, sdk: str | None) -> ToolchainSpec:
    """The toolchain of a name; with a target, the one that packaging for
    it needs. Raises UsageError if this is unclear.
    """
    if target is None:
        if name is None or sdk is not None:
            raise UsageError("which toolchain?", next="give NAME, or --target DEVICE; --sdk belongs to a target")
        return select(known_toolchains(), name)
    device = device_named(target)
    wanted = [
        select(known_toolchains(), toolchain)
        for backend in map(load_backend, device.backends)
        for toolchain in backend.wanted_toolchains(backend.resolve(device, sdk))
    ]
    specs = tuple({spec.id: spec for spec in wanted}.values())
    if not specs:
        raise UsageError(f"--target {device.id}: packaging for it wants no toolchain", next="leave --target out")
    if name is None and len(specs) > 1:
        raise UsageError(f"--target {device.id}: several", next=f"name one: {', '.join(spec.id for spec in specs)}")
    try:
        return specs[0] if name is None else select(specs, name)
    except UnknownTargetError:
        offered = ", ".join(spec.id for spec in specs)
        raise UnknownTargetError(f"--target {device.id}: packaging for it wants {offered}, not {name}") from None
