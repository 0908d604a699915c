"""Finds the backends through the entry point group ``deploykit.backends``; it knows none by name."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from deploykit.adapter import Backend
from deploykit.devices import Device
from deploykit.errors import ToolError, UnknownTargetError
from deploykit.target import nearest_names

__all__ = ["all_devices", "backend_ids", "load_backend", "load_backends"]

_GROUP = "deploykit.backends"


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_GROUP)}


def backend_ids() -> tuple[str, ...]:
    """The ids of the installed backends, sorted."""
    return tuple(sorted(_entry_points()))


@cache
def load_backend(backend_id: str) -> Backend:
    """One backend by id; raises UnknownTargetError for an unknown id, ToolError for one that cannot be imported."""
    point = _entry_points().get(backend_id)
    if point is None:
        near = nearest_names(backend_id, backend_ids())
        raise UnknownTargetError(
            f"unknown backend {backend_id!r}", next=f"installed: {', '.join(near or backend_ids())}"
        )
    try:
        backend = point.load()
    except Exception as error:
        raise ToolError(
            f"backend {backend_id!r} cannot be imported", why=f"{type(error).__name__}: {error}", next="reinstall it"
        ) from error
    if not isinstance(backend, Backend):
        raise ToolError(f"backend {backend_id!r} does not fulfil deploykit.adapter.Backend", why=repr(backend))
    return backend


def load_backends() -> tuple[Backend, ...]:
    """All installed backends."""
    return tuple(load_backend(backend_id) for backend_id in backend_ids())


def all_devices() -> tuple[Device, ...]:
    """The devices of all backends, each once; two backends may share a device file."""
    devices: dict[str, Device] = {}
    for backend in load_backends():
        for device in backend.devices():
            devices.setdefault(device.id, device)
    return tuple(sorted(devices.values(), key=lambda device: device.id))
