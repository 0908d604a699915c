"""Asks the runner of a toolchain under Wine, and reads its answer and the record of a provider's calls to the backend.

The runner prints JSON lines between lines of the vendor's libraries; an answer counts only if its last event says so.
``runner/recorder.c`` writes records; one that ends early is read up to there, as the process may have died.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from deploykit.errors import InputError
from deploykit.findings.records import Json, Record
from deploykit.system.environments import environment_of
from deploykit.system.files import unreadable
from deploykit.system.processes import ProgramEnd, run
from deploykit.system.specs import ToolchainSpec

__all__ = [
    "RECORD",
    "RefusedNode",
    "ask_runner",
    "read_calls",
    "read_refusals",
    "read_verdicts",
    "refusal_lines",
]


# The variable that names the folder to record into, which must exist.
RECORD = "DEPLOYKIT_QNN_RECORD"

# The most bytes of one line; the longest seen, a layer with scales per channel, has some 100 kB.
_LONGEST = 1 << 28


class NodeVerdict(Record):
    """A backend's answer to one node: 0 or an error code, and the lines of its log at that moment."""

    node: str
    type: str
    answer: int
    said: tuple[str, ...]

    @property
    def taken(self) -> bool:
        """True if the backend takes the node."""
        return self.answer == 0


def read_calls(folder: Path) -> Iterator[Json]:
    """Yields the calls of a record in order. Raises InputError for another file."""
    path = folder / "record.jsonl"
    try:
        with path.open("rb") as file:
            while (line := file.readline(_LONGEST)).endswith(b"\n"):
                try:
                    value = json.loads(line)
                    is_call = isinstance(value["call"], str) and isinstance(value["answer"], int)
                except (ValueError, KeyError, TypeError, RecursionError):
                    is_call = False
                if not is_call:
                    raise InputError(f"{path}: not a record", why=f"a line that is no call: {line[:80]!r}")
                yield value
    except OSError as error:
        raise unreadable(path, error) from None


def read_verdicts(calls: Iterable[Json]) -> tuple[NodeVerdict, ...]:
    """The verdict on each node in a record, by the last answer if there
    are several. Raises InputError for other shapes.
    """
    found = dict[str, NodeVerdict]()
    for call in calls:
        if call["call"] not in ("validate", "node"):
            continue
        name, kind, said = call.get("name"), call.get("type"), call.get("said", [])
        if not isinstance(name, str) or not isinstance(kind, str) or not isinstance(said, list):
            raise InputError("not a record", why=f"a node without name, type or words: {str(call)[:80]}")
        words = tuple(str(line).strip() for line in said)
        found[name] = NodeVerdict(node=name, type=kind, answer=call["answer"], said=words)
    return tuple(found.values())


def refusal_lines(verdicts: Iterable[NodeVerdict]) -> tuple[str, ...]:
    """A line per refused node with the first line of the backend's log: the reason; later lines follow from it."""
    return tuple(
        f"the backend says of `{verdict.node}`: {verdict.said[0].removeprefix('QnnDsp <E> ')}"
        for verdict in verdicts
        if not verdict.taken and verdict.said
    )


_EVENT = '{"event":'
_UNSUPPORTED = "Unsupported nodes in QNN EP"
_NODE = re.compile(r"\{ name: (.*?), type: (\w+) \}")
_REASON = re.compile(r"Node name: (?P<name>.*?) Node index: \d+\s+REASON : \S+:\d+ \S+ (?P<why>.*)", re.DOTALL)
_VALIDATION = re.compile(r"failed for node `(?P<name>[^`]+)` of type `(?P<op>\w+)` with error code (?P<code>\d+)")
_SAID = re.compile(r"the backend says of `(?P<name>[^`]+)`: (?P<text>.*)")


class RefusedNode(Record, kw_only=False):
    """A node that the provider refused, by its name after ONNX Runtime's own rewrites.

    ``why`` is the backend's answer or the provider's reason, "" if the log names none.
    """

    name: str
    type: str
    why: str = ""


class RunnerAnswer(Record):
    """The runner's answer. ``error`` is "" exactly if all of the request was done.

    ``log`` holds the texts of the provider's log and the lines that libraries printed, in order.
    """

    error: str
    log: tuple[str, ...]
    runtime: str
    crashed: bool = False
    done: ProgramEnd | None = None

    @property
    def ok(self) -> bool:
        """True if all of the request was done."""
        return not self.error


def ask_runner(
    spec: ToolchainSpec,
    request: Json,
    *,
    cwd: Path,
    place: Path,
    timeout: float,
    variables: Mapping[str, str] | None = None,
) -> RunnerAnswer:
    """Runs a request whose paths are relative to ``cwd``; its file is written to ``place``, a folder inside.

    ``variables`` are added to those of the toolchain. Raises ToolError if the toolchain is not ready or Wine is gone; a
    crash or a time-out is an answer.
    """
    environment = environment_of(spec)
    environment.require()
    question = place / "runner.json"
    question.write_text(json.dumps(request, ensure_ascii=False), "utf-8")
    runner = environment.path / "libraries" / "runner.exe"
    argv = (environment.program("wine"), str(runner), question.relative_to(cwd).as_posix())
    lines = list[str]()
    given = {**environment.variables, **(variables or {})}
    return read_answer(lines, run(argv, cwd=cwd, env=given, timeout=timeout, on_line=lines.append))


def read_answer(lines: Iterable[str], done: ProgramEnd | None = None) -> RunnerAnswer:
    """Reads the events of a run. A damaged or missing last event, or a failure before it, makes the answer an error."""
    log, failures, runtime, ended, crash = list[str](), list[str](), "", False, ""
    for line in lines:
        event = read_event(line)
        if event is None:
            if line.strip():
                log.append(line.strip())
            continue
        match event.get("event"):
            case "log":
                log.append(str(event.get("text", "")))
            case "runtime":
                runtime = str(event.get("version", ""))
            case "failure":
                failures.append(f"{event.get('what', '')}: {event.get('why', '')}")
            case "crash":
                crash = f"exception {event.get('code', '')} in the vendor's libraries"
            case "result":
                ended = event.get("failures") == len(failures)
    error = "; ".join(failures) or crash or ("" if ended else "the runner gave no whole answer")
    return RunnerAnswer(error=error, log=tuple(log), runtime=runtime, crashed=bool(crash) or not ended, done=done)


def read_event(line: str) -> Json | None:
    """One event; None for a line of a library, or an event that was cut off or mixed with other output."""
    if not line.startswith(_EVENT):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_refusals(log: Iterable[str]) -> tuple[RefusedNode, ...]:
    """The nodes that the provider's log calls unsupported, with the backend's answer or the provider's reason."""
    types, answers, reasons, said = dict[str, str](), dict[str, str](), dict[str, str](), dict[str, str]()
    for line in log:
        if _UNSUPPORTED in line:
            types |= {name: kind for name, kind in _NODE.findall(line) if name not in types}
        if found := _VALIDATION.search(line):
            answers.setdefault(found["name"], f"the backend answers {found['code']} to {found['op']}")
        elif found := _SAID.fullmatch(line):
            said.setdefault(found["name"], f": {found['text']}")
        elif found := _REASON.search(line):
            reasons.setdefault(found["name"], found["why"].strip())
    whys = {**reasons, **{name: answer + said.get(name, "") for name, answer in answers.items()}}
    return tuple(RefusedNode(name, kind, why=whys.get(name, "")) for name, kind in types.items())
