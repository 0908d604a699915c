"""Rules about the compiler that a public wheel carries, for one device and one runtime. Codes QNN295 to QNN298.

They read the tables alone; what the compiler makes of a model is found by running it.
"""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.findings import Severity
from deploykit.findings.rules import Found, Registry
from deploykit.tables.devices import Device
from deploykit_qualcomm.carriers import Carried, Fit, compilable, forms_of, obeys

__all__ = ["RULES"]

RULES: Registry[Carried] = Registry("carrier")

_ARM64 = "HTP libraries of QAIRT 2.25 to 2.42 for Windows ARM64, executed on Linux x86-64 without hardware"
_WHEELS = "the libraries inside public Windows wheels of onnxruntime-qnn 1.18.0 to 1.24.3: build ids, machine code"
_LOADING = "onnxruntime-qnn 2.3.0 to 2.7.0 run on Linux x86-64 without hardware: 25 pairs of builder and runtime"


_ANOTHER = "choose a release whose compiler obeys soc_model (2.36.1, 2.47 and later), or another route"


def _chip(device: Device) -> str:
    return f"{device.name} (soc_model {device.fact('soc_model')}, {device.fact('arch')})"


@RULES.rule(
    "QNN295",
    "compiled-for-another-chip",
    "error",
    what="The only public compiler of this release compiles for the chip it runs on, and that is not the target's.",
    why="The ARM64 compilers inside the Windows wheels read the chip from the machine they stand on and ignore "
    "soc_model. A binary for a lower architecture is accepted, but not optimal; one for a higher architecture, or one "
    "that uses more VTCM than the chip has, is refused.",
    fix=_ANOTHER,
    sources=[_ARM64],
)
def check_chip(carried: Carried) -> Iterator[Found]:
    """An error unless this compiler was asked for by name and the chip at least accepts such binaries."""
    if carried.fit is Fit.ITSELF:
        return
    accepted = carried.fit is Fit.ACCEPTED
    outcome = "such a binary is accepted there, but not optimal" if accepted else "such a binary does not load there"
    yield Found(
        "target",
        carried.device.id,
        f"the compiler of QAIRT {carried.wheel.sdk} (onnxruntime-qnn {carried.wheel.version}) compiles for the "
        f"chip it runs on, {_chip(carried.stands_on)}, and the target is {_chip(carried.device)}: {outcome} "
        "(inferred, nobody loaded one on a device here)",
        severity=Severity.WARNING if accepted and carried.insisted else Severity.ERROR,
        hint=f"{_ANOTHER}; to have it all the same: {carried.ask}" if accepted and carried.ask else "",
        evidence={"made_for": carried.stands_on.fact("soc_model"), "wanted": carried.device.fact("soc_model")},
    )


@RULES.rule("QNN296", "compiled-on-another-machine", "info", sources=[_ARM64, _WHEELS])
def check_machine(carried: Carried) -> Iterator[Found]:
    """The compiler of this release runs on another kind of machine only, so nothing is compiled here.

    Its wheel is for Windows. An ARM64 backend asks the machine for its chip: on one that is no Snapdragon it was seen
    to stop when the device is created.

    Fix: copy the package to such a machine, run 'python scripts/compile.py' there, and verify what it made
    """
    # A wheel that neither this kind of machine nor a toolchain can run.
    wheel = carried.wheel
    if compilable(wheel):
        return
    place = "Windows x86-64" if obeys(carried.wheel) else "Windows on ARM with a Snapdragon"
    runner = (
        "" if obeys(carried.wheel) else "; whether a hosted ARM runner is enough is not known (inferred: it is not)"
    )
    yield Found(
        "environment",
        "onnxruntime-qnn",
        f"onnxruntime-qnn {wheel.version} (QAIRT {wheel.sdk}) compiles on {place} only{runner}",
    )


@RULES.rule("QNN297", "compiler-of-another-release", "warning", sources=[_WHEELS, _LOADING])
def check_release(carried: Carried) -> Iterator[Found]:
    """The nearest public compiler is not of the very release that will load the binary.

    A binary loads on the release that made it and on later ones, never on an earlier one. The wheels carry some
    releases only, and of a series one release.

    Fix: check the runtime's full version on the device: it must not be older than the compiler's
    """
    # A runtime of another release, or one that is named by its series alone.
    runtime, sdk = carried.runtime, carried.wheel.sdk
    if not runtime or runtime == sdk:
        return
    if carried.is_exact:
        message = f"the compiler is of QAIRT {sdk}: a runtime of {runtime} that is older than {sdk} does not load it"
    else:
        message = f"the compiler is of QAIRT {sdk}, the nearest in public wheels that is not newer than {runtime}"
    yield Found("sdk", runtime, message, evidence={"compiler": sdk})


@RULES.rule("QNN298", "forms-of-another-provider", "info", sources=[_ARM64])
def check_forms(carried: Carried) -> Iterator[Found]:
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
