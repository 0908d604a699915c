"""Rules about the compiler and its results: nodes, a package, a DLC. Codes ORT110 to ORT119, ORT130 to ORT149, QNN299.

They start no process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from deploykit.accuracy.latency import in_time
from deploykit.findings import Severity, listed
from deploykit.findings.records import Json, Names, Record
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.carriers import host_toolchain

if TYPE_CHECKING:
    from deploykit.accuracy.latency import Estimate
    from deploykit_ort_qnn.compiler.dlc import Compared
    from deploykit_ort_qnn.compiler.jobs import CompileOutcome
    from deploykit_qualcomm.tables import Wheel

__all__ = [
    "BUDGET_RULES",
    "DLC_RULES",
    "ENVIRONMENT_RULES",
    "PACKAGE_RULES",
    "RULES",
    "DlcScope",
    "EnvironmentScope",
    "PackageScope",
    "TimeBudget",
]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"


RULES: Registry[CompileOutcome] = Registry("compilation")
_rule = partial(RULES.rule, sources=[_LAB])


@_rule("ORT110", "nodes-refused", "error")
def check_refused(outcome: CompileOutcome) -> Finds:
    """The provider does not take these nodes, so that the model would not run wholly on the NPU.

    With CPU fallback the model would open without a word and run in pieces, copied to and fro.

    Fix: Rewrite the nodes or give their tensors encodings (a DequantizeLinear: weights alone are quantized, package the
    float model with --precision w4a16 --calibration DATA); --option session.disable_cpu_ep_fallback=0 leaves them on
    the CPU.
    """
    # Nodes named in the log of a refused compilation.
    if outcome.status == "refused":
        for node in outcome.refused:
            yield Found(
                "node",
                node.name,
                f"{node.type} {node.name} is not taken by the provider{f': {node.why}' if node.why else ''}",
                evidence={"type": node.type, **({"why": node.why} if node.why else {})},
            )


@_rule("ORT111", "compiler-failed", "error")
def check_failed(outcome: CompileOutcome) -> Finds:
    """The compiler ended with an error that names no node.

    There is no context binary.

    Fix: Read the log under logs/; 'deploykit diagnose' knows some of its messages.
    """
    if outcome.status == "failed":
        if "default CPU EP" in outcome.message:  # if it takes other nodes, it names those that it does not take
            hint = "compute it on the host: QNN208, QNN284 and DK017 of 'deploykit check' say what the operators lack"
            yield Found("model", "model", "the provider takes no node of the model", hint=hint)
            return
        cause = next((line for line in outcome.log if "Error:" in line or "failed" in line.lower()), "")
        yield Found(
            "model", "model", f"the compiler failed: {outcome.message}", evidence={"log": cause} if cause else {}
        )


@_rule("ORT112", "compiler-crashed", "error")
def check_crashed(outcome: CompileOutcome) -> Finds:
    """The compiler's process died.

    A crash of the vendor's library leaves nothing that could be relied on.

    Fix: Report it with the model to the makers of the provider; try another finalization mode or wheel.
    """
    # A worker that died of a signal or ended without an answer.
    if outcome.status == "crashed":
        evidence = {"log": list(outcome.log[-5:]), "nodes": [node.name for node in outcome.culprit]}
        message = outcome.message + _on(outcome)
        yield Found("model", "model", message, evidence=evidence)


def _on(outcome: CompileOutcome) -> str:
    """Names the operators that cause it alone, for a message; "" if they were not found."""
    named = [f"{node.type} {node.name}" for node in outcome.culprit]
    return f"; {len(named)} operators do it alone: {listed(named, most=8)}" if named else ""


@_rule("ORT113", "compiler-timed-out", "error")
def check_timed_out(outcome: CompileOutcome) -> Finds:
    """The compiler did not finish within the time limit.

    Finalizing a large graph can take minutes in one mode and seconds in another.

    Fix: Try --finalization-mode 3 or 1; another mode makes another graph, whose numbers are checked again.
    """
    if outcome.status == "timed-out":
        evidence = {"nodes": [node.name for node in outcome.culprit]} if outcome.culprit else {}
        yield Found("model", "model", f"the compiler was ended: {outcome.message}{_on(outcome)}", evidence=evidence)


@_rule("ORT114", "runs-on-cpu-too", "warning")
def check_cpu_nodes(outcome: CompileOutcome) -> Finds:
    """Some nodes of the compiled model stay on the CPU.

    Every border copies and converts tensors.

    Fix: Leave --option session.disable_cpu_ep_fallback=0 out to see why each node was refused.
    """
    if outcome.ok and outcome.cpu_nodes:
        names = [node.name for node in outcome.cpu_nodes]
        yield Found(
            "model", "model", f"{len(names)} nodes stay on the CPU: {listed(names, most=6)}", evidence={"nodes": names}
        )


_LABS = "onnxruntime-qnn 2.3.0 to 2.7.0 with ONNX Runtime 1.24.2 to 1.31.1, run on Linux x86-64 without hardware"

_OLD = "binaries of onnxruntime-qnn 1.22.2 (QAIRT 2.36.1, under Wine 8.0) run by onnxruntime-qnn 2.7.0 on Linux x86-64"


class EnvironmentScope(Record):
    """The compiler available here, None if there is none, and the wheel that is planned.

    ``installed`` holds the versions of ``wheel``, ``qairt`` and ``onnxruntime``; ``emulator`` is the provider whose
    emulator runs the compiled model.
    """

    installed: Mapping[str, str] | None
    planned: Wheel
    emulator: Mapping[str, str] | None = None


ENVIRONMENT_RULES: Registry[EnvironmentScope] = Registry("environment")
_of_pair = partial(ENVIRONMENT_RULES.rule, sources=[_LABS])


@_of_pair("ORT140", "not-compiled-here", "info")
def check_absent(scope: EnvironmentScope) -> Finds:
    """The provider is not installed here, so nothing was compiled.

    Without compiling, refused nodes, changed types and wrong numbers stay unknown.

    Fix: pip install 'deploykit[ort-qnn]' on Linux x86-64, or run scripts/compile.py elsewhere.
    """
    if scope.installed is None:
        yield Found("environment", "onnxruntime-qnn", "onnxruntime-qnn is not installed", hint=_way(scope.planned))


def _way(planned: Wheel) -> str:
    """How to compile here by a toolchain; "" if there is none, so that the rule's text counts."""
    spec = host_toolchain(planned.sdk)
    if spec is None:
        return ""
    return f"deploykit toolchain install {spec.name}-{spec.version}{' (needs Wine)' if spec.needs else ''}"


