"""What every command shares: global options before and after the command name, settings, exit statuses.

It knows no command and imports nothing heavy.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from deploykit.cli.endings import Ended, ended_by_signals
from deploykit.cli.plain import defused
from deploykit.errors import DeploykitError, PackageError, ToolError, UsageError
from deploykit.system.collecting import collecting_seldom
from deploykit.system.memory import VARIABLE as MEMORY
from deploykit.system.memory import with_memory

__all__ = ["Command", "Group", "Settings", "run", "settings", "show_crash"]


_ENV = "DEPLOYKIT"
"""What the environment variables of all options begin with."""
_NO_CACHE = f"{_ENV}_NO_CACHE"


@dataclass(slots=True, kw_only=True)
class Settings:
    """The global options of this call. ``verbosity`` is 0, rises with -v and falls with -q."""

    json: bool = False
    verbosity: int = 0
    color: bool = True


def settings() -> Settings:
    """The settings of the running command; the defaults outside of one."""
    context = click.get_current_context(silent=True)
    return context.ensure_object(Settings) if context is not None else Settings()


def _set_json(context: click.Context, _param: click.Parameter, value: bool) -> None:
    context.ensure_object(Settings).json |= value


def _set_verbosity(step: int) -> Callable[[click.Context, click.Parameter, int], None]:
    def change(context: click.Context, _param: click.Parameter, value: int) -> None:
        context.ensure_object(Settings).verbosity += step * value

    return change


def _set_color(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Settings).color = False
        context.color = False


def _set_no_cache(context: click.Context, _param: click.Parameter, value: bool) -> None:
    """For this call only: whoever keeps something between runs asks the variable, also in the processes started."""
    before = os.environ.get(_NO_CACHE)
    if value and before is None:
        os.environ[_NO_CACHE] = "1"
        context.call_on_close(lambda: os.environ.pop(_NO_CACHE, None))


def _set_memory(context: click.Context, _param: click.Parameter, value: str | None) -> None:
    """For this call only, and for the processes that it starts."""
    if value is not None:
        context.with_resource(with_memory(value))


def _global_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=_set_json,
            envvar="DEPLOYKIT_JSON",
            help="Machine-readable output on stdout, nothing else there.",
        ),
        click.Option(
            ["-v", "--verbose"],
            count=True,
            # Before --version, which says more with it.
            is_eager=True,
            expose_value=False,
            callback=_set_verbosity(1),
            envvar="DEPLOYKIT_VERBOSE",
            help="Say more; tracebacks of defects.",
        ),
        click.Option(
            ["-q", "--quiet"],
            count=True,
            expose_value=False,
            callback=_set_verbosity(-1),
            envvar="DEPLOYKIT_QUIET",
            help="Say less.",
        ),
        click.Option(
            ["--no-color"],
            is_flag=True,
            expose_value=False,
            callback=_set_color,
            envvar=["DEPLOYKIT_NO_COLOR", "NO_COLOR"],
            help="Plain text, no colours.",
        ),
        *_options_of_work(),
    ]


def _options_of_work() -> list[click.Parameter]:
    """What a call may keep and take."""
    return [
        click.Option(
            ["--no-cache"],
            is_flag=True,
            expose_value=False,
            callback=_set_no_cache,
            envvar=_NO_CACHE,
            help="Take nothing from earlier runs, and keep nothing.",
        ),
        click.Option(
            ["--memory"],
            expose_value=False,
            callback=_set_memory,
            envvar=MEMORY,
            metavar="SIZE",
            help="What simulations may take, such as 3G; larger models run in parts. Default: 60 % of what is free.",
        ),
    ]


class Command(click.Command):
    """A command that also takes the global options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {}).setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options())


