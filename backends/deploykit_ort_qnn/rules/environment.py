"""Rules about the provider that is installed here, against the one the plan is for. Codes ORT140 to ORT149."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.hosts import host_toolchain
from deploykit_qualcomm.rows import Wheel

__all__ = ["RULES", "EnvironmentScope"]

_LAB = "onnxruntime-qnn 2.3.0 to 2.7.0 with ONNX Runtime 1.24.2 to 1.31.1, run on Linux x86-64 without hardware"

_OLD = "binaries of onnxruntime-qnn 1.22.2 (QAIRT 2.36.1, under Wine 8.0) run by onnxruntime-qnn 2.7.0 on Linux x86-64"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentScope:
    """Who can compile here (``wheel``, ``qairt``, ``onnxruntime``), None for nobody, and the wheel that is planned.

    ``emulator`` is the provider installed beside this Python, whose emulator runs what was compiled.
    """

    installed: Mapping[str, str] | None
    planned: Wheel
    emulator: Mapping[str, str] | None = None


RULES: Registry[EnvironmentScope] = Registry("environment")


@RULES.rule(
    "ORT140",
    "not-compiled-here",
    "info",
    what="The provider is not installed here, so nothing was compiled.",
    why="Without compiling, refused nodes, changed types and wrong numbers stay unknown.",
    fix="pip install 'deploykit[ort-qnn]' on Linux x86-64, or run scripts/compile.py elsewhere.",
    sources=[_LAB],
)
def check_absent(scope: EnvironmentScope) -> Iterator[Found]:
    """No wheel."""
    if scope.installed is None:
        message = "onnxruntime-qnn is not installed"
        yield Found(kind=SubjectKind.ENVIRONMENT, name="onnxruntime-qnn", message=message, hint=_way(scope.planned))


def _way(planned: Wheel) -> str:
    """How to compile here by a toolchain, "" for the rule's own words."""
    spec = host_toolchain(planned.sdk)
    if spec is None:
        return ""
    return f"deploykit toolchain install {spec.name}-{spec.version}{' (needs Wine)' if spec.needs else ''}"


@RULES.rule(
    "ORT141",
    "another-wheel",
    "warning",
    what="Another wheel is installed than the one the package is for; nothing was compiled.",
    why="A binary made by a newer QAIRT does not load in an older runtime.",
    fix="Install the wheel named, in an environment of its own, and run scripts/compile.py there.",
    sources=[_LAB],
)
def check_other_wheel(scope: EnvironmentScope) -> Iterator[Found]:
    """A wheel of another version."""
    if scope.installed is not None and scope.installed["wheel"] != scope.planned.version:
        message = f"onnxruntime-qnn {scope.installed['wheel']} is installed, the package is for {scope.planned.version}"
        yield Found(kind=SubjectKind.ENVIRONMENT, name="onnxruntime-qnn", message=message, hint=_way(scope.planned))


@RULES.rule(
    "ORT142",
    "unloadable-wheel",
    "warning",
    what="This ONNX Runtime is known not to load this wheel, or the pair was never tried.",
    why="The provider then fails to start, and Python opens the model on the CPU instead.",
    fix="Use one of the pairs that 'deploykit compat wheel' lists as supported.",
    sources=[_LAB],
)
def check_pair(scope: EnvironmentScope) -> Iterator[Found]:
    """A broken or untried pair."""
    if scope.installed is None or scope.installed["wheel"] != scope.planned.version:
        return
    if scope.planned.provider != "plugin":
        return  # it brings its own ONNX Runtime
    version = scope.installed["onnxruntime"]
    status = next((pair.status for pair in scope.planned.onnxruntime if pair.version == version), Status.UNKNOWN)
    if status is not Status.SUPPORTED:
        message = f"onnxruntime-qnn {scope.planned.version} with onnxruntime {version}: {status}"
        yield Found(kind=SubjectKind.ENVIRONMENT, name="onnxruntime", message=message)


@RULES.rule(
    "ORT143",
    "emulated-by-another-release",
    "info",
    what="The binary was compiled by one QAIRT release and runs here on the emulator of another.",
    why="The emulator of a later release executes older binaries. That proves that a binary is whole and computes what "
    "was meant; what the runtime of its own release computes is not shown by it.",
    fix="Nothing to do; compare on the device.",
    sources=[_OLD],
)
def check_emulator(scope: EnvironmentScope) -> Iterator[Found]:
    """A compiler of one release, an emulator of another."""
    if scope.installed is None or scope.emulator is None or scope.installed["wheel"] != scope.planned.version:
        return
    compiled, emulated = scope.installed["qairt"], scope.emulator["qairt"]
    if compiled != emulated:
        message = f"compiled by QAIRT {compiled}, emulated by QAIRT {emulated}"
        yield Found(kind=SubjectKind.ENVIRONMENT, name="emulator", message=message)
