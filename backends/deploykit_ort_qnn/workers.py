"""Starts worker processes, of this Python or of a toolchain's, and hears what they answer; it decides no option."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deploykit.errors import ToolError
from deploykit.system.processes import ONLY_INSTALLED, Completed, run
from deploykit_qualcomm.libraries import unloadable_library
from deploykit_qualcomm.tables import tables

__all__ = ["HERE", "Work", "Worker", "installed_wheel"]

Work = tuple[Completed, dict[str, Any] | None, tuple[str, ...]]
"""How the process ended, the worker's answer (None when it died before giving one), and the log."""

_PROGRESS = "deploykit-progress: "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_LINES = 200
_LEAST_MEMORY = 640 << 20
_MEMORY_PER_BYTE = 1024

_ABROAD = """
import runpy, sys, types
package = types.ModuleType("deploykit_ort_qnn")
package.__path__ = [sys.argv.pop(1)]
sys.modules["deploykit_ort_qnn"] = package
runpy.run_module("deploykit_ort_qnn.worker", run_name="__main__", alter_sys=True)
"""
"""Finds the worker's modules by their folder, in a Python that has none of deploykit and must see no other package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The Python that runs ``deploykit_ort_qnn.worker``. ``environment`` is added to the caller's variables.

    ``abroad`` is a Python that has the wheel, and no deploykit.
    """

    python: str
    environment: Mapping[str, str] = field(default_factory=dict)
    abroad: bool = False

    def work(
        self,
        request: Mapping[str, Any],
        root: Path,
        scratch: Path,
        timeout: float,
        progress: Callable[[str], None] | None,
    ) -> Work:
        """Work off one request; paths in it are relative to ``root``. ToolError where the provider is not installed."""
        question, answer = scratch / "request.json", scratch / "result.json"
        question.write_text(json.dumps(request), encoding="utf-8")
        answer.unlink(missing_ok=True)
        log: list[str] = []

        def hear(line: str) -> None:
            text = _COLOUR.sub("", line).strip()
            if text.startswith(_PROGRESS):
                if progress is not None:
                    progress(text.removeprefix(_PROGRESS))
            elif text:
                log.append(text)
                del log[: max(0, len(log) - _LOG_LINES)]

        files = (str(question.resolve()), str(answer.resolve()))
        done = run(
            (*self._program(), *files),
            cwd=root,
            env={**ONLY_INSTALLED, **self.environment},
            timeout=timeout,
            on_line=hear,
            memory=_memory(request, root),
        )
        _check_libraries(log)
        if not answer.exists():
            if any("ModuleNotFoundError" in line or "ImportError" in line for line in log):
                raise ToolError(
                    "the QNN provider cannot be used here",
                    why=log[-1],
                    next="install it: pip install 'deploykit[ort-qnn]' (Linux x86-64)",
                )
            return done, None, tuple(log)
        return done, json.loads(answer.read_text(encoding="utf-8")), tuple(log)

    def _program(self) -> tuple[str, ...]:
        if self.abroad:
            return (self.python, "-c", _ABROAD, str(Path(__file__).resolve().parent))
        return (self.python, "-m", "deploykit_ort_qnn.worker")


def _check_libraries(log: Sequence[str]) -> None:
    """ToolError where the vendor's libraries do not load: nothing was asked about the model, so nothing is said."""
    found = unloadable_library(log)
    if found is not None:
        what = "the libraries of the QNN provider cannot be loaded on this machine"
        raise ToolError(what, why=found.why, next=found.advice)


def _memory(request: Mapping[str, Any], root: Path) -> int | None:
    """Bytes that the worker may take: a graph of a kilobyte can have constants of any size, which the runtime computes.

    A thousand times its size is more than the compiler takes of a real model; external data lies beside the model.
    """
    if "model" not in request:
        return None
    folder = (root / str(request["model"])).parent
    return _LEAST_MEMORY + _MEMORY_PER_BYTE * sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


HERE = Worker(python=sys.executable)
"""The Python that deploykit runs in."""


def installed_wheel() -> dict[str, str] | None:
    """Versions of the installed provider, ONNX Runtime and the QAIRT inside (by the table); None without one."""
    from importlib.metadata import PackageNotFoundError, version

    if find_spec("onnxruntime_qnn") is None:
        return None
    try:
        wheel, runtime = version("onnxruntime-qnn"), version("onnxruntime")
    except PackageNotFoundError:
        return None
    known = next((row.sdk for row in tables().wheels if row.version == wheel), "unknown")
    return {"wheel": wheel, "qairt": known, "onnxruntime": runtime}