class Group(click.Group):
    """A group whose commands take the global options too."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {}).setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options())


Group.group_class = Group


def _advice(error: click.ClickException) -> str:
    """What the usage line does not tell: where the values of a missing option are listed."""
    wanted = error.param if isinstance(error, click.MissingParameter) else None
    return "'deploykit targets' lists the devices" if wanted is not None and wanted.metavar == "DEVICE" else ""


def run(command: click.Command, args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; no exception gets out but SystemExit-free interrupts."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        _check_text(arguments)
        with ended_by_signals(), collecting_seldom():
            result = command.main(arguments, prog_name="deploykit", standalone_mode=False, auto_envvar_prefix=_ENV)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        advice = _advice(error)
        if advice:
            click.echo(f"  next: {advice}", err=True)
        _show_json_error(arguments, what=error.format_message(), why="", next_=advice, status=2)
        return 2
    except click.Abort as abort:
        return _show_abort(arguments, abort)
    except Ended as ended:
        click.echo(f"ended by {ended}", err=True)
        return ended.exit_status
    except BrokenPipeError:
        # The reader left (`| head`): what was wanted has been read. Keep the interpreter from flushing into the void.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DeploykitError as error:
        return _show_error(arguments, error)
    except MemoryError:
        click.echo(f"{click.style('error:', fg='red', bold=True)} this takes more memory than there is", err=True)
        _show_json_error(arguments, what="this takes more memory than there is", why="", next_="", status=3)
        return 3
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in _FULL
        return _show_error(arguments, _no_room(error)) if full else _show_defect(arguments, error)
    return result if isinstance(result, int) else 0


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse names that are no text: they could be written into no manifest and no JSON."""
    for argument in arguments:
        if not argument.isascii() and any("\ud800" <= letter <= "\udfff" for letter in argument):
            shown = argument.encode("utf-8", "backslashreplace").decode()
            raise UsageError(f"{shown}: is not UTF-8", next="rename the file")


def _show_error(arguments: Sequence[str], error: DeploykitError) -> int:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {defused(str(error))}", err=True)
    _show_json_error(arguments, what=error.what, why=error.why, next_=error.next, status=error.exit_status)
    return error.exit_status


_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)})


def _no_room(error: Exception) -> PackageError:
    """A disk that is full, or may not be written to, is no defect, wherever the work that is written there lies."""
    named = [str(name) for name in (getattr(error, "filename2", None), getattr(error, "filename", None)) if name]
    return PackageError(
        f"{named[0] if named else 'the output, or a file of the work in progress'}: cannot be written",
        why=getattr(error, "strerror", None) or str(error),
        next="make room there; TMPDIR and DEPLOYKIT_CACHE say where else work and what is kept may lie",
    )


def show_crash(by: signal.Signals) -> int:
    """What is said of a library that ended the process; the exit status."""
    error = ToolError(
        f"a library that deploykit calls ended the process ({by.name})",
        why="onnx and ONNX Runtime do that at some damaged models, and what they print stands above",
        next="export the model again; if onnx.checker.check_model(path) finds no fault, please report it",
    )
    return _show_error(sys.argv[1:], error)


def _show_abort(arguments: Sequence[str], abort: click.Abort) -> int:
    """An interrupt; or a file that ended too early, which click takes for a user who left."""
    if isinstance(abort.__cause__, EOFError):
        return _show_defect(arguments, abort.__cause__)
    click.echo("interrupted", err=True)
    return 130


def _show_defect(arguments: Sequence[str], error: Exception) -> int:
    what = f"a defect of deploykit: {type(error).__name__}: {error}"
    click.echo(f"{click.style('error:', fg='red', bold=True)} {defused(what)}", err=True)
    click.echo("  next: please report it, with the output of the same call and -v", err=True)
    if os.environ.get("DEPLOYKIT_DEBUG") or {"-v", "--verbose"} & set(arguments):
        traceback.print_exc()
    _show_json_error(arguments, what=what, why="", next_="", status=70)
    return 70


def _show_json_error(arguments: Sequence[str], *, what: str, why: str, next_: str, status: int) -> None:
    """With --json an error is a JSON value on stdout as well, so that programs need not read prose."""
    if "--json" in arguments or os.environ.get("DEPLOYKIT_JSON"):
        error = {"what": what, "why": why, "next": next_, "exit_status": status}
        with suppress(OSError):  # there may be no room for it either
            click.echo(json.dumps({"schema": 1, "error": error}))
