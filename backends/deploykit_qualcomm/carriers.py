"""Compilers in public wheels: which machine runs one, where a release's binary loads, which wheel serves a device.

A binary loads on the release that made it and on later ones, so a wheel serves a runtime that is not older. It
compiles, reads and chooses nothing. Codes of the rules: QNN295 to QNN298.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from deploykit.errors import UnknownTargetError
from deploykit.findings import Confidence, Severity
from deploykit.findings.records import Record
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.system.specs import ToolchainSpec
from deploykit.tables.capabilities import CompatRow, Status, compat_row
from deploykit.tables.devices import Device
from deploykit_qualcomm.devices import arch_number, arch_of, known_archs, qualcomm_device
from deploykit_qualcomm.tables import FAMILY, MACHINES, WINE, Wheel, tables

if TYPE_CHECKING:
    from deploykit.backend.probes import CheckLine, Surroundings

__all__ = [
    "RULES",
    "Carried",
    "Fit",
    "binary_rows",
    "carrier",
    "carrier_for",
    "chip_on_arm",
    "compiles_for_any_chip",
    "forms_of",
    "host_toolchain",
    "judge_loading",
    "machines",
    "probe_hosts",
    "qualcomm_toolchains",
]


def qualcomm_toolchains(backend: str) -> tuple[ToolchainSpec, ...]:
    """Every toolchain in the shared tables, offered by the backend of that id."""
    here = Path(__file__).parent
    from deploykit.backend.toolchains import load_toolchains

    return load_toolchains(here / "data" / "toolchains", backend=backend, files=here)


@cache
def host_toolchain(sdk: str) -> ToolchainSpec | None:
    """The toolchain with the compiler of one release, None if there is none."""
    named = (spec for spec in qualcomm_toolchains("ort-qnn") if spec.name == "htp")
    return next((spec for spec in named if spec.version == sdk), None)


def machines(wheel: Wheel) -> str:
    """The kinds of machines on which a wheel's compiler runs, in words; Wine
    is named only if there is a toolchain for it.
    """
    runs = dict.fromkeys(run for host in wheel.host for run in host.runs)
    has = [words for run, words in MACHINES.items() if run in runs]
    if host_toolchain(wheel.sdk) is None:
        has = [words for words in has if words != MACHINES[WINE]]
    return " or ".join(has)


def carrier(build: str) -> Wheel | None:
    """The newest wheel that carries a build, given by its id as in binaries
    (``v2.36.1.250708151608_123266``), or None.
    """
    plain = build.removeprefix("v")
    return next((wheel for wheel in reversed(tables().wheels) if plain.startswith(wheel.build)), None)


def probe_hosts(around: Surroundings) -> Iterator[CheckLine]:
    """One line per compiler that a toolchain brings, and one with the compilers that need another machine."""
    from deploykit.backend.probes import CheckLine
    from deploykit.system.environments import environment_of

    for wheel in tables().wheels:
        spec = host_toolchain(wheel.sdk)
        if spec is None:
            continue
        missing = [need for need in spec.needs if need.find(around.which) is None]
        state = environment_of(spec).state(with_size=False)
        ready = state.state == "ready" and not missing
        words = f"{state.state}{f' ({state.detail})' if state.detail else ''}"
        lacks = "".join(f"; {need.name} is not installed" for need in missing)
        ways = [*(need.install for need in missing), f"deploykit toolchain install {spec.name}-{spec.version}"]
        yield CheckLine.of(
            f"{spec.name}-{spec.version}",
            ready,
            f"the compiler of QAIRT {wheel.sdk} (onnxruntime-qnn {wheel.version}): {words}{lacks}",
            "; ".join(ways),
            bad="absent",
            sdk=wheel.sdk,
            wheel=wheel.version,
            toolchain=state.state,
            missing=[need.name for need in missing],
        )
    others = (wheel for wheel in tables().wheels if not wheel.runs_on_linux and host_toolchain(wheel.sdk) is None)
    elsewhere = {wheel.sdk: wheel.version for wheel in others}
    named = ", ".join(f"{sdk} (wheel {version})" for sdk, version in elsewhere.items())
    yield CheckLine(
        "htp-elsewhere",
        state="absent",
        detail=f"compilers in public wheels that no route here runs: {named}",
        next="'deploykit compat wheel --sdk X' says what machine each needs",
        facts={"sdks": list(elsewhere)},
    )


_CACHE = "onnxruntime/onnxruntime-qnn onnxruntime/core/providers/qnn builder/qnn_cache_compatibility_manager.cc"
_LAB = "onnxruntime-qnn 2.3.0 to 2.7.0 run on Linux x86-64 without hardware: 25 pairs of builder and runtime"
_EMULATOR = "onnxruntime-qnn 2.7.0 run on Linux x86-64 without hardware: 36 pairs of architectures"
_MAINTAINER = "qualcomm/ai-hub-apps#148 (maintainer statement)"
_V81 = 81  # the emulator refuses binaries for v81 under any older architecture, and no others


class Loading(Record, kw_only=False):
    """One part of the verdict: ``release`` or ``architecture``."""

    part: str
    status: Status
    why: str
    source: tuple[str, ...] = ()
    confidence: Confidence | None = None
    contradicts: str = ""


def judge_loading(built_with: str, built_for: str, runtime: str, arch: str) -> tuple[Loading, Loading]:
    """The verdicts by release and by architecture; both must be supported for the binary to load.

    Versions are as typed, ``2.48`` or ``2.48.0.260626``; architectures like ``v73``, or "" for unknown. Raises
    UnknownTargetError for anything else.
    """
    return _by_release(built_with, runtime), _by_arch(built_for, arch)


def binary_rows(backend: str, built_with: str, built_for: str, runtime: str, arch: str) -> Iterator[CompatRow]:
    """The verdict as rows: one for the whole, then one per part."""
    parts = judge_loading(built_with, built_for, runtime, arch)
    verdict = min((part.status for part in parts), key=(Status.UNSUPPORTED, Status.UNKNOWN, Status.SUPPORTED).index)
    sure = [part.confidence for part in parts if part.status is verdict and part.confidence is not None]
    whole = Loading(
        "",
        verdict,
        why=f"on {runtime}, {arch or 'an unknown architecture'}: {'; '.join(part.why for part in parts)}",
        source=tuple(dict.fromkeys(source for part in parts for source in part.source)),
        confidence=max(sure, key=lambda confidence: confidence.rank, default=None),
        contradicts="; ".join(part.contradicts for part in parts if part.contradicts),
    )
    what = f"context-binary built with {built_with} for {built_for or 'an unknown architecture'}"
    for part in (whole, *parts):
        feature = f"{what}{f' ({part.part})' if part.part else ''}"
        yield compat_row(backend, feature, part, part.why, sdk=runtime, arch=arch, family=FAMILY)


def _by_release(built_with: str, loaded_by: str) -> Loading:
    built, runtime = _version(built_with), _version(loaded_by)
    known: dict[str, Any] = {
        "part": "release",
        "source": (_CACHE, _MAINTAINER, _LAB),
        "confidence": Confidence.OBSERVED,
    }
    # Only numbers that both versions have are compared: a build of 2.48 is not newer than a runtime given as 2.48.
    both = min(len(built.release), len(runtime.release))
    if built.release[:both] <= runtime.release[:both]:
        if built.release[:both] == runtime.release and any(built.release[both:3]):
            why = f"{runtime} may be an older build than {built}: name it with all its numbers"
            return Loading("release", Status.UNKNOWN, why=why)
        why = f"a binary of {built} is not newer than the runtime {runtime}"
        return Loading(status=Status.SUPPORTED, why=why, **known)
    shelf = tables()
    files = (shelf.file(version) for version in shelf.versions)
    told = {f.version: str(f.facts["context_blob"].value) for f in files if "context_blob" in f.facts}
    told.update({wheel.sdk: wheel.blob for wheel in shelf.wheels if wheel.blob})
    blobs = sorted((Version(version), blob) for version, blob in told.items())
    # The builder writes at least the version of the newest known release up to it;
    # the runtime reads at most that of the next one.
    written = next((blob for version, blob in reversed(blobs) if version <= built), None)
    read = next((blob for version, blob in blobs if version >= runtime), None)
    why = f"{built} is newer than the runtime {runtime}"
    if written and read and Version(written) > Version(read):
        why += f"; it writes context blobs of version {written} or later, the runtime reads at most {read}"
    return Loading(status=Status.UNSUPPORTED, why=why, **known)


def _by_arch(built: str, wanted: str) -> Loading:
    for name in (built, wanted):
        if name and arch_number(name) is None:
            raise UnknownTargetError(f"unknown architecture {name!r}", next=f"known: {', '.join(known_archs())}")
    built_for, arch = arch_number(built), arch_number(wanted)
    if built_for is None or arch is None:
        return Loading("architecture", Status.UNKNOWN, why="an architecture is unknown")
    status, why, contradicts = Status.SUPPORTED, f"built for v{arch} itself: optimal", ""
    if built_for < arch:
        why = f"built for v{built_for}, below v{arch}: accepted, recompilation preferred"
        contradicts = "the vendor's HTP backend page (2.39) calls loading a binary of another arch indeterminate"
    elif built_for > arch:
        status, why = Status.UNSUPPORTED, f"built for v{built_for}, above v{arch}: refused"
        contradicts = "" if built_for >= _V81 else "the x86 emulator loads such a binary all the same"
    source = (_CACHE, _EMULATOR)
    return Loading(
        "architecture",
        status,
        why=why,
        source=source,
        confidence=Confidence.OBSERVED,
        contradicts=contradicts,
    )


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        like = "a version looks like 2.48 or 2.48.0"
        raise UnknownTargetError(f"unknown SDK version {text[:60]!r}", next=like) from None


@cache
def chip_on_arm() -> Device:
    """The chip that an ARM64 compiler builds for: its Windows machine's, whose stub library is the only one inside."""
    return qualcomm_device("sc8380xp")


