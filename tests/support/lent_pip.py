"""Environments of tests borrow this Python's pip: installing their own takes three seconds each time."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from deploykit.system import processes
from deploykit.system.processes import ProgramEnd


def lend_pip(patch: pytest.MonkeyPatch) -> None:
    """From now on; where this Python has no pip, environments are made with their own."""
    pip = find_spec("pip")
    if pip is None or pip.origin is None:
        return
    package = Path(pip.origin).parent

    def started(argv: Sequence[str], **named: Any) -> ProgramEnd:
        if list(argv[1:3]) != ["-m", "venv"]:
            return processes.run(argv, **named)
        done = processes.run([*argv[:-1], "--without-pip", argv[-1]], **named)
        (packages,) = Path(argv[-1]).glob("lib/python3*/site-packages")
        (packages / "pip").symlink_to(package)
        return done

    patch.setattr("deploykit.system.installing.run", started)
