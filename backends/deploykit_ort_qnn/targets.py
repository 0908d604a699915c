"""Resolves a device and a version for the provider: a wheel's version names the QAIRT inside, whose table answers."""

from __future__ import annotations

from dataclasses import replace

from deploykit.devices import Device
from deploykit.target import Target
from deploykit_ort_qnn.draft import wheel_for
from deploykit_qualcomm.resolving import resolve_target

__all__ = ["resolve"]


def resolve(device: Device, sdk: str | None) -> Target:
    """The target; raises UnknownTargetError for a version that no wheel has or carries."""
    wheel = wheel_for(sdk)
    return replace(resolve_target(device, wheel.sdk, "ort-qnn"), requested=wheel.version if sdk else "")
