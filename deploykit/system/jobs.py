"""Work that a child process does in a folder of its own, named by a key of its inputs: done once, then found again.

The kind of work does not matter here. Only ``result.json`` and the files it names count as the child's result; JSON
lines with ``progress`` are shown, everything else goes to the log. A progress line that begins a numbered step (``[2/4]
rendering``) has a type of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import file_digest
from pathlib import Path

from deploykit.errors import ToolError
from deploykit.findings.records import Json, Record, Tell

__all__ = ["Begun", "Job", "Steps", "finished_job", "json_object", "prefixed", "run_job"]

RESULT = "result.json"
LOG = "log.txt"
_SHOWN_EVERY = 0.1


class Job(Record):
    """One piece of work: ``argv`` is run in ``folder`` with ``variables`` added to the environment.

    ``title`` precedes lines of progress and errors.
    """

    title: str
    folder: Path
    argv: tuple[str, ...]
    variables: Mapping[str, str] = {}


def finished_job(folder: Path) -> Json | None:
    """Return the result of a job that succeeded and whose files are unchanged since; None otherwise."""
    result = _said(folder)
    outputs = result.get("outputs")
    if result.get("ok") is not True or not isinstance(outputs, dict) or not outputs:
        return None
    try:
        for name, digest in outputs.items():
            with (folder / name).open("rb") as stream:
                if file_digest(stream, "sha256").hexdigest() != digest:
                    return None
    except (OSError, ValueError):
        return None
    return result


def run_job(job: Job, *, progress: Tell, timeout: float | None) -> Json:
    """Run the child and return its result. ``timeout`` is in seconds, None for no limit.

    Raises ToolError if the time is up, the child reports a failure, it ends without a result, or a
    file that it names is missing or changed; the exit status alone proves nothing. A logged error
    is a failure even if the child reports success.
    """
    from deploykit.system.processes import run

    (job.folder / RESULT).unlink(missing_ok=True)
    log, shown = job.folder / LOG, ("", 0.0)

    def show(line: str) -> None:
        """Show lines of progress, with counts; at most ten per second for one stage."""
        nonlocal shown
        told = json_object(line) if line.startswith('{"progress"') else {}
        stage, now = str(told.get("progress")), time.monotonic()
        if not told or (stage == shown[0] and now - shown[1] <= _SHOWN_EVERY):
            return
        shown = (stage, now)
        done, of, bar = told.get("done"), told.get("of"), ""
        if isinstance(done, int) and isinstance(of, int) and 0 <= done <= of and of:
            bar = f" {done}/{of}"
        progress(f"{job.title}: {stage}{bar}")

    done = run(job.argv, cwd=job.folder, env=job.variables, timeout=timeout, log=log, on_line=show)
    said = _said(job.folder)
    logged, problem = said.get("errors_logged") or [], ""
    if done.timed_out:
        problem = f"took longer than its {timeout:g} seconds and was ended"
    elif not said:
        problem = f"ended with status {done.returncode} and left no result"
    elif said.get("ok") is not True:
        problem = "failed"
    elif logged:
        problem = f"reported success, but logged an error: {logged[0]}"
    result = None if problem else finished_job(job.folder)
    if result is None:
        (job.folder / RESULT).unlink(missing_ok=True)
        raise ToolError(
            f"{job.title}: {problem or 'a file that it names is not there'}",
            why=str(said.get("error", "")) or " | ".join([line for line in done.tail if line.strip()][-3:]),
            next=f"read its log: {log}",
        )
    return result


def _said(folder: Path) -> Json:
    try:
        return json_object((folder / RESULT).read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def json_object(text: str | bytes) -> Json:
    """Parse a text as a JSON object; {} if it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Begun(str):
    """A line of progress that begins a step; other lines belong to the step begun last."""

    __slots__ = ()


class Steps(Record):
    """A list of steps that begin in its order; a step may begin again, and an unnecessary one is skipped."""

    names: Sequence[str]
    tell: Tell

    def begin(self, name: str) -> None:
        """Report that the named step begins; does nothing for a name not in the list."""
        if name in self.names:
            self.tell(Begun(f"[{self.names.index(name) + 1}/{len(self.names)}] {name}"))


def prefixed(name: str, tell: Tell) -> Tell:
    """Return a function that reports progress with a name in front; lines that begin steps keep their type."""
    return lambda line: tell(Begun(f"{name}: {line}") if isinstance(line, Begun) else f"{name}: {line}")
