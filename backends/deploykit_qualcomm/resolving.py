"""Picks the table for an SDK version as typed, and the target, with the rules about both.

It decides nothing about a model. Codes QNN001 to QNN049.

``2.33`` means the series, ``2.33.0`` the release, ``2.33.0.250327`` the build. Between two tables the nearest lower one
is used, and a finding says so; ``series.toml`` sets what happens below the oldest and above the newest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NoReturn

from packaging.version import Version

from deploykit.backend.targets import Target, nearest_names
from deploykit.errors import UnknownTargetError
from deploykit.findings import Confidence, Findings, Severity
from deploykit.findings.records import Record, replace
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.tables.capabilities import SdkTable, Status
from deploykit.tables.devices import Device, Fact
from deploykit_qualcomm.devices import arch_of, capability, lacks, qualcomm_device
from deploykit_qualcomm.tables import Tables, tables

__all__ = ["RULES", "TARGET_RULES", "resolve_sdk", "resolve_target"]


_CADENCE = "Qualcomm Linux documentation, installation pages: monthly releases"
_OWN = "the tables of this package (backends/deploykit_qualcomm/data/sdks)"
# How a table was found: the version itself, its series, a listed or unlisted build of it, the nearest lower table
# between two, the newest for a newer version, the oldest for an older one.
SdkMatch = Literal["exact", "series", "build", "unlisted-build", "lower", "newer", "below"]


class SdkChoice(Record):
    """A version as typed, the table used for it, and how the two match.

    ``uses_tools`` is False for a backend that runs no tool of the SDK, only its libraries.
    """

    request: str
    table: SdkTable
    match: SdkMatch
    uses_tools: bool


RULES = Registry[SdkChoice]("sdk")


def _sdk(choice: SdkChoice, message: str, hint: str = "") -> Found:
    evidence = {"requested": choice.request, "table": choice.table.version, "match": choice.match}
    return Found("sdk", choice.request, message, hint=hint, evidence=evidence)


@RULES.rule("QNN001", "sdk-nearest-lower", "warning", [_OWN, _CADENCE])
def check_nearest_lower(choice: SdkChoice) -> Finds:
    """The SDK version that was asked for has no table; the nearest lower one answers.

    Flags, features and configuration keys may have changed between the two releases.

    Fix: Read the plan with that in mind, or add a data file for the release that states what differs.
    """
    if choice.match == "lower":
        yield _sdk(choice, f"no table for QAIRT {choice.request}: the one of {choice.table.version} answers")


@RULES.rule("QNN002", "sdk-newer-than-tables", "warning", [_OWN, _CADENCE])
def check_newer(choice: SdkChoice) -> Finds:
    """The SDK version that was asked for is newer than every table; the newest one answers.

    What a later release changed is not known here.

    Fix: Read the plan with that in mind, or add a data file for the release that states what differs.
    """
    if choice.match == "newer":
        yield _sdk(choice, f"QAIRT {choice.request} is newer than every table: {choice.table.version} answers")


@RULES.rule("QNN003", "sdk-build-not-listed", "info", [_OWN, "naming of QAIRT releases: 2.<minor>.<patch>.<YYMMDD>"])
def check_unlisted_build(choice: SdkChoice) -> Finds:
    """The release is known, but no source mentions this build of it.

    Builds of one release are expected to take the same flags; nobody has shown it for this one.

    Fix: Check the build number with the SDK's own folder name.
    """
    # A build that the table of its release does not list.
    if choice.match == "unlisted-build":
        known = ", ".join(choice.table.builds) or "none"
        yield _sdk(choice, f"build {choice.request} is not among those met of {choice.table.version} (met: {known})")


@RULES.rule(
    "QNN004",
    "sdk-tools-not-seen",
    "warning",
    [_OWN, "onnxruntime-qnn wheels 2.4.0 to 2.7.0, which carry HTP libraries and no converter"],
)
def check_carrier(choice: SdkChoice) -> Finds:
    """The release was met only inside another package; its converters and generators were not seen.

    The rows of its tools are those of the release before it.

    Fix: Use a release whose tools are known, or check the flags against the SDK's own help.
    """
    # A release known only from a wheel, for a backend that runs its tools.
    if choice.table.carrier and choice.uses_tools:
        yield _sdk(
            choice,
            f"QAIRT {choice.table.version} was met only inside {choice.table.carrier}: "
            "what its tools take is that of the release before",
        )


@RULES.rule("QNN005", "sdk-below-tables", "warning", _OWN)
def check_below(choice: SdkChoice) -> Finds:
    """The SDK version that was asked for is older than every table; the oldest one answers.

    Flags that came later may be used although the old release does not have them.

    Fix: Check every flag of the plan against the old SDK's own help.
    """
    # A version older than the oldest table, if the tables declare this a warning.
    if choice.match == "below":
        yield _sdk(choice, f"QAIRT {choice.request} is older than every table: {choice.table.version} answers")


TARGET_RULES = Registry[Target]("target")
_LIST = "Compare with the SDK's list of supported devices."


def _target(target: Target, message: str, *, fact: Fact | None = None, severity: Severity | None = None) -> Found:
    return Found(
        "target",
        target.device.id,
        message,
        severity=severity,
        sources=fact.source if fact else (),
        evidence={} if fact is None else {"value": fact.value, "alternatives": list(fact.alternatives)},
    )


@TARGET_RULES.rule(
    "QNN010",
    "arch-unknown",
    "error",
    ["docs.qualcomm.com 80-87189-2, HTP Backend Extensions", "device tables of LiteRT and ExecuTorch"],
)
def check_arch_unknown(target: Target) -> Finds:
    """Nobody published the HTP architecture of the chip.

    dsp_arch decides which data types and kernels exist; left out, the offline backend validates for v68.

    Fix: Read the architecture from the SDK's list of supported devices and put it into a device file.
    """
    # A chip without architecture: an error if dsp_arch is written, else a warning.
    if not arch_of(target.device) and capability("htp", device=target.device) is None:
        severity = None if target.backend == "qnn-htp" else Severity.WARNING
        yield _target(target, f"the HTP architecture of {target.device.name} is unknown", severity=severity)


@TARGET_RULES.rule(
    "QNN011",
    "no-htp",
    "error",
    "google-ai-edge/LiteRT litert/vendors/qualcomm soc_table.cc (history before its removal)",
)
def check_no_htp(target: Target) -> Finds:
    """The chip has no HTP.

    Its accelerator is of another generation or family; the HTP backend cannot run on it.

    Fix: Choose a chip with architecture v68 or later.
    """
    # A chip that is known to have no HTP.
    fact = capability("htp", device=target.device)
    if fact is not None and fact.value is False:
        yield _target(target, f"{target.device.name} has no HTP", fact=fact)


@TARGET_RULES.rule(
    "QNN012",
    "soc-model-contradicted",
    "warning",
    "device tables of LiteRT and ExecuTorch, and public scripts",
)
def check_soc_model_contradicted(target: Target) -> Finds:
    """Sources disagree about the soc_model number of the chip.

    A wrong number gives a binary for another SoC, or none: 'Invalid config values'.

    Fix: Compare with the SDK's list of supported devices; --option soc_model=NUMBER sets another number.
    """
    # A soc_model for which another source has another number.
    for found in _contradicted(target, "soc_model", "soc_model"):
        numbers = " or ".join(f"--option soc_model={value}" for value in found.evidence["alternatives"])
        # If the provider compiles, deploykit sets the number itself.
        sets = f"{_LIST.removesuffix('.')}; {numbers} sets another number." if target.backend == "qnn-htp" else _LIST
        yield replace(found, hint=sets if numbers else _LIST)


def _contradicted(target: Target, name: str, word: str) -> Finds:
    fact = target.device.facts.get(name)
    if fact is not None and (fact.contradicts or fact.alternatives):
        others = " or ".join(str(value) for value in fact.alternatives)
        yield _target(target, f"{word} {fact.value} or {others}: {fact.contradicts}", fact=fact)


@TARGET_RULES.rule("QNN013", "arch-contradicted", "warning", "device tables and compile scripts in public repositories")
def check_arch_contradicted(target: Target) -> Finds:
    """Sources disagree about the HTP architecture of the chip.

    A binary for a later architecture than the chip's does not load; one for an earlier wastes the chip.

    Fix: Compare with the SDK's list of supported devices before you rely on the package.
    """
    # An architecture for which another source has another value.
    yield from _contradicted(target, "arch", "architecture")


@TARGET_RULES.rule("QNN014", "weak-device-facts", "info", "the device's own data file")
def check_weak_facts(target: Target) -> Finds:
    """What decides about the chip rests on reports or inference only.

    A package for it is as sure as its weakest decisive fact.

    Fix: Compare with the SDK's list of supported devices.
    """
    # A soc_model, architecture or VTCM size that neither a maker states nor published code has.
    weak = {
        name: target.device.facts[name]
        for name in ("soc_model", "arch", "vtcm_mb")
        if name in target.device.facts and target.device.facts[name].confidence.rank >= Confidence.REPORTED.rank
    }
    if weak:
        words = ", ".join(f"{name} {fact.value} ({fact.confidence})" for name, fact in weak.items())
        sources = tuple(dict.fromkeys(source for fact in weak.values() for source in fact.source))
        yield Found(
            "target",
            target.device.id,
            f"weakly known: {words}",
            sources=sources,
            evidence={name: str(fact.confidence) for name, fact in weak.items()},
        )


@TARGET_RULES.rule("QNN015", "vtcm-unknown", "info", "docs.qualcomm.com 80-87189-2, HTP Backend Extensions")
def check_vtcm_unknown(target: Target) -> Finds:
    """The VTCM size of the chip is unknown.

    Whether a single operator fits cannot be checked, and vtcm_mb stays at the SDK's own choice.

    Fix: Put vtcm_mb into the device's file when you know it.
    """
    # A chip with an architecture but without a VTCM size.
    if arch_of(target.device) and target.device.fact("vtcm_mb") is None and not lacks("htp", target.device):
        yield _target(target, f"the VTCM size of {target.device.name} is unknown")


@TARGET_RULES.rule("QNN016", "arch-unproven-on-sdk", "warning", _OWN)
def check_arch_unproven(target: Target) -> Finds:
    """No source shows that this SDK release knows the chip's architecture.

    An SDK that is older than the chip refuses its dsp_arch or soc_model.

    Fix: Use a later release, or check the release's list of supported devices.
    """
    # An architecture whose first SDK release is later or unknown.
    arch = arch_of(target.device)
    if target.sdk is None or not arch or lacks("htp", target.device):
        return
    row = target.sdk.feature("htp-arch", arch=arch)
    if row is None or row.status is not Status.SUPPORTED:
        note = "" if row is None else f": {row.note}"
        found = _target(target, f"nothing shows that QAIRT {target.sdk.version} knows {arch}{note}")
        yield replace(found, evidence={"status": str(Status.UNKNOWN if row is None else row.status)})


@TARGET_RULES.rule(
    "QNN018",
    "soc-model-unknown",
    "error",
    "user lab notes, QAIRT 2.48 on SM8750: without a SoC the binary is not targeted, exit status 0",
)
def check_soc_model_unknown(target: Target) -> Finds:
    """Nobody published the soc_model number of the chip.

    Without it the compiler builds for no SoC in particular, and says nothing.

    Fix: Read the number from the SDK's list of supported devices and put it into a device file.
    """
    if target.device.fact("soc_model") is None:
        yield _target(target, f"the soc_model number of {target.device.name} is unknown")


_PLAIN = re.compile(r"v?\d+(\.\d+){1,3}", re.ASCII)


def resolve_sdk(
    request: str | None, *, uses_tools: bool = True, source: Tables | None = None
) -> tuple[SdkTable, Findings]:
    """The table for a version as typed, with findings if the two differ; None means the newest.

    ``uses_tools`` is False for a backend that runs none of the SDK's tools: then releases known only from other
    packages count fully. Raises UnknownTargetError for an invalid version, or one without usable tables.
    """
    shelf = source or tables()
    match: SdkMatch = "exact"
    if request:
        version, match = _match(request, shelf, uses_tools)
    else:
        version = _newest(shelf.with_rows, shelf, uses_tools)
    if not shelf.file(version).extends:
        raise UnknownTargetError(
            f"SDK {request}: the release {version} is known, but nothing about its tools",
            why=f"no argument list older than {shelf.with_rows[0]} was read, so every flag would be a guess",
            next=f"use {shelf.with_rows[0]} or later",
        )
    choice = SdkChoice(request=request or version, table=shelf.table(version), match=match, uses_tools=uses_tools)
    return choice.table, RULES.run(choice)


def resolve_target(device: Device | str, sdk: str | None, backend: str, *, source: Tables | None = None) -> Target:
    """The target: a device (or its name) under the table for ``sdk``, with the findings about both.

    Raises UnknownTargetError for an unknown device or version.
    """
    shelf = source or tables()
    found = qualcomm_device(device, shelf.data) if isinstance(device, str) else device
    table, findings = resolve_sdk(sdk, uses_tools=backend != "ort-qnn", source=shelf)
    target = Target(device=found, backend=backend, requested=sdk or "", sdk=table, findings=findings)
    return replace(target, findings=(*findings, *TARGET_RULES.run(target)))


def _match(request: str, shelf: Tables, uses_tools: bool) -> tuple[str, SdkMatch]:
    """The version whose table is used, and how it was found."""
    text = request.strip()
    try:
        wanted = Version(text) if _PLAIN.fullmatch(text) else None
    except ValueError:  # more digits than Python converts
        wanted = None
    if wanted is None:
        _refuse(request, "a version looks like 2.33, 2.33.0 or 2.33.0.250327", shelf)
    release = wanted.release
    series = [version for version in shelf.versions if Version(version).release[:2] == release]
    if len(release) == 2 and series:
        return _newest(series, shelf, uses_tools), "series"
    exact = Version(".".join(map(str, release[:3])))
    for version in shelf.versions:
        # A release known by name only says nothing about tools; a provider does not need them.
        if Version(version) == exact and (uses_tools or shelf.file(version).extends):
            listed = wanted in map(Version, shelf.file(version).builds)
            return version, "exact" if len(release) < 4 else "build" if listed else "unlisted-build"
    lower = [version for version in shelf.with_rows if Version(version) <= wanted]
    oldest, newest = shelf.with_rows[0], shelf.with_rows[-1]
    if not lower:
        # Such a release's tool flags are unknown, but a provider does not use them.
        if uses_tools and shelf.series.below_oldest == "error":
            _refuse(request, f"the oldest release with tables is {oldest}", shelf)
        return oldest, "below"
    known = Version(newest)
    if lower[-1] != newest:
        return lower[-1], "lower"
    ahead = wanted.minor - known.minor if wanted.major == known.major else float("inf")
    if ahead > shelf.series.far_series and shelf.series.far_newer == "error":
        _refuse(request, f"far newer than the newest table, {newest}", shelf)
    if release[:2] == known.release[:2]:
        return newest, "lower"
    if shelf.series.newer == "error":
        _refuse(request, f"newer than the newest table, {newest}", shelf)
    return newest, "newer"


def _newest(versions: Iterable[str], shelf: Tables, uses_tools: bool) -> str:
    """The newest version; for a backend that uses tools, the newest whose tools were seen, if there is one."""
    ordered = sorted(versions, key=Version)
    seen = [version for version in ordered if not shelf.file(version).carrier]
    return seen[-1] if uses_tools and seen else ordered[-1]


def _refuse(request: str, why: str, shelf: Tables) -> NoReturn:
    """Raises UnknownTargetError with the nearest version: by order for a number, by spelling for other text."""
    known, cut = shelf.with_rows, request[:60]
    if _PLAIN.fullmatch(request) and cut == request:
        near = [known[0] if Version(request) < Version(known[0]) else known[-1]]
    else:
        near = nearest_names(cut, known) or [known[0], known[-1]]
    shown = request if cut == request else f"{cut}…"
    raise UnknownTargetError(f"unknown SDK version {shown!r}", why=why, next=f"did you mean {', '.join(near)}?")
