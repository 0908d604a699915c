"""Finds who compiles for a wheel: the provider installed beside this Python, or a toolchain. It judges no result.

A host handles a compilation request in a separate process and answers as the worker does.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from deploykit.errors import ToolError
from deploykit.findings.records import Json, Record, Tell
from deploykit.system.environments import environment_of
from deploykit.system.processes import ONLY_INSTALLED, ProgramEnd, run
from deploykit.system.specs import ToolchainSpec
from deploykit_qualcomm.carriers import host_toolchain
from deploykit_qualcomm.hosted import RECORD, ask_runner, read_calls, read_verdicts, refusal_lines
from deploykit_qualcomm.probes import unloadable_library
from deploykit_qualcomm.tables import Wheel, tables

__all__ = [
    "HERE",
    "NOTHING_TAKEN",
    "Host",
    "Work",
    "Worker",
    "installed_wheel",
    "toolchain_host",
    "who_compiles",
]

Work = tuple[ProgramEnd, dict[str, Any] | None, tuple[str, ...]]
"""How the process ended, the worker's answer (None if it died before giving one), and the log."""

_PROGRESS = "deploykit-progress: "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_LINES = 200
_LEAST_MEMORY = 640 << 20
_MEMORY_PER_BYTE = 1024

_PROGRAM = """
import runpy, sys, types
package = types.ModuleType("deploykit_ort_qnn")
package.__path__ = [sys.argv.pop(1)]
sys.modules["deploykit_ort_qnn"] = package
runpy.run_module("deploykit_ort_qnn.compiler.worker", run_name="__main__", alter_sys=True)
"""
"""Finds the worker's modules by their folder: a toolchain's Python has no deploykit, and needs none of it."""


class Worker(Record):
    """The Python that runs ``deploykit_ort_qnn.compiler.worker``.
    ``environment`` holds variables added to the caller's.
    """

    python: str
    environment: Mapping[str, str] = {}

    def work(self, request: Json, root: Path, scratch: Path, timeout: float, progress: Tell) -> Work:
        """Handles one request; its paths are relative to ``root``. Raises
        ToolError if the provider cannot be used here.
        """
        question, answer = scratch / "request.json", scratch / "result.json"
        question.write_text(json.dumps(request), "utf-8")
        answer.unlink(missing_ok=True)
        log = deque[str](maxlen=_LOG_LINES)

        def hear(line: str) -> None:
            text = _COLOUR.sub("", line).strip()
            if text.startswith(_PROGRESS):
                progress(text.removeprefix(_PROGRESS))
            elif text:
                log.append(text)

        program = ("-c", _PROGRAM, str(Path(__file__).resolve().parents[1]))
        done = run(
            (self.python, *program, str(question.resolve()), str(answer.resolve())),
            cwd=root,
            env={**ONLY_INSTALLED, **self.environment},
            timeout=timeout,
            on_line=hear,
            memory=_memory(request, root),
        )
        # If the vendor's libraries do not load, the compiler was not asked, so this says nothing about the model.
        unloadable = unloadable_library(log)
        if unloadable is not None:
            what = "the libraries of the QNN provider cannot be loaded on this machine"
            raise ToolError(what, why=unloadable[0], next=unloadable[1])
        if not answer.exists():
            if any("ModuleNotFoundError" in line or "ImportError" in line for line in log):
                raise ToolError(
                    "the QNN provider cannot be used here",
                    why=log[-1],
                    next="install it: pip install 'deploykit[ort-qnn]' (Linux x86-64)",
                )
            return done, None, tuple(log)
        return done, json.loads(answer.read_text("utf-8")), tuple(log)


def _memory(request: Json, root: Path) -> int | None:
    """The bytes of memory that the worker may take, None without a model.

    A graph of a kilobyte can have constants of any size, which the runtime computes. A thousand times the model's size
    is more than the compiler takes for a real model; external data lies beside the model.
    """
    if "model" not in request:
        return None
    folder = (root / str(request["model"])).parent
    return _LEAST_MEMORY + _MEMORY_PER_BYTE * sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


HERE = Worker(python=sys.executable)
"""The Python that deploykit runs in."""


def installed_wheel() -> dict[str, str] | None:
    """The versions of the installed provider, of ONNX Runtime, and of the QAIRT
    inside (by the table); None without a provider.
    """
    from importlib.metadata import PackageNotFoundError, version

    if find_spec("onnxruntime_qnn") is None:
        return None
    try:
        wheel, runtime = version("onnxruntime-qnn"), version("onnxruntime")
    except PackageNotFoundError:
        return None
    known = next((row.sdk for row in tables().wheels if row.version == wheel), "unknown")
    return {"wheel": wheel, "qairt": known, "onnxruntime": runtime}


