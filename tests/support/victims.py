"""Runs command lines in children forked from a warm process, with limits, and tells how they ended.

A child costs a tenth of a second instead of one and a half.
"""

import contextlib
import io
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recorded import unpack

unpack()
AIMET = Path(__file__).parents[1] / "data" / "aimet"
MODEL = AIMET / "cnn" / "model.onnx"
_FOR = ("--target", "sm8650", "--sdk", "2.33")
_ENCODINGS = ("--encodings", str(AIMET / "cnn/w8a8.v0.6.1.encodings"))
PACKAGING = ("package", str(MODEL), *_ENCODINGS, *_FOR, "--no-compile", "-o")
"""Packages the small convolutional network without any tool of a vendor; the output folder follows."""
QUANTIZING = ("quantize", str(MODEL), *_FOR, "--with", "ort", "--calibration")
"""A quantizer in a process of its own; samples, -o and a folder follow."""

FILE_EVENTS = ["open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink"]
FILE_EVENTS += ["shutil.rmtree"]
"""Audit events of CPython at which something on disk may be about to change."""
SECONDS = 300.0
"""Of wall time, after which a child counts as hanging: it waits for something. The machine may be busy with others."""
CPU_SECONDS = 40
"""Of computing time, after which the system ends a child (SIGXCPU): it hangs as well."""
_CORE = ("cli", "cli.package", "cli.verify", "cli.build", "cli.encodings", "api", "flow.pipeline", "packages.building")
_BACKENDS = ("qnn_htp.backend", "qnn_htp.verification", "ort_qnn.backend", "ort_qnn.prepare", "vitis_ai.backend")
_PRELOADED = [f"deploykit.{name}" for name in (*_CORE, "accuracy.simulate.simulation")]
_PRELOADED += [*(f"deploykit_{name}" for name in _BACKENDS), "onnxruntime", "onnx"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one command ended. ``status`` is negative for a signal, None where it hung and was killed.

    ``events`` are the file events met, ``peak_mb`` its largest resident set, ``cpu_seconds`` its computing time; all
    are 0 where it was killed. ``retyped`` is True where a library ended the process: then it is what the same command
    line gives when it is typed.
    """

    status: int | None
    output: str
    events: int = 0
    peak_mb: float = 0.0
    cpu_seconds: float = 0.0
    retyped: bool = False


def acceptable(ending: Ending, *, seconds: float = 10.0, megabytes: float = 1024.0) -> bool:
    """An answer: a published status below 70, no traceback, in the time and memory that a small input may take."""
    answered = ending.status in (0, 1, 2, 3, 4, 5, 6) and "Traceback" not in ending.output
    return answered and ending.cpu_seconds <= seconds and ending.peak_mb <= megabytes


def run_cli(
    *arguments: str | Path,
    at_event: int | None = None,
    then: str = "kill",
    after_seconds: float | None = None,
    cwd: Path | None = None,
    largest: int | None = None,
) -> Ending:
    """Run ``deploykit ARGUMENTS`` in a child.

    ``at_event`` is the file event before which it happens: ``then`` is "kill" (SIGKILL), "term" (SIGTERM) or "full"
    (every write from there on fails as on a full disk). ``after_seconds`` kills it after that time instead.
    ``largest`` are the bytes after which a write fails in the middle of a file, in programs that it starts as well.
    """
    with tempfile.TemporaryDirectory() as place:
        report, output = Path(place, "report.json"), Path(place, "output")
        job: dict[str, Any] = {"argv": [str(argument) for argument in arguments], "at": at_event, "then": then}
        job |= {"cwd": str(cwd or place), "mark": mark(), "largest": largest}
        child = context().Process(target=_work, args=(job, str(report), str(output)))
        child.start()
        child.join(SECONDS if after_seconds is None else after_seconds)
        hung = child.is_alive()
        if hung and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        told = json.loads(report.read_text() or "{}") if report.exists() else {}
        text = output.read_text("utf-8", "replace") if output.exists() else ""
        status = None if hung and after_seconds is None else told.get("status", child.exitcode)
        return Ending(status=status, output=text, **{key: told[key] for key in told if key != "status"})


def two_samples(folder: Path) -> Path:
    """A file with two samples for the small network."""
    values = np.random.default_rng(1).normal(size=(2, 1, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "data.npz", **{f"{number}:input": value for number, value in enumerate(values)})
    return folder / "data.npz"


def run_here(*arguments: str | Path, cwd: Path | None = None) -> Ending:
    """The same in this process, where the process itself is not what is looked at."""
    from deploykit.cli import cli
    from deploykit.cli.frame import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.chdir(cwd or Path.cwd()):
        status = run(cli, [str(argument) for argument in arguments])
    return Ending(status=status, output=out.getvalue())


MARKED = "DEPLOYKIT_ATTACK_BY"
"""The variable by which a program is known that something under attack has started."""


def mark() -> str:
    return f"deploykit-attack-{os.getpid()}"


_made: list[Any] = []


def context() -> Any:
    """A server that has imported everything and does nothing but fork; made once."""
    if not _made:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        _made.append(context)
    return _made[0]


def _work(job: dict[str, Any], report: str, output: str) -> None:
    handle = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    answer = os.open(report, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", errors="backslashreplace"), os.fdopen(2, "w", errors="backslashreplace")
    os.chdir(job["cwd"])
    os.environ[MARKED] = job["mark"]
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    if job["largest"] is not None:
        # The interpreter takes half a file of bytecode for a whole one, and every later run would meet it.
        os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest"], job["largest"]))
    from deploykit.cli import cli
    from deploykit.cli.frame import run

    seen = [0]
    sys.addaudithook(_hook(seen, job["at"], job["then"]))
    started = time.process_time()
    status = run(cli, job["argv"])
    used = resource.getrusage(resource.RUSAGE_SELF)
    events = seen[0]
    sys.stdout.flush()
    told = {
        "status": status,
        "events": events,
        "peak_mb": used.ru_maxrss / 1024,
        "cpu_seconds": time.process_time() - started,
    }
    os.write(answer, json.dumps(told).encode())
    os._exit(0)


def _hook(seen: list[int], at: int | None, then: str) -> Callable[[str, tuple[Any, ...]], None]:
    full: set[bool] = set()

    def look(event: str, of: tuple[Any, ...]) -> None:
        if event not in FILE_EVENTS:
            return
        seen[0] += 1
        if full and (event != "open" or _writes(of)) and event not in ("os.remove", "os.rmdir", "shutil.rmtree"):
            raise OSError(28, "No space left on device", str(of[0]))
        if seen[0] == at:
            if then == "full":
                full.add(True)
                return
            os.kill(os.getpid(), signal.SIGKILL if then == "kill" else signal.SIGTERM)

    return look


def _writes(of: tuple[Any, ...]) -> bool:
    mode, flags = of[1], of[2]
    named = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    return named or bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR))
