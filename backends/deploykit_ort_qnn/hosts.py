"""Picks who compiles for a wheel: the provider installed beside this Python, or a toolchain; it judges no result.

A host works off the compilation request of ``compiler.py`` in a process of its own and answers as the worker does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from packaging.requirements import Requirement

from deploykit.system.environments import environment_of
from deploykit.system.specs import ToolchainSpec
from deploykit_ort_qnn.workers import Work, Worker, installed_wheel
from deploykit_qualcomm.hosted import ask_runner
from deploykit_qualcomm.hosts import LINUX, host_toolchain
from deploykit_qualcomm.records import RECORD, read_calls, read_verdicts, refusal_lines
from deploykit_qualcomm.rows import Wheel

__all__ = ["NOTHING_TAKEN", "Host", "ToolchainHost", "WheelHost", "toolchain_host"]

NOTHING_TAKEN = "the provider took no node"
"""The error where nodes may stay on the CPU and all did; the worker, which imports none of this, says it too."""

_LEVELS = {"none": 0, "basic": 1, "extended": 2, "all": 99}
_WITH_REASONS = 1
"""The level of ONNX Runtime's log at which the provider says why it refuses a node."""
_TRACES = ("profiling_level", "profiling_file_path")


class Host(Protocol):
    """Who compiles: the wheel, its QAIRT and ONNX Runtime, where it runs (words for people), and the work itself."""

    @property
    def identity(self) -> Mapping[str, str]:
        """``wheel``, ``qairt`` and ``onnxruntime``."""

    @property
    def where(self) -> str:
        """Words that follow the wheel's name, "" for an ordinary installation."""

    @property
    def emulator(self) -> Worker | None:
        """Who runs what was compiled; None where its own emulator cannot be used."""

    def compile(
        self,
        request: Mapping[str, Any],
        root: Path,
        scratch: Path,
        timeout: float,
        progress: Callable[[str], None] | None,
    ) -> Work:
        """Work off a compilation request; paths in it are relative to ``root``, ``scratch`` lies inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolchainHost:
    """The compiler of a Windows wheel, run by the runner of its toolchain.

    Where another wheel's provider asks this backend, that is recorded, and the log has the backend's own words.
    """

    wheel: Wheel
    spec: ToolchainSpec

    @property
    def identity(self) -> Mapping[str, str]:
        """``wheel``, ``qairt`` and ``onnxruntime``: that of the provider's own wheel, which has the same version."""
        provider = self.wheel.asked_by or self.wheel.version
        return {"wheel": self.wheel.version, "qairt": self.wheel.sdk, "onnxruntime": provider}

    @property
    def where(self) -> str:
        """Under what it runs, and whose provider asks it."""
        return f" under Wine, asked by {self.wheel.asked_by}" if self.wheel.asked_by else " under Wine"

    @property
    def emulator(self) -> None:
        """Its own emulator never ends on some graphs."""
        return None

    def compile(
        self,
        request: Mapping[str, Any],
        root: Path,
        scratch: Path,
        timeout: float,
        progress: Callable[[str], None] | None,
    ) -> Work:
        """Have the runner make the context; this provider writes no schematic, so none is asked for."""
        if progress is not None:
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
            "optimization": _LEVELS[request["optimization"]],
            "log_severity": _WITH_REASONS,
        }
        record = scratch / "record"
        record.mkdir()
        variables = {RECORD: record.relative_to(root).as_posix()} if self.wheel.asked_by else {}
        answer = ask_runner(self.spec, asked, cwd=root, place=scratch, timeout=timeout, variables=variables)
        assert answer.done is not None
        log = (*answer.log, *_said(record))
        if answer.done.timed_out or answer.crashed:
            return answer.done, None, log
        if not answer.ok:
            return answer.done, {"ok": False, "error": answer.error.splitlines()[0]}, log
        if not (root / request["context"]).exists():
            return answer.done, {"ok": False, "error": NOTHING_TAKEN}, log
        return answer.done, {"ok": True, "cpu_nodes": _cpu_nodes(root / request["context"])}, log


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelHost:
    """The compiler and emulator of a Linux wheel, in the Python of its toolchain."""

    wheel: Wheel
    spec: ToolchainSpec

    @property
    def identity(self) -> Mapping[str, str]:
        """``wheel``, ``qairt`` and ``onnxruntime``, the version that the toolchain pins."""
        pins = {pin.name: str(pin.specifier).lstrip("=") for pin in map(Requirement, self.spec.constraints)}
        return {"wheel": self.wheel.version, "qairt": self.wheel.sdk, "onnxruntime": pins["onnxruntime"]}

    @property
    def where(self) -> str:
        """The toolchain."""
        return f", toolchain {self.spec.name}-{self.spec.version}"

    @property
    def emulator(self) -> Worker:
        """That of the same wheel."""
        environment = environment_of(self.spec)
        return Worker(python=str(environment.python), environment=environment.variables, abroad=True)

    def compile(
        self,
        request: Mapping[str, Any],
        root: Path,
        scratch: Path,
        timeout: float,
        progress: Callable[[str], None] | None,
    ) -> Work:
        """Have a worker of the toolchain's Python do it."""
        environment_of(self.spec).require()
        return self.emulator.work(request, root, scratch, timeout, progress)


def toolchain_host(wheel: Wheel) -> ToolchainHost | WheelHost | None:
    """The toolchain that compiles for a wheel; None where the wheel is installed, or the toolchain is not ready."""
    installed, spec = installed_wheel(), host_toolchain(wheel.sdk)
    if installed is not None and installed["wheel"] == wheel.version:
        return None
    if spec is None or environment_of(spec).state(with_size=False).state != "ready":
        return None
    host = ToolchainHost if wheel.runs_on(LINUX) is None else WheelHost
    return host(wheel=wheel, spec=spec)


def _said(record: Path) -> tuple[str, ...]:
    """What the backend says of the nodes that it refuses, nothing where nothing was recorded."""
    if not (record / "record.jsonl").is_file():
        return ()
    return refusal_lines(read_verdicts(read_calls(record)))


def _cpu_nodes(context: Path) -> list[dict[str, str]]:
    """The nodes of a context model that stayed outside of the compiled graphs."""
    import onnx

    graph = onnx.load(context, load_external_data=False).graph
    return [{"name": node.name, "type": node.op_type} for node in graph.node if node.op_type != "EPContext"]
