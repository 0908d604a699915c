"""Rules about a target: how well the device is known, and whether the SDK knows it. Codes QNN010 to QNN049."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deploykit.backend.targets import Target
from deploykit.findings import Confidence, Severity
from deploykit.findings.rules import Found, Registry
from deploykit.tables.capabilities import Status
from deploykit.tables.devices import Fact
from deploykit_qualcomm.devices import arch_of, capability, lacks

__all__ = ["RULES"]

RULES: Registry[Target] = Registry("target")


_LIST = "Compare with the SDK's list of supported devices."
_OWN = "the tables of this package (backends/deploykit_qualcomm/data/sdks)"


def _target(target: Target, message: str, *, fact: Fact | None = None, severity: Severity | None = None) -> Found:
    return Found(
        "target",
        target.device.id,
        message,
        severity=severity,
        sources=fact.source if fact else (),
        evidence={} if fact is None else {"value": fact.value, "alternatives": list(fact.alternatives)},
    )


@RULES.rule(
    "QNN010",
    "arch-unknown",
    "error",
    sources=["docs.qualcomm.com 80-87189-2, HTP Backend Extensions", "device tables of LiteRT and ExecuTorch"],
)
def check_arch_unknown(target: Target) -> Iterator[Found]:
    """Nobody published the HTP architecture of the chip.

    dsp_arch decides which data types and kernels exist; left out, the offline backend validates for v68.

    Fix: Read the architecture from the SDK's list of supported devices and put it into a device file.
    """
    # A chip without architecture: an error where dsp_arch is written, else a warning.
    if arch_of(target.device) is None and capability("htp", device=target.device) is None:
        severity = None if target.backend == "qnn-htp" else Severity.WARNING
        yield _target(target, f"the HTP architecture of {target.device.name} is unknown", severity=severity)


@RULES.rule(
    "QNN011",
    "no-htp",
    "error",
    sources=["google-ai-edge/LiteRT litert/vendors/qualcomm soc_table.cc (history before its removal)"],
)
def check_no_htp(target: Target) -> Iterator[Found]:
    """The chip has no HTP.

    Its accelerator is of another generation or family; the HTP backend cannot run on it.

    Fix: Choose a chip with architecture v68 or later.
    """
    # A chip that is known to have no HTP.
    fact = capability("htp", device=target.device)
    if fact is not None and fact.value is False:
        yield _target(target, f"{target.device.name} has no HTP", fact=fact)


@RULES.rule(
    "QNN012",
    "soc-model-contradicted",
    "warning",
    sources=["device tables of LiteRT and ExecuTorch, and public scripts"],
)
def check_soc_model_contradicted(target: Target) -> Iterator[Found]:
    """Sources disagree about the soc_model number of the chip.

    A wrong number gives a binary for another SoC, or none: 'Invalid config values'.

    Fix: Compare with the SDK's list of supported devices; --option soc_model=NUMBER sets another number.
    """
    # A soc_model that another source gives differently.
    fact = target.device.facts.get("soc_model")
    if fact is not None and (fact.contradicts or fact.alternatives):
        others = " or ".join(str(value) for value in fact.alternatives)
        found = _target(target, f"soc_model {fact.value} or {others}: {fact.contradicts}", fact=fact)
        numbers = " or ".join(f"--option soc_model={value}" for value in fact.alternatives)
        # Where the provider compiles, the number is deploykit's own to set.
        sets = f"{_LIST.removesuffix('.')}; {numbers} sets another number." if target.backend == "qnn-htp" else _LIST
        yield replace(found, hint=sets if numbers else _LIST)


@RULES.rule(
    "QNN013", "arch-contradicted", "warning", sources=["device tables and compile scripts in public repositories"]
)
def check_arch_contradicted(target: Target) -> Iterator[Found]:
    """Sources disagree about the HTP architecture of the chip.

    A binary for a later architecture than the chip's does not load; one for an earlier wastes the chip.

    Fix: Compare with the SDK's list of supported devices before you rely on the package.
    """
    # An architecture that another source gives differently.
    fact = target.device.facts.get("arch")
    if fact is not None and (fact.contradicts or fact.alternatives):
        others = " or ".join(str(value) for value in fact.alternatives)
        yield _target(target, f"architecture {fact.value} or {others}: {fact.contradicts}", fact=fact)


@RULES.rule("QNN014", "weak-device-facts", "info", sources=["the device's own data file"])
def check_weak_facts(target: Target) -> Iterator[Found]:
    """What decides about the chip rests on reports or inference only.

    A package for it is as sure as its weakest decisive fact.

    Fix: Compare with the SDK's list of supported devices.
    """
    # A soc_model, architecture or VTCM size that no maker stated and no published code has.
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


@RULES.rule("QNN015", "vtcm-unknown", "info", sources=["docs.qualcomm.com 80-87189-2, HTP Backend Extensions"])
def check_vtcm_unknown(target: Target) -> Iterator[Found]:
    """The VTCM size of the chip is unknown.

    Whether a single operator fits cannot be checked, and vtcm_mb stays at the SDK's own choice.

    Fix: Put vtcm_mb into the device's file when you know it.
    """
    # A chip with an architecture but without VTCM size.
    if arch_of(target.device) is not None and target.device.fact("vtcm_mb") is None and not lacks("htp", target.device):
        yield _target(target, f"the VTCM size of {target.device.name} is unknown")


@RULES.rule("QNN016", "arch-unproven-on-sdk", "warning", sources=[_OWN])
def check_arch_unproven(target: Target) -> Iterator[Found]:
    """No source shows that this SDK release knows the chip's architecture.

    An SDK that is older than the chip refuses its dsp_arch or soc_model.

    Fix: Use a later release, or check the release's list of supported devices.
    """
    # An architecture whose first SDK release is later or unknown.
    arch = arch_of(target.device)
    if target.sdk is None or arch is None or lacks("htp", target.device):
        return
    row = target.sdk.feature("htp-arch", arch=arch)
    if row is None or row.status is not Status.SUPPORTED:
        note = "" if row is None else f": {row.note}"
        found = _target(target, f"nothing shows that QAIRT {target.sdk.version} knows {arch}{note}")
        yield replace(found, evidence={"status": str(Status.UNKNOWN if row is None else row.status)})


@RULES.rule("QNN017", "device-fact-contradicted", "info", sources=["the device's own data file"])
def check_fact_contradicted(target: Target) -> Iterator[Found]:
    """Sources disagree about another property of the chip.

    What depends on it may come out differently on the device.

    Fix: Compare with the SDK's list of supported devices.
    """
    # Any other fact that another source gives differently.
    for name, fact in target.device.facts.items():
        if name not in ("soc_model", "arch", "precisions") and fact.contradicts:
            others = "".join(f" or {value}" for value in fact.alternatives)
            yield _target(target, f"{name} {fact.value}{others}: {fact.contradicts}", fact=fact)


@RULES.rule(
    "QNN018",
    "soc-model-unknown",
    "error",
    sources=["user lab notes, QAIRT 2.48 on SM8750: without a SoC the binary is not targeted, exit status 0"],
)
def check_soc_model_unknown(target: Target) -> Iterator[Found]:
    """Nobody published the soc_model number of the chip.

    Without it the compiler builds for no SoC in particular, and says nothing.

    Fix: Read the number from the SDK's list of supported devices and put it into a device file.
    """
    if target.device.fact("soc_model") is None:
        yield _target(target, f"the soc_model number of {target.device.name} is unknown")
