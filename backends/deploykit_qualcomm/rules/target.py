"""Rules about a target: which table answers for the version asked for, and how well the device is known.

Codes QNN001 to QNN049. Nothing here looks at a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deploykit.contract.targets import Target
from deploykit.findings import Confidence, Severity, SubjectKind
from deploykit.rules import Found, Registry
from deploykit.tables.capabilities import SdkTable, Status
from deploykit.tables.devices import Fact
from deploykit_qualcomm.archs import arch_of, capability

__all__ = ["SDK_RULES", "TARGET_RULES", "SdkChoice", "SdkMatch"]

SdkMatch = Literal["exact", "series", "build", "unlisted-build", "lower", "newer", "below"]
"""How a table was found: the version itself, its series, a listed or unlisted build of it, the nearest lower table
between two, the newest for a newer version, the oldest for an older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkChoice:
    """A version as typed, the table that answers for it, and how the two belong together.

    ``uses_tools`` is False for a backend that runs no tool of the SDK, only its libraries.
    """

    request: str
    table: SdkTable
    match: SdkMatch
    uses_tools: bool = True


SDK_RULES: Registry[SdkChoice] = Registry("sdk")
TARGET_RULES: Registry[Target] = Registry("target")

_CADENCE = "Qualcomm Linux documentation, installation pages: monthly releases"
_OWN = "the tables of this package (backends/deploykit_qualcomm/data/sdks)"


def _sdk(choice: SdkChoice, message: str, hint: str = "") -> Found:
    evidence = {"requested": choice.request, "table": choice.table.version, "match": choice.match}
    return Found(kind=SubjectKind.SDK, name=choice.request, message=message, hint=hint, evidence=evidence)


@SDK_RULES.rule(
    "QNN001",
    "sdk-nearest-lower",
    "warning",
    what="The SDK version that was asked for has no table; the nearest lower one answers.",
    why="Flags, features and configuration keys may have changed between the two releases.",
    fix="Read the plan with that in mind, or add a data file for the release that states what differs.",
    sources=[_OWN, _CADENCE],
)
def check_nearest_lower(choice: SdkChoice) -> Iterator[Found]:
    """A version between two tables."""
    if choice.match == "lower":
        yield _sdk(choice, f"no table for QAIRT {choice.request}: the one of {choice.table.version} answers")


@SDK_RULES.rule(
    "QNN002",
    "sdk-newer-than-tables",
    "warning",
    what="The SDK version that was asked for is newer than every table; the newest one answers.",
    why="What a later release changed is not known here.",
    fix="Read the plan with that in mind, or add a data file for the release that states what differs.",
    sources=[_OWN, _CADENCE],
)
def check_newer(choice: SdkChoice) -> Iterator[Found]:
    """A version beyond the newest table."""
    if choice.match == "newer":
        yield _sdk(choice, f"QAIRT {choice.request} is newer than every table: {choice.table.version} answers")


@SDK_RULES.rule(
    "QNN003",
    "sdk-build-not-listed",
    "info",
    what="The release has a table, but this build of it was not met in any source.",
    why="Builds of one release are expected to take the same flags; nobody has shown it for this one.",
    fix="Check the build number with the SDK's own folder name.",
    sources=[_OWN, "naming of QAIRT releases: 2.<minor>.<patch>.<YYMMDD>"],
)
def check_unlisted_build(choice: SdkChoice) -> Iterator[Found]:
    """A build that the table of its release does not list."""
    if choice.match == "unlisted-build":
        known = ", ".join(choice.table.builds) or "none"
        yield _sdk(choice, f"build {choice.request} is not among those met of {choice.table.version} (met: {known})")


@SDK_RULES.rule(
    "QNN004",
    "sdk-tools-not-seen",
    "warning",
    what="The release was met only inside another package; its converters and generators were not seen.",
    why="The rows of its tools are those of the release before it.",
    fix="Use a release whose tools are known, or check the flags against the SDK's own help.",
    sources=[_OWN, "onnxruntime-qnn wheels 2.4.0 to 2.7.0, which carry HTP libraries and no converter"],
)
def check_carrier(choice: SdkChoice) -> Iterator[Found]:
    """A release known from a wheel, asked for by a backend that runs its tools."""
    if choice.table.carrier and choice.uses_tools:
        yield _sdk(
            choice,
            f"QAIRT {choice.table.version} was met only inside {choice.table.carrier}: "
            "what its tools take is that of the release before",
        )


