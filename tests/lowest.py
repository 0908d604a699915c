"""Prints the oldest versions that pyproject.toml allows, as constraints for pip: ``python tests/lowest.py > FILE``.

Of the compiler's wheel the newest is taken all the same: which release compiles is what its tests are about.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LEFT_OUT = ("deploykit", "onnxruntime-qnn")


def lowest(text: str) -> Iterator[str]:
    """``name==version`` of every dependency with a lower bound."""
    project = tomllib.loads(text)["project"]
    for row in [*project["dependencies"], *project["optional-dependencies"]["images"]]:
        found = re.match(r"([\w.-]+)>=([\w.]+)", row)
        if found is not None and found[1] not in LEFT_OUT:
            yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print("\n".join(lowest(PROJECT.read_text("utf-8"))))
