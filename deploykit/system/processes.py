"""Starts programs: the only place that does. It interprets nothing of what they print.

Everything a program starts ends with it, and with this process however that ends: they are one process group, and a
guard in that group, which waits for this process to go, ends it as a whole.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deploykit.errors import ToolError
from deploykit.system.limits import limited_time, time_left
from deploykit.system.platforms import end_group, end_tree, has_groups, reap

__all__ = ["ONLY_INSTALLED", "Completed", "run"]

ONLY_INSTALLED: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}
"""For a Python that is started with ``-m`` or ``-c`` (3.11 and newer): what lies in the folder it is started in, beside
a stranger's model perhaps, is not imported."""

_TAIL_LINES = 400
_LONGEST_LINE = 1 << 20
"""Bytes; a longer line is taken for several, or a program that writes none would be held in memory as a whole."""
_WAITING_LINES = 1000
"""Lines that were read and not yet consumed; a program that writes faster waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a program ended. ``returncode`` is negative for a signal; ``tail`` holds its last lines of output.

    ``peak_rss_mb`` is the largest resident set of the program, in MiB, None where the system does not tell; ``grown``
    tells that it was ended because it took more memory than it was given.
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
        """True when the program ended by itself with status 0."""
        return self.returncode == 0 and not self.timed_out and not self.grown


_GUARD = ("/bin/sh", "-c", "trap '' HUP INT TERM; read -r _; kill -s KILL 0", "deploykit-guard")
"""Reads until its pipe ends, which is when the process that holds the other end ends, and kills its own group."""
_GRACE = 2.0
"""Seconds that an interrupted program has for putting its own things in order."""


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    given: bytes | None = None,
    memory: int | None = None,
) -> Completed:
    """Run a program to its end and give its output line by line to ``on_line`` and ``log``.

    Standard error is merged into standard output; ``given`` is its standard input. ``env`` is added to the caller's
    environment. After ``timeout`` seconds, when the caller's time is over (``limited_time``), or with more than
    ``memory`` bytes resident (where the system tells), the program and its children are ended, and so they are when it
    ends by itself or this process does. Raises ToolError when the program cannot be started.
    """
    started = time.monotonic()
    with limited_time(timeout), _group() as group, _input(given) as stdin:
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                **group.joined,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ToolError(f"{argv[0]}: cannot be started", why=why) from None
        assert process.stdout is not None
        lines: queue.Queue[bytes | None] = queue.Queue(_WAITING_LINES)
        over = threading.Event()
        reader = threading.Thread(target=_pump, args=(process.stdout, lines, over), daemon=True)
        reader.start()
        bounds = _Bounds(pid=process.pid, memory=memory)
        try:
            tail, broken = _consume(lines, bounds, log, on_line)
            if broken:
                group.kill(process)
            returncode, peak = _reap(process)
        except BaseException:
            group.interrupt(process)
            _reap(process)
            raise
        finally:
            over.set()
            process.stdout.close()
    return Completed(
        argv=tuple(argv),
        returncode=returncode,
        tail=tuple(tail),
        seconds=time.monotonic() - started,
        peak_rss_mb=peak,
        timed_out=broken == "time",
        grown=broken == "memory",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The process group of one program; ``guard`` is its first member, None where the system has no such groups."""

    guard: subprocess.Popen[bytes] | None

    @property
    def joined(self) -> dict[str, Any]:
        """The arguments with which a program is started in the group."""
        return {} if self.guard is None else {"process_group": self.guard.pid}

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End everything in the group at once."""
        if self.guard is None:
            end_tree(process)
            return
        end_group(self.guard.pid)

    def interrupt(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the program and its children to end, wait a little, and end what is left."""
        if self.guard is None:
            process.terminate()
        else:
            end_group(self.guard.pid, at_once=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        self.kill(process)


@contextlib.contextmanager
def _group() -> Iterator[_Group]:
    """A process group with its guard; at the end nothing of it is left."""
    if not has_groups():
        yield _Group(guard=None)
        return
    # The guard is there before the program, so that there is no moment in which nothing watches it.
    guard = subprocess.Popen(
        _GUARD, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    )
    try:
        yield _Group(guard=guard)
    finally:
        end_group(guard.pid)
        guard.wait()
        if guard.stdin is not None:
            guard.stdin.close()


@contextlib.contextmanager
def _input(given: bytes | None) -> Iterator[Any]:
    if given is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        yield file


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """What one program may take: how many bytes, None for no bound, and the time that is left to its caller."""

    pid: int
    memory: int | None

    def broken(self) -> str:
        """Which bound is broken now: "time", "memory" or ""."""
        if time_left() == 0.0:
            return "time"
        if self.memory is None:
            return ""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1])
        except (OSError, IndexError, ValueError):
            return ""
        return "memory" if pages * os.sysconf("SC_PAGE_SIZE") > self.memory else ""


_LOOK_SECONDS = 0.1


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
    bounds: _Bounds,
    log: Path | None,
    on_line: Callable[[str], None] | None,
) -> tuple[deque[str], str]:
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    sink = log.open("ab") if log is not None else None
    look = 0.0
    try:
        while True:
            # A program that never stops talking has bounds as well.
            if time.monotonic() >= look:
                broken, look = bounds.broken(), time.monotonic() + _LOOK_SECONDS
                if broken:
                    return tail, broken
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
    finally:
        if sink is not None:
            sink.close()


def _reap(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """How the program ended, and its largest resident set in MiB where the system tells."""
    return (process.returncode, None) if process.returncode is not None else reap(process)