NOTHING_TAKEN = "the provider took no node"
"""The error if nodes may stay on the CPU and all of them did. The worker imports nothing of this module and has it too.
"""

_ALL = 99
"""ONNX Runtime's optimization level for all of its own rewrites."""
_WITH_REASONS = 1
"""The ONNX Runtime log level at which the provider says why it refuses a node."""
_TRACES = ("profiling_level", "profiling_file_path")


class Host(Record):
    """A toolchain whose compiler stands in for the provider installed beside this Python.

    The compiler of a Linux wheel compiles and emulates in a Python of its own. That of a Windows wheel is run under
    Wine. If another wheel's provider calls it, the calls are recorded, and the log holds the backend's own words.
    """

    wheel: Wheel
    spec: ToolchainSpec

    @property
    def identity(self) -> dict[str, str]:
        """``wheel``, ``qairt`` and ``onnxruntime``; the last is pinned, or has the version of the provider's wheel."""
        runtime = self.wheel.asked_by or self.wheel.version
        if self.wheel.runs_on_linux:
            pins = {pin.name: str(pin.specifier).lstrip("=") for pin in map(Requirement, self.spec.constraints)}
            runtime = pins["onnxruntime"]
        return {"wheel": self.wheel.version, "qairt": self.wheel.sdk, "onnxruntime": runtime}

    @property
    def where(self) -> str:
        """Words for a message: the toolchain, or Wine and whose provider calls the compiler."""
        if self.wheel.runs_on_linux:
            return f", toolchain {self.spec.name}-{self.spec.version}"
        return f" under Wine, asked by {self.wheel.asked_by}" if self.wheel.asked_by else " under Wine"

    @property
    def emulator(self) -> Worker | None:
        """The emulator of a Linux wheel, else None: that of a Windows wheel never ends on some graphs."""
        if not self.wheel.runs_on_linux:
            return None
        environment = environment_of(self.spec)
        return Worker(python=str(environment.python), environment=environment.variables)

    def compile(self, request: Json, root: Path, scratch: Path, timeout: float, progress: Tell) -> Work:
        """Compiles a context with a worker of the toolchain's Python, or with the
        runner under Wine, which writes no schematic.
        """
        worker = self.emulator
        if worker is not None:
            environment_of(self.spec).require()
            return worker.work(request, root, scratch, timeout, progress)
        progress(f"compiling {request['model']} with QAIRT {self.wheel.sdk}{self.where}")
        options = {name: value for name, value in request["options"].items() if name not in _TRACES}
        entries = {
            "ep.context_enable": "1",
            "ep.context_file_path": request["context"],
            "ep.context_embed_mode": "1" if request["embed"] else "0",
            **({} if request["allow_cpu"] else {"session.disable_cpu_ep_fallback": "1"}),
            **request["entries"],
        }
        asked = {
            "model": request["model"],
            "provider_options": {"backend_path": "QnnHtp.dll", **options},
            "session_config": entries,
            "optimization": _ALL,
            "log_severity": _WITH_REASONS,
        }
        record = scratch / "record"
        record.mkdir()
        variables = {RECORD: record.relative_to(root).as_posix()} if self.wheel.asked_by else {}
        answer = ask_runner(self.spec, asked, cwd=root, place=scratch, timeout=timeout, variables=variables)
        assert answer.done is not None
        recorded = (record / "record.jsonl").is_file()
        log = (*answer.log, *(refusal_lines(read_verdicts(read_calls(record))) if recorded else ()))
        if answer.done.timed_out or answer.crashed:
            return answer.done, None, log
        if not answer.ok:
            return answer.done, {"ok": False, "error": answer.error.splitlines()[0]}, log
        if not (root / request["context"]).exists():
            return answer.done, {"ok": False, "error": NOTHING_TAKEN}, log
        return answer.done, {"ok": True}, log


def who_compiles(host: Host | None) -> dict[str, str] | None:
    """``wheel``, ``qairt`` and ``onnxruntime`` of a host, or of the provider installed here; None without one."""
    return installed_wheel() if host is None else host.identity


def toolchain_host(wheel: Wheel) -> Host | None:
    """The toolchain that compiles for a wheel; None if the wheel is installed here, or the toolchain is not ready."""
    installed, spec = installed_wheel(), host_toolchain(wheel.sdk)
    if installed is not None and installed["wheel"] == wheel.version:
        return None
    if spec is None or environment_of(spec).state(with_size=False).state != "ready":
        return None
    return Host(wheel=wheel, spec=spec)