class Fit(StrEnum):
    """How a wheel's binary suits a device: made for it, for another chip whose binaries it accepts, or not loadable."""

    ITSELF = "itself"
    ACCEPTED = "accepted"
    REFUSED = "refused"


class Carried(Record, kw_only=False):
    """One wheel's compiler for one device.

    ``runtime`` is the release that will load the binary, as typed or as the table names it; "" is the wheel's own.
    ``insisted`` is True if the user asked for this compiler by name, ``ask`` says how to do so.
    """

    wheel: Wheel
    device: Device
    runtime: str = ""
    insisted: bool = False
    ask: str = ""

    @property
    def fit(self) -> Fit:
        """How the binary suits this device."""
        if compiles_for_any_chip(self.wheel):
            return Fit.ITSELF
        made_for, device = chip_on_arm(), self.device
        if made_for.fact("soc_model") == device.fact("soc_model"):
            return Fit.ITSELF
        by_arch = _by_arch(arch_of(made_for), arch_of(device))
        wanted, has = made_for.fact("vtcm_mb"), device.fact("vtcm_mb")
        fits = isinstance(wanted, int) and isinstance(has, int) and wanted <= has
        return Fit.ACCEPTED if by_arch.status is Status.SUPPORTED and fits else Fit.REFUSED


