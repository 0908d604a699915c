"""Resolves a device and a version for the provider: a wheel's version names the QAIRT inside, whose table answers."""

from __future__ import annotations

from dataclasses import replace

from deploykit.backend.backend import MixedSupport
from deploykit.backend.targets import Target
from deploykit.findings import Confidence
from deploykit.tables.devices import Device
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.archs import capability
from deploykit_qualcomm.resolving import resolve_target

__all__ = ["mixed_support", "resolve"]


def resolve(device: Device, sdk: str | None) -> Target:
    """The target; raises UnknownTargetError for a version that no wheel has or carries."""
    wheel = wheel_for(sdk)
    return replace(resolve_target(device, wheel.sdk, "ort-qnn"), requested=wheel.version if sdk else "")


def mixed_support(target: Target) -> MixedSupport:
    """Which ways to mix float16 and integers there are: mixes compile into one graph, and are compared."""
    fp16 = capability("fp16", device=target.device)
    segments = "the provider compiles one graph, in which float16 tensors may stand among integers"
    if fp16 is not None and not fp16.value:
        none = f"{target.device.name} has no float16"
        return MixedSupport(kinds=frozenset({"integer"}), without={"fallback": none, "segments": segments})
    return MixedSupport(
        kinds=frozenset({"integer", "fallback"}),
        safe=True,
        without={"segments": segments},
        confidence={"fallback": Confidence.OBSERVED},
    )
