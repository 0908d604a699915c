"""Where deciding starts: the model simplified, and what was found in the one that was given. It finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deploykit.backend.backend import Situation
from deploykit.backend.kept import Kept
from deploykit.findings import Finding
from deploykit.flow.rewriting import RewriteStep
from deploykit.flow.simplifying import Simplified, simplify

__all__ = ["Judged", "Start", "start_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the core's rules and the backend's find in a situation."""

    core: tuple[Finding, ...]
    planned: tuple[Finding, ...]

    @property
    def all(self) -> tuple[Finding, ...]:
        """The core's first."""
        return (*self.core, *self.planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The situation to go on with, the steps that led there, what was found before them, and the core's word after."""

    situation: Situation
    steps: tuple[RewriteStep, ...]
    given: Judged
    core: tuple[Finding, ...]


def start_from(given: Situation, kept: Kept, judge: Callable[[Situation], Judged]) -> Start:
    """The start for a situation: what ``judge`` finds in it, and the situation simplified where that finds less."""
    made: Simplified = simplify(given, kept, lambda situation: judge(situation).all)
    core = judge(made.situation).core if made.steps else judge(given).core
    return Start(situation=made.situation, steps=made.steps, given=judge(given), core=core)
