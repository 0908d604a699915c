"""The common parts of all commands: global options, settings, exit
statuses, signals, and the child process they run in.

It knows no command and imports nothing heavy.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import click
from msgspec import Struct

from deploykit.cli.terminal import defused
from deploykit.errors import DefectError, DeploykitError, InputError, PackageError, ToolError, UsageError
from deploykit.system.limits import VARIABLE as MEMORY
from deploykit.system.limits import with_memory

__all__ = ["BranchingCommand", "Command", "Group", "guarded", "run", "settings"]

_ENV = "DEPLOYKIT"  # the environment variables of all options begin with it
_NO_CACHE = f"{_ENV}_NO_CACHE"
_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EDQUOT})
_DEVICES = "'deploykit targets' lists the devices"
_ADVICE = {
    "target": _DEVICES,
    "targets": _DEVICES,
    "out": "name a folder that does not exist yet: -o out",
    # Options of earlier releases with a name unlike any current one.
    "--audit": "it is now --kernels",
    "--preflight": "it is now --second-opinion, which is on by default",
}
_LONG_WORD = re.compile(r"(\S{60})\S{80,}(\S{60})")  # more than a line of a terminal, which nobody reads
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Settings(Struct, kw_only=True):
    """The global options of this call. ``verbosity`` is 0, rises with -v and falls with -q."""

    json: bool = False
    verbosity: int = 0


def settings() -> Settings:
    """The settings of the running command; the defaults outside of one."""
    context = click.get_current_context(silent=True)
    return context.ensure_object(Settings) if context is not None else Settings()


def _remember(context: click.Context, param: click.Parameter, value: Any) -> None:
    """Stores a global option in the settings, or where the code that uses it looks."""
    known = context.ensure_object(Settings)
    match param.name:
        case "json":
            known.json |= value
        case "verbose":
            known.verbosity += value
        case "quiet":
            known.verbosity -= value
        case "no_color" if value:
            context.color = False
        case "no_cache" if value and _NO_CACHE not in os.environ:
            # The store reads this variable, also in child processes.
            os.environ[_NO_CACHE] = "1"
            context.call_on_close(lambda: os.environ.pop(_NO_CACHE, None))
        case "memory" if value is not None:
            context.with_resource(with_memory(value))


class Command(click.Command):
    """A command that also takes the global options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {}).setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **kwargs)
        flag, count, size = {"is_flag": True}, {"count": True}, {"metavar": "SIZE"}
        rows = (
            (["--json"], f"{_ENV}_JSON", "Machine-readable output on stdout, nothing else there.", flag),
            # Eager, so that it is known before --version, which prints more with it.
            (["-v", "--verbose"], f"{_ENV}_VERBOSE", "Say more.", {**count, "is_eager": True}),
            (["-q", "--quiet"], f"{_ENV}_QUIET", "Say less.", count),
            (["--no-color"], [f"{_ENV}_NO_COLOR", "NO_COLOR"], "Plain text.", flag),
            (["--no-cache"], _NO_CACHE, "Take and keep nothing between runs.", flag),
            (["--memory"], MEMORY, "What simulations may take, such as 3G. Default: 60 % of what is free.", size),
        )
        self.params += [
            click.Option(flags, callback=_remember, expose_value=False, envvar=envvar, help=words, **shape)
            for flags, envvar, words, shape in rows
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses an option with a single value that is given twice: click would silently take the last one."""
        order = self.make_parser(ctx).parse_args(args=list(args))[2]
        for one in order:
            many = not isinstance(one, click.Option) or one.multiple or one.is_flag or one.count
            if not many and order.count(one) > 1 and not ctx.resilient_parsing:
                raise UsageError(f"{one.opts[-1]}: given twice", next="give it once")
        return super().parse_args(ctx, args)


class BranchingCommand(Command):
    """A command whose first word may name another command, such as ``matrix init`` beside ``matrix FILE``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.branches: dict[str, click.Command] = {}

    def branch(self, command: click.Command) -> click.Command:
        """Add a command under its own name."""
        self.branches[str(command.name)] = command
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the branch that the first word names, else of the command itself."""
        name = args[0] if args else ""
        chosen = self.branches.get(name)
        if chosen is None and name.removeprefix("--") in self.branches:  # some branches were options once
            raise click.UsageError(f"{name}: it is now 'deploykit {info_name} {name.removeprefix('--')}'")
        if chosen is None:
            return super().make_context(info_name, args, parent, **extra)
        extra["auto_envvar_prefix"] = f"{_ENV}_{info_name}_{chosen.name}".upper()
        return chosen.make_context(f"{info_name} {chosen.name}", args[1:], parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, then the branches."""
        super().format_options(ctx, formatter)
        with formatter.section("Also"):
            formatter.write_dl(
                [(f"{ctx.command_path} {name}", one.get_short_help_str(90)) for name, one in self.branches.items()]
            )


class Group(Command, click.Group):
    """A group whose commands take the global options too."""

    command_class = Command


Group.group_class = Group


def _drop_output() -> None:
    """Keeps the interpreter from flushing what nobody takes, which would give it an exit status of its own."""
    with suppress(OSError):  # where it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(command: click.Command, args: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit status; only the interpreter's own interrupts are raised."""
    arguments = list(sys.argv[1:] if args is None else args)
    # A command creates hundreds of thousands of values that live until it ends, and few cycles: with Python's default
    # of 700 the collector takes a tenth of the time of reading tables.
    collecting = gc.get_threshold()
    gc.set_threshold(50_000, *collecting[1:])
    try:
        for argument in arguments:
            # Names that are not valid text cannot be written into a manifest or JSON.
            if any("\ud800" <= letter <= "\udfff" for letter in argument):
                shown = argument.encode("utf-8", "backslashreplace").decode()
                raise UsageError(f"{shown}: is not UTF-8", next="rename the file")
        with _ended_by_signals():
            result = command.main(arguments, prog_name="deploykit", standalone_mode=False, auto_envvar_prefix=_ENV)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        asked = getattr(error, "option_name", getattr(getattr(error, "param", ""), "name", ""))
        path = getattr(getattr(error, "ctx", None), "command_path", "deploykit")
        next_ = _ADVICE.get(asked, f"'{path} --help' shows how it is written")
        return _show_error(arguments, UsageError(error.format_message(), next=next_))
    except click.Abort as abort:
        if isinstance(abort.__cause__, EOFError):  # a file ended too early; click takes it for Ctrl-D
            return _show_defect(arguments, abort.__cause__)
        click.echo("interrupted", err=True)
        return 130
    except Ended as ended:
        click.echo(f"ended by {ended}", err=True)
        return ended.exit_status
    except BrokenPipeError:
        _drop_output()  # the reader left (`| head`) and has read what it wanted
        return 0
    except DeploykitError as error:
        return _show_error(arguments, error)
    except MemoryError:
        return _show_error(arguments, InputError("this takes more memory than there is"))
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = str(error.filename or "a name")
            long = f"{name[:60]}…: no file has so long a name"
            return _show_error(arguments, InputError(long, why=error.strerror or "", next="name a file that exists"))
        if isinstance(error, FileNotFoundError) and _is_nowhere():
            return _show_error(arguments, PackageError("the folder this runs in is gone", next="change to another"))
        if not isinstance(error, OSError) or error.errno not in _FULL:
            return _show_defect(arguments, error)
        # A disk that is full or read-only is not a defect, wherever the file is.
        file = error.filename2 or error.filename or "the output, or a file of the work in progress"
        why = error.strerror or str(error)
        next_ = "make room there; TMPDIR and DEPLOYKIT_CACHE say where else work and what is kept may lie"
        status = _show_error(arguments, PackageError(f"{file}: cannot be written", why=why, next=next_))
        _drop_output()
        return status
    finally:
        gc.set_threshold(*collecting)
    return result if isinstance(result, int) else 0


def _is_nowhere() -> bool:
    """True if the working folder of this process was removed."""
    try:
        os.getcwd()  # noqa: PTH109 (the call fails if the folder is gone)
    except FileNotFoundError:
        return True
    return False


class Ended(BaseException):
    """The system asked the program to end; running work is undone on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP clean up like Ctrl-C, the first time; an ignored signal stays ignored (nohup)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    taken = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    came = list[int]()

    def end(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        for other in taken:
            signal.signal(other, signal.SIG_DFL)
        raise Ended(number)

    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except Exception as error:
        # A library that is interrupted during an import raises ImportError,
        # or turns an unexpected exception into its own.
        if came:
            raise Ended(came[0]) from error
        raise
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _show_error(arguments: Sequence[str], error: DeploykitError) -> int:
    shown = _LONG_WORD.sub(r"\1…\2", defused(str(error)))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {shown}", err=True)
    # With --json an error is also a JSON value on stdout, so that programs need not read prose.
    if "--json" in arguments or os.environ.get("DEPLOYKIT_JSON"):
        told = {"what": error.what, "why": error.why, "next": error.next, "exit_status": error.exit_status}
        with suppress(OSError):  # there may be no room for this output either
            click.echo(json.dumps({"schema": 1, "error": told}))
    return error.exit_status


def _show_defect(arguments: Sequence[str], error: Exception) -> int:
    what = f"a defect of deploykit: {type(error).__name__}: {error}"
    _show_error(arguments, DefectError(what, next="please report it, with the output of the same call and -v"))
    if os.environ.get("DEPLOYKIT_DEBUG") or {"-v", "--verbose"} & set(arguments):
        traceback.print_exception(error)
    return 70


CRASHES = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})
"""The signals by which code crashes its own process."""
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def guarded(work: Callable[[], int]) -> int:
    """Runs ``work`` in a child process and returns its exit status; reports a library that crashed it.

    Call it before any thread starts. If no child process can be had, ``work`` runs in this process.
    """
    if not sys.platform.startswith("linux") or threading.active_count() > 1:
        return work()
    watched = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD}
    # The parent may have this signal ignored; then no child could be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    restore = partial(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, watched))
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # the user may have reached the limit of processes
        restore()
        return work()
    if child == 0:
        # The system kills this process when its parent dies, in any way; it exits now if that has happened.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        restore()
        status = work()
        # Else Python would look for cycles among all that is left, twice, before it lets go of it.
        gc.freeze()
        return status
    done = 0
    while not done:
        found = signal.sigwaitinfo(watched)
        if found.si_signo == signal.SIGCHLD:
            done, status = os.waitpid(child, os.WNOHANG)
        elif found.si_code <= 0:  # sent by a process; a signal from the terminal reaches the child as well
            os.kill(child, found.si_signo)
    restore()
    if (code := os.waitstatus_to_exitcode(status)) >= 0:
        return code
    # The child was ended by a signal: a crash is reported, any other signal ends this process in the same way.
    by = signal.Signals(-code)
    if by in CRASHES:
        error = ToolError(
            f"a library that deploykit calls ended the process ({by.name})",
            why="onnx and ONNX Runtime do that at some damaged models, and what they print stands above",
            next="export the model again; if onnx.checker.check_model(path) finds no fault, please report it",
        )
        return _show_error(sys.argv[1:], error)
    with suppress(OSError):  # the handler of SIGKILL cannot be set
        signal.signal(by, signal.SIG_DFL)
    os.kill(os.getpid(), by)
    return 128 + by
