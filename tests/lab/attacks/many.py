"""Many cases in one child, each with its own figures: what a bad file does, at a tenth of what a process costs."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploykit.cli.frame import CRASHES
from victims import CPU_SECONDS, MARKED, SECONDS, Ending, context, mark

__all__ = ["Case", "run_many"]

_RESET = Path("/proc/self/clear_refs")
_MOST_MEMORY = 8 << 30
"""Of address space in a child, so that a bomb that is found does not take the machine with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to do in a child: the words of a command line, or the name of a part and the file that it reads."""

    words: tuple[str, ...] = ()
    part: str = ""
    file: str = ""


def run_many(cases: Sequence[Case]) -> list[Ending]:
    """Do these one after another, in as few children as can be: one that dies or hangs costs only the case it died of.

    The memory of a case is the largest resident set while it ran, whatever the child held before.
    """
    with tempfile.TemporaryDirectory() as place:
        endings: list[Ending] = []
        while len(endings) < len(cases):
            endings += _run_some(cases[len(endings) :], Path(place, str(len(endings))))
        return endings


def _run_some(cases: Sequence[Case], place: Path) -> Iterator[Ending]:
    """The endings of the first cases, up to the one that ended the child; at least one."""
    place.mkdir()
    child = context().Process(target=_work_many, args=(tuple(cases), str(place), mark()))
    child.start()
    report, done, since = place / "report.jsonl", 0, time.monotonic()
    while child.is_alive() and time.monotonic() - since < SECONDS:
        child.join(0.2)
        now = report.read_bytes().count(b"\n") if report.exists() else 0
        since, done = (time.monotonic(), now) if now > done else (since, done)
    hung = child.is_alive()
    if hung and child.pid is not None:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    told = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    for number, row in enumerate(told):
        yield Ending(output=_said(place / f"{number}.txt"), **row)
    if len(told) < len(cases):
        left = cases[len(told)]
        # A part that reads a model is no command: what a command gives for the file is what a user sees.
        words = left.words or (("check", left.file, "--target", "sm8650") if left.part == "rewrites" else ())
        if not hung and -(child.exitcode or 0) in CRASHES and words:
            yield _retyped(words, place)
            return
        yield Ending(status=None if hung else child.exitcode, output=_said(place / f"{len(told)}.txt"))


def _retyped(words: Sequence[str], place: Path) -> Ending:
    """What a command line gives that is typed: there a process of its own is between a library and its end."""
    argv = [sys.executable, "-m", "deploykit", *words]
    environment = {**os.environ, MARKED: mark(), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, cwd=place, env=environment, capture_output=True, timeout=SECONDS, check=False)
    return Ending(status=done.returncode, output=(done.stdout + done.stderr).decode("utf-8", "replace"), retyped=True)


def _said(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _work_many(cases: Sequence[Case], place: str, mark: str) -> None:
    os.environ[MARKED] = mark
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    os.environ["DEPLOYKIT_DEBUG"] = "1"
    os.chdir(place)
    answer = os.open("report.jsonl", os.O_WRONLY | os.O_CREAT, 0o600)
    for number, case in enumerate(cases):
        handle = os.open(f"{number}.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
        sys.stdout = os.fdopen(1, "w", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
        started = _computed()
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_SECONDS, resource.RLIM_INFINITY))
        _reset_peak()
        status = _do(case)
        sys.stdout.flush()
        sys.stderr.flush()
        told = {"status": status, "peak_mb": _peak(), "cpu_seconds": _computed() - started}
        os.write(answer, json.dumps(told).encode() + b"\n")
    os._exit(0)


def _do(case: Case) -> int:
    from attacks.parts import PARTS
    from deploykit.cli import cli
    from deploykit.cli.frame import run
    from deploykit.errors import DeploykitError

    if case.words:
        return run(cli, case.words)
    try:
        PARTS[case.part](Path(case.file))
    except DeploykitError as error:
        print(error)
        return error.exit_status
    except MemoryError:
        return 3
    except Exception:
        traceback.print_exc()
        return 70
    return 0


def _computed() -> float:
    """Computing time of this process and of the children that ended."""
    return sum(os.times()[:4])


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        _RESET.write_text("5")


def _peak() -> float:
    """The largest resident set in MiB since the last reset; that of the whole process where there is no /proc."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
