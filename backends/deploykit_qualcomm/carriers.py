"""Which wheel's compiler makes a context binary for a release, and for which chips; it compiles and chooses nothing.

A binary loads on the release that made it and on later ones, so a wheel serves a runtime when it is not newer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from deploykit.tables.capabilities import Status
from deploykit.tables.devices import Device
from deploykit_qualcomm.archs import arch_of
from deploykit_qualcomm.binaries import judge_loading
from deploykit_qualcomm.devices import qualcomm_device
from deploykit_qualcomm.rows import Wheel
from deploykit_qualcomm.tables import tables

__all__ = ["Carried", "Fit", "carrier_for", "chip_on_arm", "forms_of", "obeys"]

_ON_ARM = "sc8380xp"
"""The chip of the Windows machines that ARM64 wheels were met on: theirs is the only stub library inside."""


@cache
def chip_on_arm() -> Device:
    """The chip of the machines that an ARM64 compiler stands on."""
    return qualcomm_device(_ON_ARM)


class Fit(StrEnum):
    """What a wheel's binary is for a device: made for it, for another chip that it can load from, or not loadable."""

    ITSELF = "itself"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """One wheel's compiler for one device.

    ``runtime`` is the release that will load the binary, as typed or as the table names it; "" is the wheel's own.
    ``insisted`` says that this compiler was asked for by name, ``ask`` how that is done.
    """

    wheel: Wheel
    device: Device
    runtime: str = ""
    insisted: bool = False
    ask: str = ""
    stands_on: Device = field(default_factory=chip_on_arm)
    """The chip of the machine that an ARM64 compiler stands on."""

    @property
    def obeys(self) -> bool:
        """True when the compiler makes what ``soc_model`` asks for."""
        return obeys(self.wheel)

    @property
    def fit(self) -> Fit:
        """Whether the binary is for this device."""
        made_for, device = self.stands_on, self.device
        if self.obeys or made_for.fact("soc_model") == device.fact("soc_model"):
            return Fit.ITSELF
        _, by_arch = judge_loading(self.wheel.sdk, arch_of(made_for) or "", self.wheel.sdk, arch_of(device) or "")
        wanted, has = made_for.fact("vtcm_mb"), device.fact("vtcm_mb")
        fits = isinstance(wanted, int) and isinstance(has, int) and wanted <= has
        return Fit.ACCEPTED if by_arch.status is Status.SUPPORTED and fits else Fit.REFUSED

    @property
    def is_exact(self) -> bool:
        """True when the runtime is of the wheel's own release, as far as its name says."""
        named = self.runtime.split(".")[:3]
        return not self.runtime or self.wheel.sdk.split(".")[: len(named)] == named


def obeys(wheel: Wheel) -> bool:
    """True when some build of a wheel's compiler makes what ``soc_model`` asks for.

    The x86-64 ones do. The ARM64 ones compile for the chip they stand on.
    """
    return any(host.machine == "x86-64" for host in wheel.host)


def carrier_for(runtime: str) -> Wheel | None:
    """The newest wheel whose binaries that release loads, None where every wheel is newer.

    A series as typed (2.33) means any build of it, so that a wheel of the series (2.33.2) serves it. Raises
    UnknownTargetError for what is no version.
    """
    verdicts = ((wheel, judge_loading(wheel.sdk, "", runtime, "")[0].status) for wheel in tables().wheels)
    loads = (wheel for wheel, status in verdicts if status is not Status.UNSUPPORTED)
    return max(loads, key=lambda wheel: tables().wheels.index(wheel), default=None)


def forms_of(wheel: Wheel) -> Wheel:
    """The wheel that says which forms this one takes: itself where its provider was run, else the nearest that was.

    Those with ONNX Runtime inside go by the newest such, whose provider refuses more than the plugins' do.
    """
    if wheel.refuses or wheel.lacks or _was_run(wheel) or wheel.provider == "plugin":
        return wheel
    inside = [known for known in tables().wheels if known.provider != "plugin" and known.loadable and _was_run(known)]
    return inside[-1] if inside else wheel


def _was_run(wheel: Wheel) -> bool:
    return wheel.loadable and any("compile" in host.observed for host in wheel.host)
