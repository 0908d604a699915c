"""Looks for the things that Qualcomm's tools need: SDK folders, tools, Python, NDK, adb, the onnxruntime-qnn wheel.

It installs and changes nothing. Versions are compared with the SDK tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from deploykit.backend.probes import CheckLine, Surroundings, start
from deploykit.errors import DeploykitError
from deploykit.tables.capabilities import SdkTable, Status
from deploykit_qualcomm.resolving import resolve_sdk
from deploykit_qualcomm.tables import tables

__all__ = [
    "probe_adb",
    "probe_ndk",
    "probe_sdks",
    "probe_wheel",
    "unloadable_library",
    "version_of_sdk",
]


# The messages of ONNX Runtime's provider, and of Python.
_SAID = re.compile(r"Unable to load backend, error:\s*(?P<provider>.+)|^OSError: (?P<python>\S*\.so[\d.]*: .+)")
_ABSENT = re.compile(r"(?P<file>[^\s/]+): cannot open shared object")
# The Debian and Ubuntu package by library: slim container images leave it out (seen with the wheel 2.7.0 on Debian).
_PACKAGES = {"libatomic.so.1": "libatomic1"}


def unloadable_library(lines: Iterable[str]) -> tuple[str, str] | None:
    """The linker's message about the first library that a log says cannot be loaded, and what to install; else None.

    The package is named if it is known.
    """
    found = next(filter(None, map(_SAID.search, lines)), None)
    if found is None:
        return None
    why = str(found["provider"] or found["python"]).strip()
    absent = _ABSENT.search(why)
    if absent is None:
        return why, "'ldd' on the libraries in the folder of onnxruntime_qnn shows which are not what they should be"
    package = _PACKAGES.get(absent["file"])
    by = f"apt-get install {package}" if package else f"apt-file search {absent['file']}"
    return why, f"install the system's package that has {absent['file']} (Debian, Ubuntu: {by})"


ROOT_VARIABLES = ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT", "SNPE_ROOT")
_USUAL = ("opt/qcom/aistack/qairt", "opt/qcom/aistack/qnn", "opt/qcom/aistack", "opt/qairt", "opt/qnn")
_AT_HOME = ("qairt", "qnn", "qcom/aistack/qairt", "Qualcomm/AIStack/QAIRT")
_TOOLS = (
    *("qnn-onnx-converter", "qairt-converter", "qairt-quantizer", "qnn-model-lib-generator"),
    *("qnn-context-binary-generator", "qnn-net-run"),
)
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:\.\d+)?")
_REFUSALS = ("error while loading shared libraries", "ModuleNotFoundError", "ImportError", "SyntaxError")
_PYTHONS = ("3.10", "3.12")
_NDK_VARIABLES = ("ANDROID_NDK_ROOT", "ANDROID_NDK_HOME", "ANDROID_NDK")
_REGISTER = """
import ctypes, json, onnxruntime as ort, onnxruntime_qnn as qnn, os
ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
found = [device.ep_name for device in ort.get_ep_devices()]
for name in "libQnnSystem.so", "libQnnHtp.so":
    ctypes.CDLL(os.path.join(os.path.dirname(qnn.get_library_path()), name))
