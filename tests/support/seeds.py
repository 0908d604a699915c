"""A seed for each commit, so that CI does not try the same cases for ever; what fails names its seed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

__all__ = ["commit_seed", "share_of"]

T = TypeVar("T")
WHOLE = bool(os.environ.get("DEPLOYKIT_WHOLE"))
"""Everything, whatever it takes: for the laboratory."""


def commit_seed() -> int:
    """``DEPLOYKIT_ATTACK_SEED``, or a number made of the commit that is checked out; 0 without a history."""
    given = os.environ.get("DEPLOYKIT_ATTACK_SEED")
    if given:
        return int(given)
    git = shutil.which("git")
    if git is None:
        return 0
    asked = [git, "-C", str(Path(__file__).parents[2]), "rev-parse", "HEAD"]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
    return int(done.stdout.strip()[:8], 16) if done.returncode == 0 else 0


def share_of(rows: Sequence[T], parts: int = 4) -> list[T]:
    """Every fourth row, the same in each run; all of them with ``DEPLOYKIT_WHOLE=1``."""
    return list(rows) if WHOLE else list(rows[::parts])
