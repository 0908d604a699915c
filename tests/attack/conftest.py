from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from attacks.kinds import PACKAGING

ROOT = Path(__file__).parents[2]


def commit_seed() -> int:
    """A new seed with every commit, so that CI never tries the same cases for ever; what fails names its seed."""
    given = os.environ.get("DEPLOYKIT_ATTACK_SEED")
    if given:
        return int(given)
    git = shutil.which("git")
    done = (
        None
        if git is None
        else subprocess.run([git, "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, encoding="utf-8")
    )
    return int(done.stdout.strip()[:8], 16) if done is not None and done.returncode == 0 else 0


@pytest.fixture(scope="session")
def seed() -> int:
    return commit_seed()


@pytest.fixture(scope="session")
def cnn() -> tuple[str, ...]:
    return PACKAGING