@_of_pair("ORT141", "another-wheel", "warning")
def check_other_wheel(scope: EnvironmentScope) -> Finds:
    """Another wheel is installed than the one the package is for; nothing was compiled.

    A binary made by a newer QAIRT does not load in an older runtime.

    Fix: Install the wheel named, in an environment of its own, and run scripts/compile.py there.
    """
    if scope.installed is not None and scope.installed["wheel"] != scope.planned.version:
        yield Found(
            "environment",
            "onnxruntime-qnn",
            f"onnxruntime-qnn {scope.installed['wheel']} is installed, the package is for {scope.planned.version}",
            hint=_way(scope.planned),
        )


@_of_pair("ORT142", "unloadable-wheel", "warning")
def check_pair(scope: EnvironmentScope) -> Finds:
    """This ONNX Runtime is known not to load this wheel, or the pair was never tried.

    The provider then fails to start, and Python opens the model on the CPU instead.

    Fix: Use one of the pairs that 'deploykit compat wheel' lists as supported.
    """
    if scope.installed is None or scope.installed["wheel"] != scope.planned.version:
        return
    if scope.planned.provider != "plugin":
        return  # it brings its own ONNX Runtime
    version = scope.installed["onnxruntime"]
    status = next((pair.status for pair in scope.planned.onnxruntime if pair.version == version), Status.UNKNOWN)
    if status is not Status.SUPPORTED:
        yield Found(
            "environment",
            "onnxruntime",
            f"onnxruntime-qnn {scope.planned.version} with onnxruntime {version}: {status}",
        )


@ENVIRONMENT_RULES.rule("ORT143", "emulated-by-another-release", "info", _OLD)
def check_emulator(scope: EnvironmentScope) -> Finds:
    """The binary was compiled by one QAIRT release and runs here on the emulator of another.

    The emulator of a later release executes older binaries. That proves that a binary is whole and computes what was
    meant; what the runtime of its own release computes is not shown by it.

    Fix: Compare on the device.
    """
    # A compiler of one release, an emulator of another.
    if scope.installed is None or scope.emulator is None or scope.installed["wheel"] != scope.planned.version:
        return
    compiled, emulated = scope.installed["qairt"], scope.emulator["qairt"]
    if compiled != emulated:
        yield Found("environment", "emulator", f"compiled by QAIRT {compiled}, emulated by QAIRT {emulated}")


class PackageScope(Record):
    """What a package states about one chip, and what its context binary says."""

    provider_options: Mapping[str, str]
    soc_model: int | None
    context: Json
    own_chip: int | None = None
    """The chip that this release's compiler always compiles for, None if it obeys ``soc_model``."""
    unknown_options: Names = ()


PACKAGE_RULES: Registry[PackageScope] = Registry("package")
_of_package = partial(PACKAGE_RULES.rule, sources=[_LAB])


@_of_package("ORT130", "soc-model-unset", "error")
def check_soc_model(scope: PackageScope) -> Finds:
    """The provider options name no chip.

    Without soc_model the result is a v68-like or FP32 build, with no message.

    Fix: Set soc_model; deploykit writes it for every target.
    """
    if not scope.provider_options.get("soc_model"):
        yield Found("file", "provider options", "soc_model is not set")