def compiles_for_any_chip(wheel: Wheel) -> bool:
    """True if some build of a wheel's compiler obeys ``soc_model``.

    The x86-64 builds do. The ARM64 ones compile for the chip they run on.
    """
    return any(host.machine == "x86-64" for host in wheel.host)


@cache
def carrier_for(runtime: str) -> Wheel | None:
    """The newest wheel whose binaries that release loads, None if every wheel is newer.

    A series as typed (2.33) means any of its builds, so a wheel of the series (2.33.2) serves it. Raises
    UnknownTargetError for an invalid version.
    """
    loads = (w for w in reversed(tables().wheels) if _by_release(w.sdk, runtime).status is not Status.UNSUPPORTED)
    return next(loads, None)


def forms_of(wheel: Wheel) -> Wheel:
    """The wheel whose row lists the forms this one takes: itself if its provider was run, else the nearest that was.

    Wheels with ONNX Runtime inside use the newest such wheel, whose provider refuses more than the plugins' do.
    """
    run = [known for known in tables().wheels if known.loadable and any("compile" in h.observed for h in known.host)]
    if wheel.refuses or wheel.lacks or wheel in run or wheel.provider == "plugin":
        return wheel
    return next((known for known in reversed(run) if known.provider != "plugin"), wheel)


RULES = Registry[Carried]("carrier")

_ARM64 = "HTP libraries of QAIRT 2.25 to 2.42 for Windows ARM64, executed on Linux x86-64 without hardware"
_WHEELS = "the libraries inside public Windows wheels of onnxruntime-qnn 1.18.0 to 1.24.3: build ids, machine code"
_LOADING = "onnxruntime-qnn 2.3.0 to 2.7.0 run on Linux x86-64 without hardware: 25 pairs of builder and runtime"


_ANOTHER = "choose a release whose compiler obeys soc_model (2.36.1, 2.47 and later), or another route"


