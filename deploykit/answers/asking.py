"""Asks all installed backends at once, about capabilities and about compiled binaries.

It collects and filters; what the answer is stands in the backends' tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from deploykit.answers.capability_answers import (
    CompatAnswer,
    Query,
    ReleaseDifference,
    answer,
    device_rows,
    differences,
    releases_between,
    search,
)
from deploykit.backend.plugins import device_named, load_backend, load_backends
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.records import Published
from deploykit.tables.capabilities import CompatRow
from deploykit.tables.devices import Device

__all__ = ["ReleaseComparison", "ask", "ask_binary", "compare", "features"]


class ReleaseComparison(Published):
    """What differs between two releases: states of features, and what the releases in between are said to change."""

    before: str
    after: str
    differences: tuple[ReleaseDifference, ...]
    releases: tuple[CompatRow, ...]


def ask(words: Sequence[str] = (), **asked: str) -> CompatAnswer:
    """The rows about ``words``; with a ``target`` those of its architecture, and what is known about the device itself.

    Raises UnknownTargetError for an unknown device, backend or SDK version.
    """
    query, target = _query(words, **asked)
    found, device = answer(_rows(query), query), target
    if device is None and words and not found.rows:
        with suppress(UnknownTargetError):
            device = device_named(" ".join(words))
    extra = tuple(device_rows(device)) if device is not None and not query.tool else ()
    if target is not None:
        extra = search(extra, words)
    return replace(found, rows=(*found.rows, *extra), near=() if extra else found.near)


def compare(before: str, after: str, words: Sequence[str] = (), **asked: str) -> ReleaseComparison:
    """What changes from one SDK release to another, for one backend and device where they are given."""
    query, _ = _query(words, **asked)
    rows = tuple(_rows(query))
    return ReleaseComparison(
        before=before,
        after=after,
        differences=differences(rows, before, after, query),
        releases=releases_between(rows, before, after, query),
    )


def ask_binary(built_with: str, built_for: str, runtime: str, *, target: str, arch: str = "") -> CompatAnswer:
    """Will a binary built with one release for one architecture load on another release and architecture?

    ``runtime`` is the release on the device; its architecture is ``arch`` or that of ``target``.
    """
    if not runtime or not (target or arch):
        raise UsageError("the runtime is missing", next="give --sdk for the device, and --target or --arch")
    query, _ = _query(target=target, arch=arch)
    wanted = query.archs[0] if query.archs else ""
    rows = tuple(
        row for backend in load_backends() for row in backend.binary_rows(built_with, built_for, runtime, wanted)
    )
    return CompatAnswer(rows=rows)


def features() -> Iterator[str]:
    """What every row of every backend is about."""
    for backend in load_backends():
        yield from (row.feature for row in backend.compat())


def _rows(query: Query) -> Iterator[CompatRow]:
    """The rows of the backends that are asked; the tables of the others are not read."""
    for backend in load_backends():
        if query.backends is None or backend.id in query.backends:
            yield from backend.compat()


def _query(
    words: Sequence[str] = (), *, sdk: str = "", target: str = "", arch: str = "", tool: str = "", backend: str = ""
) -> tuple[Query, Device | None]:
    """What is asked, and the device of that name; an empty text asks for nothing."""
    if backend:
        load_backend(backend)  # raises where there is no such backend
    device = device_named(target) if target else None
    archs: tuple[str, ...] | None = (arch,) if arch else None
    backends: tuple[str, ...] | None = (backend,) if backend else None
    if device is not None:
        found = device.fact("arch")
        archs = archs or ((str(found),) if found is not None else ())
        backends = backends or device.backends
    return Query(words=tuple(words), sdk=sdk, archs=archs, tool=tool, backends=backends), device
