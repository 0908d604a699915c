"""What this machine can do: the core's own checks, and the probes that backends offer. It installs and changes nothing.

Everything a probe looks at comes from its ``Surroundings``, so that a test can hand it a machine of its own.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from deploykit.backend.backend import AnyBackend
from deploykit.backend.probes import CheckLine, Probe, Surroundings, start
from deploykit.errors import DeploykitError
from deploykit.system.processes import ProgramEnd

__all__ = ["examine", "examine_core"]

_ROOM = 5 << 30
_PACKAGES = ("onnx", "onnxruntime", "numpy", "click", "jinja2", "packaging")


def examine(backends: Iterable[AnyBackend], surroundings: Surroundings | None = None) -> tuple[CheckLine, ...]:
    """Run the core's checks and every backend's probes once; a probe that fails is a line, not an end."""
    around = surroundings or Surroundings()
    lines = list(examine_core(around))
    seen: set[Probe] = set()
    for backend in backends:
        for probe in backend.probes():
            if probe not in seen:
                seen.add(probe)
                try:
                    lines += probe(around)
                except (DeploykitError, OSError) as error:
                    name = getattr(probe, "__name__", "probe")
                    told = "look at that file or folder"
                    lines.append(CheckLine(id=name, state="problem", detail=str(error), next=told))
    return tuple(lines)


def examine_core(around: Surroundings) -> Iterator[CheckLine]:
    """Python, deploykit's own packages, the kind of machine, a C++ compiler, and room on the disk."""
    yield _python()
    yield _packages(around)
    yield _machine()
    yield _compiler(around)
    for name, folder in (("disk-here", Path.cwd()), ("disk-home", around.home)):
        yield _disk(name, folder)


def _python() -> CheckLine:
    version = platform.python_version()
    fits = sys.version_info >= (3, 11)
    return CheckLine(
        id="python",
        state="ok" if fits else "problem",
        detail=f"Python {version}, {sys.executable}",
        next="" if fits else "deploykit needs Python 3.11 or later",
        facts={"version": version},
    )


def _packages(around: Surroundings) -> CheckLine:
    """Versions by their metadata, and one child process that really imports the heavy ones."""
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    missing = [name for name, number in versions.items() if not number]
    tried = start(around, around.python, "-c", "import onnx, onnxruntime, numpy")
    good = not missing and tried.ok
    detail = ", ".join(f"{name} {number or 'missing'}" for name, number in versions.items())
    return CheckLine(
        id="packages",
        state="ok" if good else "problem",
        detail=detail if tried.ok else f"{detail}; importing them fails: {_last(tried)}",
        next="" if good else "install deploykit again, with its dependencies",
        facts=versions,
    )


def _machine() -> CheckLine:
    system, machine = platform.system(), platform.machine()
    known = system == "Linux" and machine == "x86_64"
    return CheckLine(
        id="machine",
        state="ok" if known else "problem",
        detail=f"{system} {machine}, {os.cpu_count()} processors",
        next="" if known else "vendor tools and emulators were tried on Linux x86-64 only",
    )


def _compiler(around: Surroundings) -> CheckLine:
    found = next((path for name in ("c++", "g++", "clang++") if (path := around.which(name))), None)
    return CheckLine(
        id="c++",
        state="ok" if found else "absent",
        detail=found or "no C++ compiler (c++, g++, clang++)",
        next="" if found else "install g++: some quantizers compile operators at their first import",
    )


def _disk(name: str, folder: Path) -> CheckLine:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return CheckLine(id=name, state="problem", detail=f"{folder}: {error.strerror}", next="choose another folder")
    return CheckLine(
        id=name,
        state="ok" if free >= _ROOM else "problem",
        detail=f"{free / (1 << 30):.1f} GB free at {folder}",
        next="" if free >= _ROOM else "make room: a toolchain with torch takes about 2 GB",
        facts={"free_bytes": free},
    )


def _last(completed: ProgramEnd) -> str:
    lines = [line for line in completed.tail if line.strip()]
    ending = "timed out" if completed.timed_out else f"exit status {completed.returncode}"
    return lines[-1].strip()[:300] if lines else ending
