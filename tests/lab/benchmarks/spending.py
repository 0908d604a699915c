"""What a program costs: CPU seconds of it and its children, seconds on the wall, and the largest resident set.

It imports nothing large: a child's high-water mark begins with that of the process that started it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Spent", "median", "program", "spend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """CPU seconds (user and system, children included), the peak of any one process in MB, and what it printed.

    ``wall`` is what somebody waits who has the machine alone; beside other work it says nothing.
    """

    cpu: float
    wall: float
    peak: float
    text: str


def spend(argv: Sequence[str], *, environment: dict[str, str] | None = None) -> Spent:
    """Run a program to its end. A status other than 0 and 1 (deploykit's "no") is an error: nothing was measured."""
    started = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - started
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(argv)}: ended with {process.returncode}")
    return Spent(cpu=used.ru_utime + used.ru_stime, wall=wall, peak=used.ru_maxrss / 1000, text=text)


def median(run: Callable[[], Spent], times: int) -> Spent:
    """The median of seconds and peaks over several runs, each on its own."""
    runs = [run() for _ in range(times)]
    cpu, wall, peak = (statistics.median(getattr(one, name) for one in runs) for name in ("cpu", "wall", "peak"))
    return Spent(cpu=cpu, wall=wall, peak=peak, text=runs[-1].text)


def program(name: str, *arguments: object) -> tuple[str, ...]:
    """The command of one of the programs beside this file."""
    return (sys.executable, str(Path(__file__).with_name(name)), *map(str, arguments))
