"""Finds the backends through the entry point group ``deploykit.backends``, and the owners of options.

It knows no backend by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING

from deploykit.backend.backend import AnyBackend, Backend
from deploykit.backend.options import OptionGiven, OptionSpec, check_options
from deploykit.backend.requests import CORE_OPTIONS, Request
from deploykit.backend.targets import find_device, nearest_names
from deploykit.errors import ToolError, UnknownTargetError, UsageError
from deploykit.findings.records import Json, Names, replace

if TYPE_CHECKING:
    from deploykit.tables.devices import Device
    from deploykit.tables.known_errors import Catalog

__all__ = [
    "all_devices",
    "all_options",
    "backend_ids",
    "catalog_of",
    "checked_request",
    "device_named",
    "device_of_id",
    "first_offering",
    "load_backend",
    "load_backends",
    "own_options",
]

_GROUP = "deploykit.backends"


@cache
def _entry_points() -> dict[str, str]:
    found = dict[str, str]()
    for point in entry_points(group=_GROUP):
        found.setdefault(point.name, point.value.partition("[")[0].strip())
    return found


def backend_ids() -> Names:
    """The ids of the installed backends, sorted."""
    return tuple(sorted(_entry_points()))


@cache
def load_backend(backend_id: str) -> AnyBackend:
    """One backend by id. Raises UnknownTargetError for an unknown id, ToolError for one that cannot be imported."""
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
    if not isinstance(backend, Backend):
        why = f"{point} is no object of a subclass of deploykit.backend.backend.Backend"
        raise ToolError(f"backend {backend_id!r} is no backend", why=why, next="see docs/plugins.md")
    return backend


@cache
def load_backends() -> tuple[AnyBackend, ...]:
    """The installed backends that can be imported; a broken one, which doctor reports, must not disable the others."""
    backends = list[AnyBackend]()
    for backend_id in backend_ids():
        with suppress(ToolError):
            backends.append(load_backend(backend_id))
    return tuple(backends)


def all_options() -> dict[OptionSpec, Names]:
    """The options of all backends, each once with the ids of its backends, in the order of the backends."""
    owners = dict[OptionSpec, Names]()
    for backend in load_backends():
        for spec in backend.options():
            owners[spec] = (*owners.get(spec, ()), backend.id)
    return owners


def all_devices() -> tuple[Device, ...]:
    """The devices of all backends, each once; two backends may share a device file."""
    devices = {device.id: device for backend in reversed(load_backends()) for device in backend.devices()}
    return tuple(sorted(devices.values(), key=lambda device: device.id))


def first_offering(method: str, backend: str | None = None) -> AnyBackend | None:
    """The first installed backend, or the one of that id, that offers a method; None if none does."""
    candidates = load_backends() if backend is None else (load_backend(backend),)
    return next((one for one in candidates if one.offers(method)), None)


def device_of_id(name: str, backends: Iterable[AnyBackend]) -> Device | None:
    """The device of that id from the first backend that has it; None if none does."""
    return next((found for backend in backends if (found := backend.device_of_id(name)) is not None), None)


def device_named(name: str, backend: AnyBackend | None = None) -> Device:
    """A device of one or any backend, by id, alias, name or marketing name. Raises UnknownTargetError with
    near names.
    """
    found = device_of_id(name, load_backends() if backend is None else (backend,)) or find_device(all_devices(), name)
    if backend is not None and backend.id not in found.backends:
        why = f"its backends: {', '.join(found.backends) or 'none'}"
        raise UnknownTargetError(
            f"{found.id}: the backend {backend.id} does not serve it", why=why, next="leave --backend out"
        )
    return found


def catalog_of(backends: Iterable[AnyBackend]) -> Catalog:
    """The general known errors, merged with those of the backends."""
    from deploykit.tables.known_errors import general_errors, merge_catalogs

    return merge_catalogs([general_errors(), *(backend.known_errors() for backend in backends)])


def checked_request(request: Request, backend: AnyBackend) -> Request:
    """The request with the backend's own options checked and their defaults filled in.

    Raises UsageError for an unknown option, an invalid value, or a way to
    mix precisions that the backend does not have.
    """
    named = [name for name, value in {"goal": request.goal, "metric": request.metric}.items() if value is not None]
    if named and request.precision != "auto":
        raise UsageError(
            f"--{named[0]}: nothing is chosen by it",
            why="it says what the precision that is chosen must reach, and none is to be chosen",
            next="give --precision auto, or leave it out",
        )
    if request.mixed in ("fallback", "segments") and not backend.offers("mixed_support"):
        what = f"--mixed {request.mixed}: not for {backend.id}"
        raise UsageError(what, why="it does not mix precisions", next="leave it out")
    return replace(request, adapter_options=own_options(backend, request.adapter_options))


def own_options(backend: AnyBackend, given: Mapping[str, OptionGiven]) -> Json:
    """Every option of a backend with its checked value. Raises UsageError for a name that it does not have."""
    specs = backend.options()
    known = {spec.name for spec in specs}
    for name in given:
        if name not in known:
            raise _refused(name, backend.id, known)
    return dict(check_options(specs, given))


def _refused(name: str, backend_id: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown option: it names the option's owner, or the nearest names."""
    owners = {spec: ids for spec, ids in all_options().items() if backend_id not in ids}
    for spec, ids in owners.items():
        if spec.name == name:
            return UsageError(
                f"{spec.flag}: not an option of {backend_id}",
                why=f"it is an option of {' and '.join(ids)}",
                next=f"leave it out (and {spec.envvar}), or choose with --backend",
            )
    near = nearest_names(name, [*known, *(spec.name for spec in CORE_OPTIONS)])
    foreign = {spec.name: f"{spec.name} of {' and '.join(ids)}" for spec, ids in owners.items()}
    near = near or [foreign[other] for other in nearest_names(name, foreign)]
    return UsageError(
        f"{name}: neither an option of {backend_id} nor of deploykit",
        next=f"did you mean {', '.join(near)}?" if near else "'deploykit package --help-backend all' lists all",
    )
