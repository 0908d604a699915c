"""The command line: one module per command, imported only when the command is called."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from importlib import import_module
from io import TextIOWrapper

import click

from deploykit.cli.frame import Group, guarded, settings
from deploykit.cli.frame import run as run_command
from deploykit.errors import UsageError

__all__ = ["COMMANDS", "cli", "main", "version_lines"]

GROUPS = {
    "Make": {
        "package": "The main job: a model as a package for one device.",
        "check": "What stands in the way on a device; --plan shows the decision.",
        "build": "Run a package's own script, keep the log, record what it made.",
        "run": "A package on its device: judged there, and how fast.",
        "verify": "Judge a package: files, precision as intended, numbers.",
        "explain": "What is this package, rule, context binary, encodings?",
    },
    "Ask": {
        "compat": "Which SDK, tool and device has what, since when, says who.",
        "targets": "The devices that are known, with every fact and its source.",
        "diagnose": "Known failures in a log: cause, way out; --pack makes a case.",
        "doctor": "What this machine can do; --clear-cache.",
    },
    "Improve": {
        "quantize": "Encodings for a float model, by a real quantizer.",
        "accuracy": "What quantization costs: simulate, compare, layers, locate ...",
        "encodings": "Show, check, convert, diff, apply and extract encodings.",
    },
    "Many": {
        "matrix": "Many models times many devices, from one deploykit.toml.",
        "toolchain": "Isolated, pinned environments of the vendors' tools.",
        "demo": "The main job on an embedded example, no argument needed.",
    },
}
"""Every command with its line of help, so that --help imports no command module."""
COMMANDS = {name: words for group in GROUPS.values() for name, words in group.items()}

FORMER = {
    "plan": "check --plan",
    "options": "package --help-backend ID",
    "split": "package --parts N; several models over the same weights: deploykit.split() in Python",
    "audit": "check --kernels full",
    "rule": "explain CODE",
    "inspect": "explain FILE",
    "bundle": "diagnose --model MODEL --pack CASE.zip",
    "atlas": "compat op OPERATOR",
    "tables": "compat",
    "lpbq": "encodings convert MODEL --to lpbq",
    "simulate": "accuracy simulate",
    "evaluate": "accuracy compare",
    "sensitivity": "accuracy layers",
    "locate": "accuracy locate",
    "ladder": "accuracy ladder",
    "mix": "accuracy ladder --raise",
    "advise": "accuracy ladder FILE",
    "init": "matrix init",
    "cache": "doctor --clear-cache",
    "mcp": "python -m deploykit.cli.mcp (pip install 'deploykit[mcp]')",
}
"""Commands of earlier releases, each with its replacement."""

_EXAMPLES = """\b
deploykit package model.onnx --target sm8650 --sdk 2.33 -o out
deploykit package model.onnx --target sm8650 --precision w8a16 --calibration images -o out
deploykit check model.onnx --target sm8650 --encodings model.encodings
deploykit compat lpbq --sdk 2.33"""


class _LazyGroup(Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of the documentation."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module; None for an unknown command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"deploykit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a line. A former command is answered with its new name, a mistyped one with the
        nearest names.
        """
        name = args[0] if args else ""
        if name in FORMER and not ctx.resilient_parsing:
            new = FORMER[name]
            raise UsageError(f"'deploykit {name}' is now: {'' if new.startswith('python') else 'deploykit '}{new}")
        if name and not name.startswith("-") and name not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = " or ".join(f"'{known}'" for known in get_close_matches(name, COMMANDS, n=2))
            ctx.fail(f"No such command '{name}'.{f' Did you mean {near}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands by purpose, without importing them."""
        del ctx
        width = max(map(len, COMMANDS))
        for title, rows in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), words) for name, words in rows.items()])


def _show_version(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo("\n".join(version_lines() if settings().verbosity > 0 else version_lines()[:1]))
        context.exit()


def version_lines() -> list[str]:
    """The lines of ``deploykit --version -v``, for a report of a defect: no path, no name of a person."""
    import platform
    from importlib.metadata import PackageNotFoundError, entry_points, requires, version

    lines = [
        f"deploykit {version('deploykit')}",
        f"python {platform.python_version()} ({platform.python_implementation()})",
        f"machine {platform.system()} {platform.release()} {platform.machine()}",
    ]
    wanted = (line for line in requires("deploykit") or () if not re.search(r"extra == .(dev|docs|test)", line))
    for name in sorted({re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted} - {"deploykit"}):
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    for point in sorted(entry_points(group="deploykit.backends"), key=lambda point: point.name):
        dist = f" ({point.dist.name} {point.dist.version})" if point.dist else ""
        lines.append(f"backend {point.name}{dist}")
    return lines


@click.group(
    cls=_LazyGroup,
    help="Turn one ONNX model into a package that is right for one device and one exact SDK version, or a precise no."
    f"\n\n{_EXAMPLES}",
    epilog="Exit status: 0 done; 1 the answer is no; 2 wrong usage; 3 unreadable input; 4 unknown target, SDK or table;"
    " 5 a vendor tool or environment failed; 6 the package is damaged or could not be written; 70 a defect.",
)
@click.option("--version", is_flag=True, expose_value=False, callback=_show_version, help="Show it; more with -v.")
def cli() -> None:
    """The root of all commands."""


def main() -> None:
    """The entry point ``deploykit``."""
    # NumPy's threads spin after each small product; with one of them sums are the same on every machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A letter that a terminal or a pipe lacks is written as its number instead of failing.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(guarded(partial(run_command, cli)))