@SDK_RULES.rule(
    "QNN005",
    "sdk-below-tables",
    "warning",
    what="The SDK version that was asked for is older than every table; the oldest one answers.",
    why="Flags that came later may be used although the old release does not have them.",
    fix="Check every flag of the plan against the old SDK's own help.",
    sources=[_OWN],
)
def check_below(choice: SdkChoice) -> Iterator[Found]:
    """A version older than the oldest table, where the tables declare that a warning."""
    if choice.match == "below":
        yield _sdk(choice, f"QAIRT {choice.request} is older than every table: {choice.table.version} answers")


def _target(target: Target, message: str, *, fact: Fact | None = None, severity: Severity | None = None) -> Found:
    return Found(
        kind=SubjectKind.TARGET,
        name=target.device.id,
        message=message,
        severity=severity,
        sources=fact.source if fact else (),
        evidence={} if fact is None else {"value": fact.value, "alternatives": list(fact.alternatives)},
    )


@TARGET_RULES.rule(
    "QNN010",
    "arch-unknown",
    "error",
    what="Nobody published the HTP architecture of the chip.",
    why="dsp_arch decides which data types and kernels exist; left out, the offline backend validates for v68.",
    fix="Read the architecture from the SDK's list of supported devices and put it into a device file.",
    sources=["docs.qualcomm.com 80-87189-2, HTP Backend Extensions", "device tables of LiteRT and ExecuTorch"],
)
def check_arch_unknown(target: Target) -> Iterator[Found]:
    """A chip without architecture: an error where dsp_arch is written, else a warning."""
    if arch_of(target.device) is None and capability("htp", device=target.device) is None:
        severity = None if target.backend == "qnn-htp" else Severity.WARNING
        yield _target(target, f"the HTP architecture of {target.device.name} is unknown", severity=severity)


@TARGET_RULES.rule(
    "QNN011",
    "no-htp",
    "error",
    what="The chip has no HTP.",
    why="Its accelerator is of another generation or family; the HTP backend cannot run on it.",
    fix="Choose a chip with architecture v68 or later.",
    sources=["google-ai-edge/LiteRT litert/vendors/qualcomm soc_table.cc (history before its removal)"],
)
def check_no_htp(target: Target) -> Iterator[Found]:
    """A chip that is known to have no HTP."""
    fact = capability("htp", device=target.device)
    if fact is not None and fact.value is False:
        yield _target(target, f"{target.device.name} has no HTP", fact=fact)


@TARGET_RULES.rule(
    "QNN012",
    "soc-model-contradicted",
    "warning",
    what="Sources disagree about the soc_model number of the chip.",
    why="A wrong number gives a binary for another SoC, or none: 'Invalid config values'.",
    fix="Compare with the SDK's list of supported devices; set the other number with --option if that is right.",
    sources=["device tables of LiteRT and ExecuTorch, and public scripts"],
)
def check_soc_model_contradicted(target: Target) -> Iterator[Found]:
    """A soc_model that another source gives differently."""
    fact = target.device.facts.get("soc_model")
    if fact is not None and (fact.contradicts or fact.alternatives):
        others = " or ".join(str(value) for value in fact.alternatives)
        yield _target(target, f"soc_model {fact.value} or {others}: {fact.contradicts}", fact=fact)


@TARGET_RULES.rule(
    "QNN013",
    "arch-contradicted",
    "warning",
    what="Sources disagree about the HTP architecture of the chip.",
    why="A binary for a later architecture than the chip's does not load; one for an earlier wastes the chip.",
    fix="Compare with the SDK's list of supported devices before you rely on the package.",
    sources=["device tables and compile scripts in public repositories"],
)
def check_arch_contradicted(target: Target) -> Iterator[Found]:
    """An architecture that another source gives differently."""
    fact = target.device.facts.get("arch")
    if fact is not None and (fact.contradicts or fact.alternatives):
        others = " or ".join(str(value) for value in fact.alternatives)
        yield _target(target, f"architecture {fact.value} or {others}: {fact.contradicts}", fact=fact)