print(json.dumps({"registered": qnn.EP_NAME in found}))
"""


def probe_sdks(around: Surroundings) -> Iterator[CheckLine]:
    """Checks every SDK folder: its version, its tools and the Python they need."""
    roots = dict(_roots(around))
    if not roots:
        yield CheckLine(
            "qairt",
            state="absent",
            detail=f"no SDK: {' and '.join(ROOT_VARIABLES[:2])} are not set, nothing in the usual folders",
            next="unpack QAIRT and set QAIRT_SDK_ROOT; packages can be made without it, not built",
        )
    given = {name: Path(around.env[name]) for name in ROOT_VARIABLES[:2] if around.env.get(name)}
    if len(given) == 2 and len({path.resolve() for path in given.values()}) > 1:
        yield CheckLine(
            "qairt-variables",
            state="problem",
            detail="; ".join(f"{name} is {path}" for name, path in given.items()),
            next="set both to the same folder, or unset one: tools and libraries of two releases do not mix",
        )
    for root, how in roots.items():
        yield from _sdk(around, root, how)


def _roots(around: Surroundings) -> Iterator[tuple[Path, str]]:
    for variable in ROOT_VARIABLES:
        if around.env.get(variable):
            yield Path(around.env[variable]), variable
    folders = [around.root / name for name in _USUAL] + [around.home / name for name in _AT_HOME]
    named = {Path(around.env[variable]).resolve() for variable in ROOT_VARIABLES if around.env.get(variable)}
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if _VERSION.fullmatch(path.name) and (path / "bin").is_dir() and path.resolve() not in named:
                yield path, "found"


def _sdk(around: Surroundings, root: Path, how: str) -> Iterator[CheckLine]:
    name = f"qairt:{root}"
    if not root.is_dir():
        yield CheckLine(name, state="problem", detail=f"{how} names {root}, which is no folder", next="correct it")
        return
    version = version_of_sdk(root)
    if version is None:
        detail = f"{root} ({how}): neither sdk.yaml nor the folder's name tells a version"
        yield CheckLine(name, state="problem", detail=detail, next="is this the SDK's own folder?")
        return
    known: SdkTable | None = None
    try:
        known, findings = resolve_sdk(version)
        word = "; ".join(finding.message for finding in findings) or f"its table is {known.version}"
    except (DeploykitError, InvalidVersion) as error:
        word = str(error).splitlines()[0]
    told = f"QAIRT {version} ({how}); {word}"
    cure = "deploykit has no table for this release"
    yield CheckLine.of(name, known is not None, told, cure, root=str(root), version=version)
    yield _tools(around, root, version)
    if known is not None:
        wanted = [name for name in _PYTHONS if known.status(f"python-{name}") is Status.SUPPORTED]
        present = [name for name in wanted if around.which(f"python{name}")]
        row = next((known.feature(f"python-{name}") for name in wanted), None)
        words = " or ".join(wanted) or "a version that no table has"
        yield CheckLine.of(
            f"python:{version}",
            bool(present),
            f"the converters of {version} need Python {words}; found: {', '.join(present) or 'none'}",
            f"install python{wanted[0]}, or make an environment with it" if wanted else "",
            wanted=wanted,
            present=present,
            source=[] if row is None else list(row.source),
        )


def version_of_sdk(root: Path) -> str | None:
    """The release that an SDK's folder states, None if it states none."""
    description = root / "sdk.yaml"
    text = description.read_text("utf-8", "replace") if description.is_file() else ""
    told = re.search(r"^version:\s*['\"]?v?([0-9.]+)", text, re.MULTILINE)
    found = (told and _VERSION.search(told[1])) or _VERSION.search(root.name)
    return found[0] if found else None


def _tools(around: Surroundings, root: Path, version: str) -> CheckLine:
    folder = root / "bin/x86_64-linux-clang"
    present = [tool for tool in _TOOLS if (folder / tool).is_file()]
    broken = {}
    for tool in present:
        # These are the variables of envsetup.sh that starting a tool for its help needs.

        def joined(name: str, first: Path) -> str:
            rest = around.env.get(name, "")
            return f"{first}:{rest}" if rest else str(first)

        ended = start(
            around,
            str(folder / tool),
            "--help",
            env={
                "QNN_SDK_ROOT": str(root),
                "QAIRT_SDK_ROOT": str(root),
                "PYTHONPATH": joined("PYTHONPATH", root / "lib" / "python"),
                "LD_LIBRARY_PATH": joined("LD_LIBRARY_PATH", root / "lib" / "x86_64-linux-clang"),
            },
        )
        # Some tools end with an error after printing help; a message of the
        # loader or of Python means that it did not start.
        text = "\n".join(ended.tail)
        refused = any(mark in text for mark in _REFUSALS)
        if not (ended.ok or (0 < ended.returncode < 126 and not ended.timed_out and not refused)):
            lines = [line for line in ended.tail if line.strip()]
            broken[tool] = lines[-1].strip()[:200] if lines else f"exit status {ended.returncode}"
    missing = [tool for tool in _TOOLS if tool not in present]
    reasons = "".join(f"; {tool} does not start: {reason}" for tool, reason in broken.items())
    return CheckLine(
        f"tools:{version}",
        state="problem" if broken or not present else "ok",
        detail=f"{len(present) - len(broken)} of {len(_TOOLS)} host tools start"
        + (f"; missing: {', '.join(missing)}" if missing else "")
        + reasons,
        next="source the SDK's bin/envsetup.sh in that shell, with the Python it needs" if broken else "",
        facts={"present": present, "missing": missing, "broken": broken},
    )


