"""What a program costs: CPU seconds of it and its children, and the largest resident set. It reads no clock on a wall.

It imports nothing large: a child's high-water mark begins with that of the process that started it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Spent", "median", "program", "spend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """CPU seconds (user and system, children included), the peak of any one process in MB, and what it printed."""

    cpu: float
    peak: float
    text: str


def spend(argv: Sequence[str], *, environment: dict[str, str] | None = None) -> Spent:
    """Run a program to its end. A status other than 0 and 1 (deploykit's "no") is an error: nothing was measured."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(argv)}: ended with {process.returncode}")
    return Spent(cpu=used.ru_utime + used.ru_stime, peak=used.ru_maxrss / 1000, text=text)


def median(run: Callable[[], Spent], times: int) -> Spent:
    """The median of CPU seconds and peaks over several runs, each on its own."""
    runs = [run() for _ in range(times)]
    cpu, peak = (statistics.median(values) for values in ([one.cpu for one in runs], [one.peak for one in runs]))
    return Spent(cpu=cpu, peak=peak, text=runs[-1].text)


def program(name: str, *arguments: object) -> tuple[str, ...]:
    """The command of one of the programs beside this file."""
    return (sys.executable, str(Path(__file__).with_name(name)), *map(str, arguments))
