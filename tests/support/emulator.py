"""Runs one model by the worker of the installed provider: on the CPU, or a compiled one on the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from deploykit_ort_qnn.compiler.hosts import HERE
from deploykit_ort_qnn.compiler.jobs import _execute

__all__ = ["execute_model"]


def execute_model(
    root: Path, model: str, inputs: Path, *, provider: Literal["npu", "cpu"], options: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The outputs for the input sets of an npz file; keys of both are ``<set>:<name>``. Raises ToolError."""
    return _execute(HERE, root, ((provider, model, dict(options or {})),), inputs, 600.0, None)[0]
