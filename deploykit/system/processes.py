"""Runs programs; no other module starts any. It does not interpret their output.

All children of a program end with it, and with this process however it ends: they form one process group, and a guard
process in that group waits for this process to end and then kills the whole group.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from deploykit.errors import ToolError
from deploykit.findings.records import Record, Tell
from deploykit.system.limits import limited_time, time_left, unbounded

__all__ = ["ONLY_INSTALLED", "ProgramEnd", "run"]

ONLY_INSTALLED: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}
"""For a Python started with ``-m`` or ``-c`` (3.11 and newer): it does not import from the current
folder, which may be beside an untrusted model.
"""

_TAIL_LINES = 400
_LONGEST_LINE = 1 << 20  # bytes; a line without an end would otherwise be held in memory completely
_WAITING_LINES = 1000  # read but not yet consumed; a program that writes faster has to wait
_LOOK_SECONDS = 0.1
_GRACE = 2.0  # seconds that an interrupted program has to clean up
# Reads until its pipe closes, which happens when the process at the other end ends; then kills its own group.
_GUARD = ("/bin/sh", "-c", "trap '' HUP INT TERM; read -r _; kill -s KILL 0", "deploykit-guard")


class ProgramEnd(Record, kw_only=False):
    """How a program ended. ``returncode`` is negative for a signal; ``tail`` holds the last lines of output.

    ``peak_rss_mb`` is the program's peak resident set size in MiB, None if the system does not report it; ``grown``
    means that it was ended because it exceeded its memory limit.
    """

    argv: tuple[str, ...]
    returncode: int
    tail: tuple[str, ...]
    seconds: float
    peak_rss_mb: float | None = None
    timed_out: bool = False
    grown: bool = False

    @property
    def ok(self) -> bool:
        """True if the program ended by itself with status 0."""
        return self.returncode == 0 and not self.timed_out and not self.grown


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    on_line: Tell | None = None,
    given: bytes | Path | None = None,
    held: bool = False,
    output: Path | None = None,
    memory: int | None = None,
) -> ProgramEnd:
    """Run a program to its end and pass its output line by line to ``on_line`` and ``log``.

    Standard error is merged into standard output; with ``output`` that file receives standard output unchanged, and
    only standard error is read. ``given`` is its standard input; if ``held``, the input stays open and empty until the
    program ends, so that a remote program notices when this process ends. ``env`` is added to the caller's environment.
    The program and its children are ended after ``timeout`` seconds, when the caller's time is up (``limited_time``),
    above ``memory`` bytes of resident memory (if the system reports it), when the program itself ends, and when this
    process does. None sets no limit. Raises ToolError if the program cannot be started.
    """
    started = time.monotonic()
    with limited_time(timeout), _group() as group, _input(given) as stdin, _output(output) as (stdout, stderr):
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE if held else stdin,
                stdout=stdout,
                stderr=stderr,
                process_group=group,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ToolError(f"{argv[0]}: cannot be started", why=why) from None
        unbounded(process.pid)
        told = process.stdout or process.stderr
        assert told is not None
        lines: queue.Queue[bytes | None] = queue.Queue(_WAITING_LINES)
        over = threading.Event()
        threading.Thread(target=_pump, args=(told, lines, over), daemon=True).start()
        try:
            tail, broken = _consume(lines, process.pid, memory, log, on_line)
            if broken:
                _signal(group, signal.SIGKILL)
            returncode, peak = _reap(process)
        except BaseException:
            _signal(group, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            _signal(group, signal.SIGKILL)
            _reap(process)
            raise
        finally:
            over.set()
            for pipe in (told, process.stdin):
                if pipe is not None:
                    pipe.close()
    return ProgramEnd(
        tuple(argv),
        returncode,
        tail=tuple(tail),
        seconds=time.monotonic() - started,
        peak_rss_mb=peak,
        timed_out=broken == "time",
        grown=broken == "memory",
    )


@contextlib.contextmanager
def _group() -> Iterator[int]:
    """Make a process group with a guard; at the end the whole group is killed."""
    # The guard starts before the program, so that the program is never unguarded.
    with subprocess.Popen(
        _GUARD, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as guard:
        try:
            yield guard.pid
        finally:
            _signal(guard.pid, signal.SIGKILL)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group may be gone already
        os.killpg(group, number)


@contextlib.contextmanager
def _input(given: bytes | Path | None) -> Iterator[Any]:
    if given is None:
        yield subprocess.DEVNULL
        return
    if isinstance(given, Path):
        with given.open("rb") as stored:
            yield stored
        return
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        yield file


@contextlib.contextmanager
def _output(file: Path | None) -> Iterator[tuple[Any, int]]:
    """Yield the targets of standard output and standard error."""
    if file is None:
        yield subprocess.PIPE, subprocess.STDOUT
        return
    with file.open("wb") as sink:
        yield sink, subprocess.PIPE


def _pump(stream: IO[bytes], lines: queue.Queue[bytes | None], over: threading.Event) -> None:
    line: bytes | None = b""
    while line is not None:
        try:
            line = stream.readline(_LONGEST_LINE) or None
        except ValueError:
            line = None  # the stream was closed after the program was ended
        while not over.is_set():
            with contextlib.suppress(queue.Full):
                lines.put(line, timeout=_LOOK_SECONDS)
                break
        else:
            return


def _consume(
    lines: queue.Queue[bytes | None],
    pid: int,
    memory: int | None,
    log: Path | None,
    on_line: Tell | None,
) -> tuple[deque[str], str]:
    """Return the last lines, and which limit was exceeded: "time", "memory" or ""."""
    tail = deque[str](maxlen=_TAIL_LINES)
    look = 0.0
    with contextlib.ExitStack() as opened:
        sink = opened.enter_context(log.open("ab")) if log is not None else None
        while True:
            # Check the limits also while the program keeps printing.
            if time.monotonic() >= look:
                look = time.monotonic() + _LOOK_SECONDS
                if time_left() == 0.0:
                    return tail, "time"
                if memory is not None and _resident(pid) > memory:
                    return tail, "memory"
            try:
                raw = lines.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if raw is None:
                return tail, ""
            if sink is not None:
                sink.write(raw)
            text = raw.decode("utf-8", "replace").rstrip("\n")
            tail.append(text)
            if on_line is not None:
                on_line(text)


def _resident(pid: int) -> int:
    """Return the resident memory of a program in bytes, 0 if the system does not report it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _reap(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """Return the program's exit code and its peak resident set size in MiB, None if it was already reaped."""
    if process.returncode is not None:
        return process.returncode, None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # Kilobytes on Linux, bytes on macOS.
    return process.returncode, usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
