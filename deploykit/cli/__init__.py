"""The command line: one small module per command, imported only when the command is called."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from io import TextIOWrapper

import click

from deploykit.cli.frame import Group, run, settings, show_crash
from deploykit.cli.guarding import guarded

__all__ = ["COMMANDS", "cli", "main", "version_lines"]

COMMANDS = {
    "package": "Check, plan, render, write and verify a package for one target: the main job.",
    "plan": "The same decision, nothing written: route, commands, findings.",
    "check": "Findings only, as text, JSON or SARIF.",
    "build": "Run a package's own script, keep the log, record the artifacts.",
    "verify": "Judge a package: hashes, schemas, intended against actual precision.",
    "explain": "A package in words: what was decided and why, what was changed, what is open.",
    "audit": "Every kernel of a model by itself, over its whole grid: right, wrong, narrowed, refused.",
    "diagnose": "Known failures in a vendor log: cause, way out, source.",
    "compat": "Which SDK, tool, architecture and device has what, since when, says who.",
    "targets": "The device database.",
    "encodings": "Show, check, convert, diff, apply and extract quantization encodings.",
    "lpbq": "Turn block quantization into LPBQ, with the loss per weight.",
    "split": "Models over the same weights in parts, each a model of its own.",
    "quantize": "Encodings for a float model, by a quantizer on calibration data.",
    "simulate": "Quantized inference as the encodings define it, against the float model.",
    "sensitivity": "What quantizing each layer and each tensor costs: where the precision goes.",
    "mix": "The fewest layers in a wider type that reach a goal, as new encodings.",
    "ladder": "Every precision of a float model measured, explained, and the next step taken.",
    "advise": "What accuracies at several precisions say, and the next step.",
    "locate": "The first operator at which two executions of a model diverge.",
    "evaluate": "Cosine, L2, PSNR, SSIM, SQNR over two sets of outputs.",
    "inspect": "What a compiled context binary is for, and whether it will load.",
    "rule": "The page of one rule, or the list.",
    "options": "What package, plan and check take, and whose option it is.",
    "bundle": "A failing case as one file for a report, without weights and names of people.",
    "doctor": "What this machine can do: SDKs, wheels, compilers, devices.",
    "toolchain": "Isolated, pinned environments for the vendors' quantizers.",
    "init": "A deploykit.toml for a folder of models.",
    "cache": "What is kept between runs, its size, clearing it.",
    "matrix": "Many models times many targets, from one deploykit.toml.",
    "mcp": "The commands that only read, for agents and editors.",
    "demo": "The main job on an embedded example, no argument needed.",
}
"""Every command with its one line of help, so that --help imports no command module."""


class _LazyGroup(Group):
    """Finds a command's module by name; a command without a module does not exist."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands that this installation has, in the order of the documentation."""
        del ctx
        return [name for name in COMMANDS if _has_module(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, or only its line of help while --help is being printed."""
        del ctx
        if cmd_name not in COMMANDS or not _has_module(cmd_name):
            return None
        command = import_module(f"deploykit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; of a mistyped one the nearest is named."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], known, n=2)
            words = " or ".join(f"'{name}'" for name in near)
            ctx.fail(f"No such command '{args[0]}'.{f' Did you mean {words}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        rows = [(name, COMMANDS[name]) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _has_module(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(f"deploykit.cli.{name}") is not None


def _version() -> str:
    from importlib.metadata import version

    return version("deploykit")


def _show_version(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo("\n".join(version_lines() if settings().verbosity > 0 else version_lines()[:1]))
        context.exit()


def version_lines() -> list[str]:
    """What ``deploykit --version -v`` says, by lines, the tool itself first. No path, no name of anybody."""
    return [f"deploykit {_version()}", *(f"{name} {found}" for name, found in _surroundings())]


def _surroundings() -> Iterator[tuple[str, str]]:
    """What a report of a defect needs besides: machine, Python, versions of what it stands on. No path, no name."""
    import platform
    from importlib.metadata import PackageNotFoundError, entry_points, requires, version

    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "machine", f"{platform.system()} {platform.release()} {platform.machine()}"
    wanted = (line for line in requires("deploykit") or () if not re.search(r"extra == .(dev|docs|test)", line))
    needed = (re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted)
    for name in sorted(set(needed) - {"deploykit"}):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
    for point in sorted(entry_points(group="deploykit.backends"), key=lambda point: point.name):
        yield "backend", f"{point.name} ({point.dist.name} {point.dist.version})" if point.dist else point.name


@click.group(cls=_LazyGroup)
@click.option("--version", is_flag=True, expose_value=False, callback=_show_version, help="Show it; more with -v.")
def cli() -> None:
    """Turn one ONNX model into a package that is right for one device and one exact SDK version, or a precise no.

    Exit status: 0 done; 1 the answer is no; 2 wrong usage; 3 unreadable input; 4 unknown target, SDK or table;
    5 a vendor tool or environment failed; 6 the package is damaged or could not be written; 70 a defect.
    """


def main() -> None:
    """The entry point ``deploykit``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal or a pipe that lacks a letter gets its number: that is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(guarded(lambda: run(cli), show_crash))
