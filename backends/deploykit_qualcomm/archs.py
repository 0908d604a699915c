"""What an HTP architecture can do, with who says so; a device may state a capability for itself and outranks it."""

from __future__ import annotations

from deploykit.tables.devices import Device, Fact
from deploykit_qualcomm.tables import tables

__all__ = ["arch_number", "arch_of", "capability", "has", "known_archs", "lacks"]


def known_archs() -> tuple[str, ...]:
    """Every architecture of the table, oldest first: ``v66`` … ``v81``."""
    archs = tables().archs.arch
    return tuple(sorted(archs, key=lambda name: archs[name].number))


def arch_number(arch: str) -> int | None:
    """The number of an architecture, 73 of ``v73``; None when the table does not have it."""
    row = tables().archs.arch.get(arch)
    return None if row is None else row.number


def arch_of(device: Device) -> str | None:
    """The architecture of a device, or None when nobody published it."""
    value = device.fact("arch")
    return value if isinstance(value, str) else None


def capability(name: str, *, arch: str | None = None, device: Device | None = None) -> Fact | None:
    """One capability (``fp16``, ``bf16``, ``lpbq``, ``a16w16``, ``extended_udma`` …), or None when it is unknown.

    A fact of that name on the device outranks its architecture.
    """
    if device is not None:
        if name in device.facts:
            return device.facts[name]
        arch = arch_of(device) if arch is None else arch
    row = tables().archs.arch.get(arch or "")
    return None if row is None else row.facts.get(name)


def has(name: str, device: Device) -> bool:
    """True when a device is known to have a capability."""
    fact = capability(name, device=device)
    return fact is not None and fact.value is True


def lacks(name: str, device: Device) -> bool:
    """True when a device is known not to have a capability; unknown is neither."""
    fact = capability(name, device=device)
    return fact is not None and fact.value is False
