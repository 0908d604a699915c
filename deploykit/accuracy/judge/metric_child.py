"""Runs in a child process: calls the user's function on stored outputs and leaves its number in a file.

It stands by itself and imports nothing of deploykit: ``metric_child.py MODULE:FUNCTION FOLDER``.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]


def main(target: str, folder: Path) -> None:
    """Reads ``outputs/`` and ``references/`` or ``references.json``; writes ``result.json``."""
    sys.path.insert(0, str(Path.cwd()))
    module, _, name = target.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    listed = folder / "references.json"
    references = (
        [Path(name) for name in json.loads(listed.read_text("utf-8"))]
        if listed.exists()
        else _arrays(folder / "references")
    )
    number = float(function(_arrays(folder / "outputs"), references))
    if not math.isfinite(number):
        raise ValueError(f"{target} gave {number}, which is no measure")
    (folder / "result.json").write_text(json.dumps(number), "utf-8")


def _arrays(folder: Path) -> list[Any]:
    names = json.loads((folder / "names.json").read_text("utf-8"))
    samples = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as stored:
            samples.append({name: stored[f"v{place}"] for place, name in enumerate(names)})
    return samples


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
