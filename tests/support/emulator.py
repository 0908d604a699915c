"""Runs one model by the worker of the installed provider: on the CPU, or a compiled one on the emulator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from deploykit_ort_qnn.compiler.hosts import HERE
from deploykit_ort_qnn.compiler.jobs import execute


def execute_model(
    root: Path, model: str, inputs: Path, *, provider: Literal["npu", "cpu"], options: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The outputs for the input sets of an npz file; keys of both are ``<set>:<name>``. Raises ToolError."""
    sets: dict[int, dict[str, Any]] = {}
    with np.load(inputs) as data:
        for key in data.files:
            number, _, name = key.partition(":")
            sets.setdefault(int(number), {})[name] = data[key]
    given = [sets[number] for number in sorted(sets)]
    (made,) = execute(HERE, root, ((provider, model, dict(options or {})),), given, 600.0, print)
    return {f"{number}:{name}": value for number, one in enumerate(made) for name, value in one.items()}