@_of_package("ORT131", "option-unknown", "error")
def check_unknown_options(scope: PackageScope) -> Finds:
    """The provider options hold a name that the provider does not know.

    The provider ignores it without a word, so what was wanted does not happen.

    Fix: Correct the spelling; 'deploykit compat provider-option' lists all.
    """
    for name in scope.unknown_options:
        yield Found("file", name, f"{name}: the provider has no such option")


@_of_package("ORT132", "context-for-another-chip", "error")
def check_context_chip(scope: PackageScope) -> Finds:
    """The context binary was compiled for another chip than the package says.

    A binary may load elsewhere, or not, and its graph is another one.

    Fix: Compile again with compile.py of this package.
    """
    # soc_model inside the binary against the target's.
    found = scope.context.get("soc_model")
    if found is not None and scope.soc_model is not None and found != scope.soc_model:
        message = f"the binary is for soc_model {found}, the package for {scope.soc_model}"
        if found != scope.own_chip:
            yield Found("file", "context binary", message)
            return
        yield Found(
            "file",
            "context binary",
            f"{message}: the compiler of this release knows no other (QNN295)",
            severity=Severity.WARNING,
            hint="try it on the device, or take a release whose compiler obeys soc_model",
        )


class TimeBudget(Record):
    """The time limit of a model (``--max-time``), and the compiler's estimate."""

    most_us: float
    estimate: Estimate | None


BUDGET_RULES: Registry[TimeBudget] = Registry("time")


@BUDGET_RULES.rule("ORT115", "slower-than-asked", "error", _LAB)
def check_budget(scope: TimeBudget) -> Finds:
    """By the compiler's own cost model this takes longer than --max-time allows.

    The estimate is the accelerator's time alone: a call on the device takes longer than that.

    Fix: Look at the dearest operators ('deploykit explain PACKAGE'); fewer bits or another form of them may help.
    """
    # The estimate counts, not its upper end.
    estimate = scope.estimate
    if estimate is not None and not estimate.instead_of and estimate.time_us > scope.most_us:
        message = f"{estimate.described}; {in_time(scope.most_us)} were asked for"
        yield Found("model", "model", message, evidence={"time_us": estimate.time_us, "most_us": scope.most_us})


@BUDGET_RULES.rule("ORT116", "time-not-estimated", "warning", _LAB)
def check_no_budget(scope: TimeBudget) -> Finds:
    """--max-time was asked for, and the compiler has no cost model of this chip.

    Then nothing can be held against the limit before there is a device.

    Fix: Measure it on the device; --estimate tells the time on the nearest chip that the compiler has a model of.
    """
    # There is no estimate, or only that of another chip.
    estimate = scope.estimate
    if estimate is None or estimate.instead_of:
        told = f": {estimate.described}" if estimate is not None else ""
        yield Found(
            "model", "model", f"{in_time(scope.most_us)} were asked for, and nothing can be held against it{told}"
        )


_DLC_LAB = "onnxruntime-qnn 2.3.0 (metadata 2.2.0) and 2.7.0 (metadata 2.3.0) run on Linux x86-64 without hardware"
_CONVERTER = "user script for DLC files of qairt-converter 2.48 (metadata 2.3.0, no check sums), public repository"


class DlcScope(Record):
    """A DLC as read back: the release that wrote it, its metadata's version, and the compared tensors.

    ``why`` says why there is no DLC, "" if there is one.
    """

    qairt: str = ""
    metadata: str = ""
    compared: tuple[Compared, ...] = ()
    why: str = ""

    @property
    def wrong(self) -> Names:
        """The tensors with another type or grid than intended."""
        return tuple(row.tensor for row in self.compared if not row.ok)


DLC_RULES: Registry[DlcScope] = Registry("dlc")


@DLC_RULES.rule("QNN299", "dlc-without-converter", "info", [_DLC_LAB, _CONVERTER])
def check_dlc(scope: DlcScope) -> Finds:
    """A DLC was written from the Q/DQ model by the provider, without a converter.

    Each release writes metadata of its own version, and which releases read it is not documented. What a release writes
    its own tools and later ones should read (inferred); nobody tried it here.

    Fix: list it with qairt-dlc-info of the SDK that will read it before anything is built on it
    """
    # A missing DLC, or one with other types, is an error; a right one is reported with its limits.
    if scope.why:
        yield _dlc_found(Severity.ERROR, f"no DLC was written: {scope.why}")
    elif scope.wrong:
        text = f"{len(scope.wrong)} of {len(scope.compared)} tensors have another type or grid: {listed(scope.wrong)}"
        yield _dlc_found(Severity.ERROR, text)
    elif scope.metadata:
        yield _dlc_found(
            Severity.INFO,
            f"written by QAIRT {scope.qairt or '(it does not say which)'} with metadata {scope.metadata}; "
            f"{len(scope.compared)} tensors have the types and grids that were meant; tools of the release that wrote "
            "it and later ones should read it (inferred)",
        )


def _dlc_found(severity: Severity, message: str) -> Found:
    from deploykit_ort_qnn.compiler.dlc import DLC

    return Found("file", DLC, message, severity=severity)
