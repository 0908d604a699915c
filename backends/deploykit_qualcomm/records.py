"""Reads a record of the recorder: what a provider asked a QNN backend for, and what that answered; it judges nothing.

``runner/recorder.c`` writes the files. A record that ends early is read up to there: the process may have died.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploykit.errors import InputError

__all__ = ["RECORD", "Verdict", "read_calls", "read_verdicts", "refusal_lines"]

RECORD = "DEPLOYKIT_QNN_RECORD"
"""The variable that names the folder to record into, which must exist."""

_LONGEST = 1 << 28
"""Bytes of one line; the longest seen, a layer with scales per channel, has some 100 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A backend's answer to one node: 0, or its code, and the lines of its log at that moment."""

    node: str
    type: str
    answer: int
    said: tuple[str, ...] = ()

    @property
    def taken(self) -> bool:
        """True when the backend takes the node."""
        return self.answer == 0


def read_calls(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The calls of a record in order; InputError for what is none."""
    path = folder / "record.jsonl"
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST):
                if not line.endswith(b"\n"):
                    return
                yield _call(path, line)
    except OSError as error:
        raise InputError(f"{path}: cannot be read", why=error.strerror or str(error)) from None


def _call(path: Path, line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
        if isinstance(value["call"], str) and isinstance(value["answer"], int):
            return dict(value)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise InputError(f"{path}: not a record", why=f"a line that is no call: {line[:80]!r}")


def read_verdicts(calls: Iterable[Mapping[str, Any]]) -> tuple[Verdict, ...]:
    """What was said of each node that was asked about, the last answer of several; InputError for other shapes."""
    found: dict[str, Verdict] = {}
    for call in calls:
        if call["call"] not in ("validate", "node"):
            continue
        name, kind, said = call.get("name"), call.get("type"), call.get("said", [])
        if not isinstance(name, str) or not isinstance(kind, str) or not isinstance(said, list):
            raise InputError("not a record", why=f"a node without name, type or words: {str(call)[:80]}")
        words = tuple(str(line).strip() for line in said)
        found[name] = Verdict(node=name, type=kind, answer=call["answer"], said=words)
    return tuple(found.values())


def refusal_lines(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """A line per refused node with what the backend said first of it: the reason, from which the rest follows."""
    return tuple(
        f"the backend says of `{verdict.node}`: {verdict.said[0].removeprefix('QnnDsp <E> ')}"
        for verdict in verdicts
        if not verdict.taken and verdict.said
    )
