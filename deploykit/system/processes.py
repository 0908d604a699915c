"""Starts programs: the only place that does. It interprets nothing of what they print."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deploykit.errors import ToolError
from deploykit.system.platforms import end_tree, reap

__all__ = ["Completed", "run"]

_TAIL_LINES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a program ended. ``returncode`` is negative for a signal; ``tail`` holds its last lines of output.

    ``peak_rss_mb`` is the largest resident set of the program, in MiB, None where the system does not tell.
    """

    argv: tuple[str, ...]
    returncode: int
    tail: tuple[str, ...]
    seconds: float
    peak_rss_mb: float | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """True when the program ended by itself with status 0."""
        return self.returncode == 0 and not self.timed_out


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program to its end and give its output line by line to ``on_line`` and ``log``.

    Standard error is merged into standard output. ``env`` is added to the caller's environment. After ``timeout``
    seconds the program and its children are ended. Raises ToolError when the program cannot be started.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"{argv[0]}: cannot be started", why=error.strerror or str(error)) from None
    assert process.stdout is not None
    lines: queue.Queue[bytes | None] = queue.Queue()
    reader = threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True)
    reader.start()
    deadline = None if timeout is None else started + timeout
    try:
        tail, timed_out = _consume(lines, deadline, log, on_line)
        returncode, peak = _reap(process, kill=timed_out)
    except BaseException:
        _reap(process, kill=True)
        raise
    finally:
        process.stdout.close()
    return Completed(
        argv=tuple(argv),
        returncode=returncode,
        tail=tuple(tail),
        seconds=time.monotonic() - started,
        peak_rss_mb=peak,
        timed_out=timed_out,
    )


def _pump(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    try:
        for line in stream:
            lines.put(line)
    except ValueError:
        pass  # the stream was closed after the program was ended
    lines.put(None)


def _consume(
    lines: queue.Queue[bytes | None],
    deadline: float | None,
    log: Path | None,
    on_line: Callable[[str], None] | None,
) -> tuple[deque[str], bool]:
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    sink = log.open("ab") if log is not None else None
    try:
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                raw = lines.get(timeout=wait)
            except queue.Empty:
                return tail, True
            if raw is None:
                return tail, False
            if sink is not None:
                sink.write(raw)
            text = raw.decode("utf-8", "replace").rstrip("\n")
            tail.append(text)
            if on_line is not None:
                on_line(text)
    finally:
        if sink is not None:
            sink.close()


def _reap(process: subprocess.Popen[bytes], *, kill: bool) -> tuple[int, float | None]:
    if process.returncode is not None:
        return process.returncode, None
    if kill:
        end_tree(process)
    return reap(process)
