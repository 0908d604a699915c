from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from attacks.kinds import PACKAGING
from attacks.victims import run_here

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


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good package of the small network; nobody changes it."""
    out = tmp_path_factory.mktemp("made") / "out"
    ending = run_here(*PACKAGING, out)
    assert ending.status == 0, ending.output
    return out


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "out"))
