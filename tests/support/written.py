"""What is said, held against a text file beside the tests."""

import os
from collections.abc import Iterable
from pathlib import Path


def assert_as_written(path: Path, said: Iterable[str]) -> None:
    """Every line is as the file has it; after a change that is wanted ``DEPLOYKIT_WRITE_GOLDEN=1`` writes it anew."""
    lines = "\n".join(said).splitlines()
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        path.write_text("\n".join(lines) + "\n", "utf-8")
    assert lines == path.read_text("utf-8").splitlines()