@TARGET_RULES.rule(
    "QNN014",
    "weak-device-facts",
    "info",
    what="What decides about the chip rests on reports or inference only.",
    why="A package for it is as sure as its weakest decisive fact.",
    fix="Compare with the SDK's list of supported devices.",
    sources=["the device's own data file"],
)
def check_weak_facts(target: Target) -> Iterator[Found]:
    """A soc_model, architecture or VTCM size that no maker stated and no published code has."""
    weak = {
        name: target.device.facts[name]
        for name in ("soc_model", "arch", "vtcm_mb")
        if name in target.device.facts and target.device.facts[name].confidence.rank >= Confidence.REPORTED.rank
    }
    if weak:
        words = ", ".join(f"{name} {fact.value} ({fact.confidence})" for name, fact in weak.items())
        sources = tuple(dict.fromkeys(source for fact in weak.values() for source in fact.source))
        yield Found(
            kind=SubjectKind.TARGET,
            name=target.device.id,
            message=f"weakly known: {words}",
            sources=sources,
            evidence={name: str(fact.confidence) for name, fact in weak.items()},
        )


@TARGET_RULES.rule(
    "QNN015",
    "vtcm-unknown",
    "info",
    what="The VTCM size of the chip is unknown.",
    why="Whether a single operator fits cannot be checked, and vtcm_mb stays at the SDK's own choice.",
    fix="Set vtcm_mb with --option when you know it.",
    sources=["docs.qualcomm.com 80-87189-2, HTP Backend Extensions"],
)
def check_vtcm_unknown(target: Target) -> Iterator[Found]:
    """A chip with an architecture but without VTCM size."""
    if arch_of(target.device) is not None and target.device.fact("vtcm_mb") is None and not _without_htp(target):
        yield _target(target, f"the VTCM size of {target.device.name} is unknown")


@TARGET_RULES.rule(
    "QNN016",
    "arch-unproven-on-sdk",
    "warning",
    what="No source shows that this SDK release knows the chip's architecture.",
    why="An SDK that is older than the chip refuses its dsp_arch or soc_model.",
    fix="Use a later release, or check the release's list of supported devices.",
    sources=[_OWN],
)
def check_arch_unproven(target: Target) -> Iterator[Found]:
    """An architecture whose first SDK release is later or unknown."""
    arch = arch_of(target.device)
    if target.sdk is None or arch is None or _without_htp(target):
        return
    row = target.sdk.feature("htp-arch", arch=arch)
    if row is None or row.status is not Status.SUPPORTED:
        note = "" if row is None else f": {row.note}"
        yield _target(target, f"nothing shows that QAIRT {target.sdk.version} knows {arch}{note}")


@TARGET_RULES.rule(
    "QNN017",
    "device-fact-contradicted",
    "info",
    what="Sources disagree about another property of the chip.",
    why="What depends on it may come out differently on the device.",
    fix="Compare with the SDK's list of supported devices.",
    sources=["the device's own data file"],
)
def check_fact_contradicted(target: Target) -> Iterator[Found]:
    """Any other fact that another source gives differently."""
    for name, fact in target.device.facts.items():
        if name not in ("soc_model", "arch", "precisions") and fact.contradicts:
            others = "".join(f" or {value}" for value in fact.alternatives)
            yield _target(target, f"{name} {fact.value}{others}: {fact.contradicts}", fact=fact)


@TARGET_RULES.rule(
    "QNN018",
    "soc-model-unknown",
    "error",
    what="Nobody published the soc_model number of the chip.",
    why="Without it the compiler builds for no SoC in particular, and says nothing.",
    fix="Read the number from the SDK's list of supported devices and put it into a device file.",
    sources=["user lab notes, QAIRT 2.48 on SM8750: without a SoC the binary is not targeted, exit status 0"],
)
def check_soc_model_unknown(target: Target) -> Iterator[Found]:
    """A chip without soc_model."""
    if target.device.fact("soc_model") is None:
        yield _target(target, f"the soc_model number of {target.device.name} is unknown")


def _without_htp(target: Target) -> bool:
    fact = capability("htp", device=target.device)
    return fact is not None and fact.value is False
