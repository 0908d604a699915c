"""Has a recorded graph built again by the replayer, and reads what that says; it compiles nothing itself.

The request is made for the version of the backend that is to build the graph; what differs between versions stands
in ``qnn_api.toml``. The replayer itself, and how to get it for each machine, is described in ``README.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from deploykit.errors import InputError, ToolError
from deploykit.findings import Confidence
from deploykit.system.processes import ProgramEnd, run
from deploykit.tables.reading import parse_rows, read_toml
from deploykit_qualcomm.hosted import NodeVerdict, read_answer, read_event, read_verdicts
from deploykit_qualcomm.tables import Wheel

__all__ = ["Replayed", "read_replay", "replay", "replay_request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWord:
    """At which word of its own structure the backend has a device option's value, from version ``since`` of its API."""

    since: str
    word: Literal[0, 1]
    source: tuple[str, ...]
    confidence: Confidence
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewParameter:
    """A parameter that newer providers give to a node, and that a backend knows from core API ``since`` on."""

    node: str
    name: str
    since: str
    source: tuple[str, ...]
    confidence: Confidence
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QnnApiFile:
    """``qnn_api.toml``: what differs between versions of the QNN API for one and the same graph."""

    schema: int
    device_word: tuple[DeviceWord, ...]
    parameter: tuple[NewParameter, ...]


@cache
def qnn_api() -> QnnApiFile:
    """The table beside this file."""
    (found,) = parse_rows(QnnApiFile, [read_toml(Path(__file__).with_name("qnn_api.toml"))], where="qnn_api.toml")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay. ``error`` is "" exactly when everything that was asked for was done.

    ``build`` names the backend, ``verdicts`` are its answers to the nodes, ``outputs`` the number of bytes in which
    each output of a repeated execution differs from the recorded one, ``binary`` the bytes written, 0 for none.
    ``left`` are graph options, by number, that were not carried over: their values may be pointers.
    """

    error: str
    build: str = ""
    verdicts: tuple[NodeVerdict, ...] = ()
    outputs: Mapping[str, int]
    binary: int = 0
    left: tuple[int, ...] = ()
    done: ProgramEnd | None = None

    @property
    def ok(self) -> bool:
        """True when everything that was asked for was done."""
        return not self.error

    @property
    def refused(self) -> tuple[NodeVerdict, ...]:
        """The nodes that the backend does not take."""
        return tuple(verdict for verdict in self.verdicts if not verdict.taken)


def replay_request(
    wheel: Wheel,
    *,
    backend: str,
    record: str,
    soc_model: int = 0,
    binary: str = "",
    build: bool = True,
    execute: bool = False,
) -> dict[str, Any]:
    """The replayer's request for the backend library of a wheel; paths as the replayer is to see them.

    ``soc_model`` 0 asks for no chip. ToolError where the table does not say how this wheel's backend is asked.
    """
    if not wheel.qnn_api or not wheel.htp_api:
        raise ToolError(
            f"onnxruntime-qnn {wheel.version}: the versions of its API are not known", next="take another wheel"
        )
    return {
        "backend": backend,
        "record": record,
        "soc_model": soc_model,
        "device_word": _device_word(Version(wheel.htp_api)),
        "leave_out": list(_left_out(Version(wheel.qnn_api))),
        "build": build,
        "execute": execute,
        **({"binary": binary} if binary else {}),
    }


def _device_word(api: Version) -> int:
    """By the newest row that is not newer; below the oldest, that one."""
    rows = qnn_api().device_word
    known = [row for row in rows if Version(row.since) <= api] or rows[:1]
    return known[-1].word


def _left_out(core: Version) -> Iterator[dict[str, str]]:
    for row in qnn_api().parameter:
        if core < Version(row.since):
            yield {"type": row.node, "param": row.name}


def replay(
    argv: Sequence[str],
    request: Mapping[str, Any],
    *,
    cwd: Path,
    timeout: float,
    variables: Mapping[str, str] | None = None,
) -> Replayed:
    """Run the replayer, ``argv`` with what starts it, in a folder; its request is written there. Raises ToolError."""
    question = cwd / "replay.json"
    question.write_text(json.dumps(request, ensure_ascii=False), encoding="utf-8")
    lines: list[str] = []
    done = run((*argv, question.name), cwd=cwd, env=dict(variables or {}), timeout=timeout, on_line=lines.append)
    return read_replay(lines, done)


def read_replay(lines: Iterable[str], done: ProgramEnd | None = None) -> Replayed:
    """The replayer's lines; without its last line, with a failure or a damaged event, it is an error."""
    told = list(lines)
    answer = read_answer(told, done)
    timed_out = done is not None and done.timed_out
    try:
        return _replayed(told, "not finished within the time limit" if timed_out else answer.error, done)
    except (LookupError, TypeError, ValueError, OverflowError, InputError) as error:
        return Replayed(error=f"an event of the replayer is damaged: {error}", outputs={}, done=done)


def _replayed(told: Iterable[str], error: str, done: ProgramEnd | None) -> Replayed:
    events = [event for line in told if (event := read_event(line)) is not None]
    asked = [{**event, "call": "validate"} for event in events if event.get("event") == "verdict"]
    return Replayed(
        error=error,
        build=next((str(event.get("build", "")) for event in events if event.get("event") == "backend"), ""),
        verdicts=read_verdicts(asked),
        outputs={str(event["name"]): int(event["different"]) for event in events if event.get("event") == "output"},
        binary=next((int(event["bytes"]) for event in events if event.get("event") == "binary"), 0),
        left=tuple(int(event["option"]) for event in events if event.get("event") == "left"),
        done=done,
    )
