import shutil
from pathlib import Path

import pytest

from victims import PACKAGING, run_here


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