@RULES.rule("QNN295", "compiled-for-another-chip", "error", _ARM64)
def check_chip(carried: Carried) -> Finds:
    """The only public compiler of this release compiles for the chip it runs on, and that is not the target's.

    The ARM64 compilers inside the Windows wheels read the chip from the machine they stand on and ignore soc_model. A
    binary for a lower architecture is accepted, but not optimal; one for a higher architecture, or one that uses more
    VTCM than the chip has, is refused.

    Fix: choose a release whose compiler obeys soc_model (2.36.1, 2.47 and later), or another route
    """
    # An error, unless the user asked for this compiler by name and the chip accepts such binaries.
    if carried.fit is Fit.ITSELF:
        return
    accepted = carried.fit is Fit.ACCEPTED
    outcome = "such a binary is accepted there, but not optimal" if accepted else "such a binary does not load there"
    runs_on, target = (
        f"{device.name} (soc_model {device.fact('soc_model')}, {device.fact('arch')})"
        for device in (chip_on_arm(), carried.device)
    )
    yield Found(
        "target",
        carried.device.id,
        f"the compiler of QAIRT {carried.wheel.sdk} (onnxruntime-qnn {carried.wheel.version}) compiles for the "
        f"chip it runs on, {runs_on}, and the target is {target}: {outcome} "
        "(inferred, nobody loaded one on a device here)",
        severity=Severity.WARNING if accepted and carried.insisted else Severity.ERROR,
        hint=f"{_ANOTHER}; to have it all the same: {carried.ask}" if accepted and carried.ask else "",
        evidence={"made_for": chip_on_arm().fact("soc_model"), "wanted": carried.device.fact("soc_model")},
    )


@RULES.rule("QNN296", "compiled-on-another-machine", "info", [_ARM64, _WHEELS])
def check_machine(carried: Carried) -> Finds:
    """The compiler of this release runs on another kind of machine only, so nothing is compiled here.

    Its wheel is for Windows. An ARM64 backend asks the machine for its chip: on one that is no Snapdragon it was seen
    to stop when the device is created.

    Fix: copy the package to such a machine, run 'python scripts/compile.py' there, and verify what it made
    """
    # A wheel that neither this kind of machine nor a toolchain can run.
    wheel = carried.wheel
    if wheel.runs_on_linux or host_toolchain(wheel.sdk) is not None:
        return
    place = "Windows x86-64 only"
    if not compiles_for_any_chip(wheel):
        unknown = "whether a hosted ARM runner is enough is not known (inferred: it is not)"
        place = f"Windows on ARM with a Snapdragon only; {unknown}"
    yield Found(
        "environment",
        "onnxruntime-qnn",
        f"onnxruntime-qnn {wheel.version} (QAIRT {wheel.sdk}) compiles on {place}",
    )


@RULES.rule("QNN297", "compiler-of-another-release", "warning", [_WHEELS, _LOADING])
def check_release(carried: Carried) -> Finds:
    """The nearest public compiler is not of the very release that will load the binary.

    A binary loads on the release that made it and on later ones, never on an earlier one. The wheels carry some
    releases only, and of a series one release.

    Fix: check the runtime's full version on the device: it must not be older than the compiler's
    """
    # A runtime of another release, or one named by its series only.
    runtime, sdk = carried.runtime, carried.wheel.sdk
    if not runtime or runtime == sdk:
        return
    named = runtime.split(".")[:3]
    if sdk.split(".")[: len(named)] == named:
        message = f"the compiler is of QAIRT {sdk}: a runtime of {runtime} that is older than {sdk} does not load it"
    else:
        message = f"the compiler is of QAIRT {sdk}, the nearest in public wheels that is not newer than {runtime}"
    yield Found("sdk", runtime, message, evidence={"compiler": sdk})


@RULES.rule("QNN298", "forms-of-another-provider", "info", _ARM64)
def check_forms(carried: Carried) -> Finds:
    """The model is prepared in the forms that another release of the provider takes.

    What a provider takes is learnt by running it. This one does not run here, so the forms are those of the nearest
    that does; graphs in these forms were taken by the backends of the other releases.

    Fix: read the refused nodes that compile.py lists, should there be any
    """
    # A wheel whose provider was never run.
    forms = forms_of(carried.wheel)
    if forms is not carried.wheel:
        yield Found(
            "environment",
            "onnxruntime-qnn",
            f"prepared as for onnxruntime-qnn {forms.version} (QAIRT {forms.sdk}), the nearest provider that "
            f"was run; {carried.wheel.version} itself was not",
        )
