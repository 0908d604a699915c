"""What this machine can do: the core's own checks, and the backends' probes. It installs and changes nothing.

A probe looks only at its ``Surroundings``, so that a test can replace the machine.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from deploykit.backend.backend import AnyBackend
from deploykit.backend.probes import CheckLine, Probe, Surroundings, start
from deploykit.errors import DeploykitError

__all__ = ["examine"]

_ROOM = 5 << 30
_PACKAGES = ("onnx", "onnxruntime", "numpy", "click", "jinja2", "packaging")


def examine(backends: Iterable[AnyBackend], surroundings: Surroundings | None = None) -> tuple[CheckLine, ...]:
    """Runs the core's checks and every backend's probes once; a failing
    probe gives a line and does not stop the others.
    """
    around = surroundings or Surroundings()
    lines = list(examine_core(around))
    seen = set[Probe]()
    for backend in backends:
        for probe in backend.probes():
            if probe not in seen:
                seen.add(probe)
                try:
                    lines += probe(around)
                except (DeploykitError, OSError) as error:
                    name = getattr(probe, "__name__", "probe")
                    told = "look at that file or folder"
                    lines.append(CheckLine(name, state="problem", detail=str(error), next=told))
    return tuple(lines)


def examine_core(around: Surroundings) -> Iterator[CheckLine]:
    """Checks Python, deploykit's packages, the kind of machine, a C++ compiler, and the room on the disk."""
    version, line = platform.python_version(), CheckLine.of
    yield line("python", True, f"Python {version}, {sys.executable}", "", version=version)
    yield _packages(around)
    system, machine = platform.system(), platform.machine()
    tried = "vendor tools and emulators were tried on Linux x86-64 only"
    on = f"{system} {machine}, {os.cpu_count()} processors"
    yield line("machine", (system, machine) == ("Linux", "x86_64"), on, tried)
    compiler = next((path for name in ("c++", "g++", "clang++") if (path := around.which(name))), None)
    cure = "install g++: some quantizers compile operators at their first import"
    yield line("c++", bool(compiler), compiler or "no C++ compiler (c++, g++, clang++)", cure, bad="absent")
    for name, folder in (("disk-here", Path.cwd()), ("disk-home", around.home)):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield line(name, False, f"{folder}: {error.strerror}", "choose another folder")
            continue
        detail = f"{free / (1 << 30):.1f} GiB free at {folder}"
        yield line(name, free >= _ROOM, detail, "make room: a toolchain with torch takes about 2 GB", free_bytes=free)


def _packages(around: Surroundings) -> CheckLine:
    """The versions of the packages by their metadata, and whether a child process can import the heavy ones."""
    from importlib.metadata import PackageNotFoundError, version

    versions = dict[str, Any]()
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    tried = start(around, around.python, "-c", "import onnx, onnxruntime, numpy")
    good = all(versions.values()) and tried.ok
    detail = ", ".join(f"{name} {number or 'missing'}" for name, number in versions.items())
    if not tried.ok:
        said = [text.strip() for text in tried.tail if text.strip()]
        ending = "timed out" if tried.timed_out else f"exit status {tried.returncode}"
        detail = f"{detail}; importing them fails: {said[-1][:300] if said else ending}"
    return CheckLine.of("packages", good, detail, "install deploykit again, with its dependencies", **versions)
