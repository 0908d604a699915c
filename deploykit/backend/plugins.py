"""Finds the backends through the entry point group ``deploykit.backends``; it knows none by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from deploykit.backend.entrypoints import entry_points
from deploykit.backend.optional import FindsDevices, HasKnownErrors
from deploykit.backend.targets import find_device, nearest_names
from deploykit.errors import ToolError, UnknownTargetError

if TYPE_CHECKING:
    from deploykit.backend.backend import AnyBackend
    from deploykit.backend.known_errors import Catalog
    from deploykit.backend.options import OptionSpec
    from deploykit.findings.rules import Registry
    from deploykit.tables.devices import Device

__all__ = [
    "all_devices",
    "all_options",
    "all_registries",
    "backend_ids",
    "broken_backends",
    "catalog_of",
    "device_named",
    "device_of_id",
    "load_backend",
    "load_backends",
]

_GROUP = "deploykit.backends"
# The members of contract.backend.Backend, listed so that asking a backend one thing does not import the contract.
_MEMBERS = ("id", "summary", "devices", "options", "registries", "compat", "resolve")
_STAGES = ("prepare", "plan", "render", "execute", "verify")


@cache
def _entry_points() -> dict[str, str]:
    return entry_points(_GROUP)


def backend_ids() -> tuple[str, ...]:
    """The ids of the installed backends, sorted."""
    return tuple(sorted(_entry_points()))


@cache
def load_backend(backend_id: str) -> AnyBackend:
    """One backend by id; raises UnknownTargetError for an unknown id, ToolError for one that cannot be imported."""
    point = _entry_points().get(backend_id)
    if point is None:
        near = nearest_names(backend_id, backend_ids())
        raise UnknownTargetError(
            f"unknown backend {backend_id!r}", next=f"installed: {', '.join(near or backend_ids())}"
        )
    try:
        module, _, attribute = point.partition(":")
        backend = attrgetter(attribute)(import_module(module))
    except Exception as error:
        raise ToolError(
            f"backend {backend_id!r} cannot be imported", why=f"{type(error).__name__}: {error}", next="reinstall it"
        ) from error
    missing = [name for name in (*_MEMBERS, *_STAGES) if not hasattr(backend, name)]
    if missing:
        why = f"{backend!r} has no {', '.join(missing)}"
        raise ToolError(f"backend {backend_id!r} does not fulfil deploykit.backend.backend.Backend", why=why)
    return cast("AnyBackend", backend)


def load_backends() -> tuple[AnyBackend, ...]:
    """The installed backends that can be imported; a broken one must not take the others down."""
    broken = broken_backends()
    return tuple(load_backend(backend_id) for backend_id in backend_ids() if backend_id not in broken)


@cache
def broken_backends() -> dict[str, ToolError]:
    """The installed backends that cannot be imported, each with the reason; ``deploykit doctor`` shows them."""
    broken = {}
    for backend_id in backend_ids():
        try:
            load_backend(backend_id)
        except ToolError as error:
            broken[backend_id] = error
    return broken


def all_options() -> dict[OptionSpec, tuple[str, ...]]:
    """The options of all backends, each once with the ids of those that have it, in the order of the backends."""
    owners: dict[OptionSpec, tuple[str, ...]] = {}
    for backend in load_backends():
        for spec in backend.options():
            owners[spec] = (*owners.get(spec, ()), backend.id)
    return owners


def all_registries() -> tuple[Registry[Any], ...]:
    """The rule registries of all backends, each once; two backends may share one."""
    registries: list[Registry[Any]] = []
    for backend in load_backends():
        registries += [registry for registry in backend.registries() if registry not in registries]
    return tuple(registries)


def all_devices() -> tuple[Device, ...]:
    """The devices of all backends, each once; two backends may share a device file."""
    devices: dict[str, Device] = {}
    for backend in load_backends():
        for device in backend.devices():
            devices.setdefault(device.id, device)
    return tuple(sorted(devices.values(), key=lambda device: device.id))


def device_of_id(name: str, backends: Iterable[AnyBackend]) -> Device | None:
    """The device of that id from the first of the backends that finds it without reading all; None where none does."""
    finders = (backend for backend in backends if isinstance(backend, FindsDevices))
    return next((found for backend in finders if (found := backend.device_of_id(name)) is not None), None)


def device_named(name: str, backend: AnyBackend | None = None) -> Device:
    """One device of a backend, or of any, by id, alias, name or marketing name; UnknownTargetError with the nearest."""
    found = device_of_id(name, load_backends() if backend is None else (backend,))
    return found or find_device(all_devices() if backend is None else backend.devices(), name)


def catalog_of(backends: Iterable[object]) -> Catalog:
    """What is known of failures in general, and what the backends that know their tools' failures know together."""
    from deploykit.backend.known_errors import general_errors, merge_catalogs

    known = (backend.known_errors() for backend in backends if isinstance(backend, HasKnownErrors))
    return merge_catalogs([general_errors(), *known])
