"""The steps that packaging one model for one target takes, for whoever waits for it. It does none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deploykit.flow.quantizing.step import quantizes
from deploykit.system.steps import Steps

if TYPE_CHECKING:
    from deploykit.backend.backend import AnyBackend, Progress, Situation

__all__ = ["AUDITING", "DECIDING", "QUANTIZING", "RUNNING", "VERIFYING", "WRITING", "steps_to"]

QUANTIZING = "quantizing the float model"
DECIDING = "deciding"
WRITING = "writing"
RUNNING = "running what can be run here"
VERIFYING = "verifying"
AUDITING = "running each kernel by itself"


def steps_to(end: str, backend: AnyBackend, given: Situation, tell: Progress) -> Steps:
    """All up to ``end``: DECIDING for a plan, VERIFYING for a package, AUDITING for an audit of the decision."""
    names = tuple(_package(backend, given))
    return Steps(
        names if end == VERIFYING else (*names[: names.index(DECIDING) + 1], *([end] if end == AUDITING else [])), tell
    )


def _package(backend: AnyBackend, given: Situation) -> Iterator[str]:
    if quantizes(backend, given):
        yield QUANTIZING
    yield DECIDING
    yield WRITING
    if given.request.compile is not False:
        yield RUNNING
    yield VERIFYING
