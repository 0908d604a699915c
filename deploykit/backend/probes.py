"""What a probe of ``deploykit doctor`` is given and returns; it looks at nothing itself.

Programs are started through ``deploykit.system.processes`` only.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deploykit.errors import ToolError
from deploykit.findings.records import Json, Published, Record, field
from deploykit.system.processes import ONLY_INSTALLED, ProgramEnd, run
from deploykit.system.store import user_home

__all__ = ["CheckLine", "Probe", "Surroundings", "start"]

State: TypeAlias = Literal["ok", "problem", "absent"]

_TIMEOUT = 120.0


class CheckLine(Published, kw_only=False):
    """One thing that was looked at. ``absent`` is not there and only matters to who wants it; ``next`` says how."""

    id: str
    state: State
    detail: str
    next: str = ""
    facts: Json = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, good: bool, detail: str, cure: str, *, bad: State = "problem", **facts: Any) -> CheckLine:
        """A line whose ``cure`` is told only where things are not good."""
        return cls(id=name, state="ok" if good else bad, detail=detail, next="" if good else cure, facts=facts)


class Surroundings(Record):
    """The machine as a probe sees it: environment, home, the file system's root, and how to find and start programs."""

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    home: Path = field(default_factory=user_home)
    root: Path = Path("/")
    python: str = sys.executable
    which: Callable[[str], str | None] = shutil.which
    run: Callable[..., ProgramEnd] = run


Probe: TypeAlias = Callable[[Surroundings], Iterable[CheckLine]]


def start(
    around: Surroundings, *argv: str, timeout: float = _TIMEOUT, env: Mapping[str, str] | None = None
) -> ProgramEnd:
    """Start a program and wait for its end; one that cannot be started ends with 127 and the reason as its output."""
    try:
        return around.run(argv, timeout=timeout, env={**ONLY_INSTALLED, **(env or {})})
    except ToolError as error:
        return ProgramEnd(argv=argv, returncode=127, tail=(str(error.why or error.what),), seconds=0.0)
