"""The inputs and results of a probe for ``deploykit doctor``. It looks at nothing itself.

Programs are started only through ``deploykit.system.processes``.
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
    """The result of one check.

    ``absent`` means missing, which matters only if it is wanted; ``next`` says how to get it.
    """

    id: str
    state: State
    detail: str
    next: str = ""
    facts: Json = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, good: bool, detail: str, cure: str, *, bad: State = "problem", **facts: Any) -> CheckLine:
        """Makes a line; ``cure`` is shown only if the check is not good."""
        return cls(id=name, state="ok" if good else bad, detail=detail, next="" if good else cure, facts=facts)


class Surroundings(Record):
    """The machine as a probe sees it: environment, home, the file system's
    root, and functions to find and start programs.
    """

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
    """Starts a program and waits for its end; one that cannot be started ends with 127 and the reason as output."""
    try:
        return around.run(argv, timeout=timeout, env={**ONLY_INSTALLED, **(env or {})})
    except ToolError as error:
        return ProgramEnd(argv, 127, tail=(str(error.why or error.what),), seconds=0.0)
