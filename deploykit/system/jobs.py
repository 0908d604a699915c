"""Work that a child process does in a folder of its own, named by what goes in: done once, found again afterwards.

What the work is, it does not know. The child's only word that counts is ``result.json`` with the files named there;
lines of JSON with a ``progress`` are shown, everything else goes to the log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from deploykit.errors import ToolError
from deploykit.system.processes import ProgramEnd, run

__all__ = ["LOG", "RESULT", "Job", "finished_job", "run_job"]

RESULT = "result.json"
LOG = "log.txt"
_BAR = 20
_CHUNK = 1 << 20
_SHOWN_EVERY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work: ``argv`` is run in ``folder`` with ``variables`` added to the environment.

    ``title`` stands before lines of progress and in errors.
    """

    title: str
    folder: Path
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def finished_job(folder: Path) -> dict[str, Any] | None:
    """The result of a job that ended well and whose files are still as it left them; None otherwise."""
    try:
        result = json.loads((folder / RESULT).read_text("utf-8"))
        outputs = dict(result["outputs"])
        whole = result["ok"] is True and all(_digest(folder / name) == digest for name, digest in outputs.items())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return result if whole and outputs else None


def run_job(job: Job, *, progress: Callable[[str], None], timeout: float | None) -> dict[str, Any]:
    """Run the child and return its result.

    Raises ToolError when the time is up, the child says what failed, it ends without a result, or a file that it names
    is not there: the exit status alone is no evidence. What was logged as an error is one, whatever the child says.
    """
    (job.folder / RESULT).unlink(missing_ok=True)
    log = job.folder / LOG
    done = run(
        job.argv,
        cwd=job.folder,
        env=job.variables,
        timeout=timeout,
        log=log,
        on_line=_Shown(job.title, progress).line,
    )
    said = _said(job.folder)
    problem = _problem(done, said, timeout)
    result = None if problem else finished_job(job.folder)
    if result is None:
        (job.folder / RESULT).unlink(missing_ok=True)
        raise ToolError(
            f"{job.title}: {problem or 'a file that it names is not there'}",
            why=str(said.get("error", "")) or " | ".join([line for line in done.tail if line.strip()][-3:]),
            next=f"read its log: {log}",
        )
    return result


def _problem(done: ProgramEnd, said: Mapping[str, Any], timeout: float | None) -> str:
    if done.timed_out:
        return f"took longer than its {timeout:g} seconds and was ended"
    if not said:
        return f"ended with status {done.returncode} and left no result"
    if said.get("ok") is not True:
        return "failed"
    logged = said.get("errors_logged") or []
    return f"reported success, but logged an error: {logged[0]}" if logged else ""


def _said(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / RESULT).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class _Shown:
    """Turns the child's lines of progress into a bar; a child that reports quickly is shown ten times a second."""

    def __init__(self, title: str, progress: Callable[[str], None]) -> None:
        self._title, self._progress, self._last = title, progress, ("", 0.0)

    def line(self, text: str) -> None:
        """Show one line of output if it is news."""
        told = _told(text)
        if told is None:
            return
        stage, (before, when), now = str(told["progress"]), self._last, time.monotonic()
        if stage != before or now - when > _SHOWN_EVERY:
            self._last = (stage, now)
            self._progress(f"{self._title}: {stage}{_bar(told.get('done'), told.get('of'))}")


def _told(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"progress"'):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _bar(done: object, of: object) -> str:
    if not isinstance(done, int) or not isinstance(of, int) or not 0 <= done <= of or not of:
        return ""
    filled = _BAR * done // of
    return f" [{'#' * filled}{'.' * (_BAR - filled)}] {done}/{of}"


def _digest(path: Path) -> str:
    found = sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