def probe_ndk(around: Surroundings) -> Iterator[CheckLine]:
    """Checks for the Android NDK, which builds model libraries for Android, and for the host's clang."""
    named = next((name for name in _NDK_VARIABLES if around.env.get(name)), None)
    builder = around.which("ndk-build")
    folder = Path(around.env[named]) if named else None
    if folder is not None and not folder.is_dir():
        yield CheckLine("ndk", state="problem", detail=f"{named} names {folder}, no folder", next="correct it")
    elif folder is not None or builder is not None:
        yield CheckLine("ndk", state="ok", detail=str(folder or builder))
    else:
        yield CheckLine(
            "ndk",
            state="absent",
            detail="no Android NDK (ANDROID_NDK_ROOT, ndk-build)",
            next="install it to build model libraries for Android; context binaries do not need it",
        )
    clang = around.which("clang++")
    cure = "install clang and libc++: qnn-model-lib-generator compiles with it on the host"
    yield CheckLine.of("clang", bool(clang), clang or "no clang++", cure, bad="absent")


def probe_adb(around: Surroundings) -> Iterator[CheckLine]:
    """Checks for devices that adb sees, with their states."""
    adb = around.which("adb")
    if adb is None:
        yield CheckLine("adb", state="absent", detail="no adb", next="install platform-tools to run on a device")
        return
    ended = start(around, adb, "devices", timeout=30.0)
    rows = [line.split("\t") for line in ended.tail if "\t" in line]
    ready = [row[0] for row in rows if row[1].strip() == "device"]
    states = [f"{row[0]} is {row[1].strip()}" for row in rows]
    if not ended.ok:
        yield CheckLine("adb", state="problem", detail=f"{adb} ends with {ended.returncode}", next="run it by hand")
    elif states and not ready:
        detail, advice = "; ".join(states), "unlock the device and allow debugging"
        yield CheckLine("adb", state="problem", detail=detail, next=advice, facts={"devices": []})
    else:
        detail, cure = (
            f"devices: {', '.join(ready)}" if ready else "no device",
            "connect one, with debugging switched on",
        )
        yield CheckLine.of("adb", bool(ready), detail, cure, bad="absent", devices=ready)


def probe_wheel(around: Surroundings) -> Iterator[CheckLine]:
    """Checks in a child process whether the installed onnxruntime and onnxruntime-qnn load together."""
    runtime, provider = _installed(around, "onnxruntime"), _installed(around, "onnxruntime-qnn")
    if provider is None or runtime is None:
        missing = "onnxruntime-qnn" if provider is None else "onnxruntime"
        advice = "pip install 'deploykit[ort-qnn]' (Linux x86-64, for Qualcomm through ONNX Runtime)"
        yield CheckLine("onnxruntime-qnn", state="absent", detail=f"{missing} is not installed", next=advice)
        return
    ended = start(around, around.python, "-c", _REGISTER)
    try:
        loads = ended.ok and bool(json.loads(ended.tail[-1])["registered"])
    except (IndexError, KeyError, TypeError, ValueError):
        loads = False
    row = next((wheel for wheel in tables().wheels if Version(wheel.version) == Version(provider)), None)
    inside = f"carries QAIRT {row.sdk}" if row is not None else "its QAIRT is not in the tables"
    lines = [line for line in ended.tail if line.strip()]
    unloadable = unloadable_library(lines)
    pairs = [
        f"{wheel.version} with {pair.version}"
        for wheel in tables().wheels
        for pair in wheel.onnxruntime
        if pair.status is Status.SUPPORTED
    ]
    advice = f"pairs (onnxruntime-qnn with onnxruntime) that were seen to work: {', '.join(pairs[-4:])}"
    said = lines[-1].strip()[:200] if lines else f"exit status {ended.returncode}"
    yield CheckLine.of(
        "onnxruntime-qnn",
        loads,
        f"onnxruntime-qnn {provider} ({inside}) in onnxruntime {runtime}: "
        + ("loads" if loads else f"does not load: {said}"),
        unloadable[1] if unloadable is not None else advice,
        onnxruntime=runtime,
        onnxruntime_qnn=provider,
        sdk=None if row is None else row.sdk,
    )


def _installed(around: Surroundings, name: str) -> str | None:
    ended = start(around, around.python, "-c", f"from importlib.metadata import version; print(version({name!r}))")
    return ended.tail[-1].strip() if ended.ok and ended.tail else None
