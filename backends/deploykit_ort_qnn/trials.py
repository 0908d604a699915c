"""Compiles models only to see what comes of it, within a time, and remembers what came of them between runs.

It cuts nothing and concludes nothing; what was not finished in time is asked again next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from deploykit.backend.backend import Progress
from deploykit.system.folders import scratch
from deploykit.system.store import Store, key_of
from deploykit_ort_qnn.compiler import CompileJob, CompileOutcome, compile_model, installed_wheel
from deploykit_ort_qnn.hosts import Host

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Answer", "Judge", "Trials"]

Judge: TypeAlias = "Callable[[ModelProto, CompileOutcome], Iterable[tuple[str, str]]]"
"""Gives (node, what became of its type) for nodes of a compiled model that have another type than was meant."""

_LEAST = 2.0
"""With less time left no worker is started: it would not get as far as compiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one compilation came to. ``refused`` are (name, type), ``changes`` (node, what became of its type)."""

    status: str
    message: str
    refused: tuple[tuple[str, str], ...] = ()
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def taken(self) -> bool:
        """True where it was compiled."""
        return self.status == "compiled"

    @property
    def no(self) -> str:
        """Why the compiler does not take it, "" where it does, or where that is not what stopped it."""
        if self.status == "crashed":
            return self.message
        if self.status == "refused" or "default CPU EP" in self.message:
            return "it is not taken"
        _, found, cause = self.message.partition("EP_FAIL : ")
        return cause if self.status == "failed" and found else ""


@dataclass(slots=True, kw_only=True)
class Trials:
    """Trials with one set of provider options, until a moment of ``time.monotonic``; ``longest`` seconds for each.

    ``host`` compiles, None is the provider installed beside this Python.
    """

    options: Mapping[str, str]
    entries: Mapping[str, str] = field(default_factory=dict)
    deadline: float
    longest: float
    progress: Progress
    host: Host | None = None
    memory: Store = field(default_factory=lambda: Store("opinions"))

    @property
    def is_over(self) -> bool:
        """True when there is no time for another."""
        return self.deadline - time.monotonic() < _LEAST

    def of(self, model: ModelProto, content: bytes, judge: Judge | None = None) -> Answer:
        """What comes of a model; ``content`` stands for it in memory, and ``judge`` looks at the types."""
        who = (installed_wheel() or {}) if self.host is None else self.host.identity
        asked = {**who, "options": dict(self.options), "entries": dict(self.entries)}
        key = key_of(content, {**asked, "types": judge is not None, "form": 1})
        known = _read(self.memory.get(key))
        if known is not None:
            return known
        if self.is_over:
            return Answer(status="timed-out", message="the time for questions is over")
        outcome = self._compiled(model)
        answer = Answer(
            status=outcome.status,
            message=outcome.message,
            refused=tuple((node.name, node.type) for node in outcome.refused),
            changes=tuple(judge(model, outcome)) if outcome.ok and judge is not None else (),
        )
        if outcome.status != "timed-out":
            self.memory.put(key, _json(answer))
        return answer

    def _compiled(self, model: ModelProto) -> CompileOutcome:
        with scratch() as folder:
            (folder / "model.onnx").write_bytes(model.SerializeToString())
            job = CompileJob(
                root=folder,
                model="model.onnx",
                context="context.onnx",
                options=self.options,
                entries=self.entries,
                timeout=min(self.longest, self.deadline - time.monotonic()),
                host=self.host,
            )
            return compile_model(job, self.progress)


def _json(answer: Answer) -> dict[str, Any]:
    return {
        "status": answer.status,
        "message": answer.message,
        "refused": [list(pair) for pair in answer.refused],
        "changes": [list(pair) for pair in answer.changes],
    }


def _read(found: Mapping[str, Any] | None) -> Answer | None:
    """An answer back from memory; None where it is none, whatever is wrong with it."""
    if found is None:
        return None
    try:
        return Answer(
            status=str(found["status"]),
            message=str(found["message"]),
            refused=tuple((str(name), str(kind)) for name, kind in found["refused"]),
            changes=tuple((str(name), str(change)) for name, change in found["changes"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
