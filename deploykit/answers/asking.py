"""Asks all installed backends which features an SDK, tool and architecture have, and whether binaries load.

It searches rows and invents none; what no row states is unknown. It knows no vendor and reads no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from deploykit.backend.plugins import device_named, load_backend, load_backends
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.findings.records import Json, Names, Published, Record, published, replace
from deploykit.tables.capabilities import CompatRow, Status, release_range
from deploykit.tables.devices import Device

__all__ = ["CompatAnswer", "ask", "ask_binary", "compare", "features"]


class ReleaseComparison(Published):
    """The differences between two releases: states of features, and the stated changes of the releases in between."""

    before: str
    after: str
    differences: tuple[ReleaseDifference, ...]
    releases: tuple[CompatRow, ...]


def ask(words: Sequence[str] = (), **asked: str) -> CompatAnswer:
    """The rows about ``words``; with a ``target`` those of its architecture, and the facts of the device itself.

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
    """The changes from one SDK release to another, for one backend and device if these are given."""
    query, _ = _query(words, **asked)
    rows = tuple(_rows(query))
    return ReleaseComparison(
        before=before,
        after=after,
        differences=differences(rows, before, after, query),
        releases=releases_between(rows, before, after, query),
    )


def ask_binary(built_with: str, built_for: str, runtime: str, *, target: str, arch: str = "") -> CompatAnswer:
    """Rows on whether a binary built with one release and architecture loads on another release and architecture.

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
    """Yields the feature of every row of every backend."""
    for backend in load_backends():
        yield from (row.feature for row in backend.compat())


def _rows(query: Query) -> Iterator[CompatRow]:
    """Yields the rows of the requested backends; the tables of others are not read."""
    for backend in load_backends():
        if query.backends is None or backend.id in query.backends:
            yield from backend.compat()


def _query(
    words: Sequence[str] = (), *, sdk: str = "", target: str = "", arch: str = "", tool: str = "", backend: str = ""
) -> tuple[Query, Device | None]:
    """The query, and the device of that name; an empty text filters nothing."""
    if backend:
        load_backend(backend)  # raises an error if there is no such backend
    device = device_named(target) if target else None
    archs: Names | None = (arch,) if arch else None
    backends: Names | None = (backend,) if backend else None
    if device is not None:
        found = device.fact("arch")
        archs = archs or ((str(found),) if found is not None else ())
        backends = backends or device.backends
    return Query(words=tuple(words), sdk=sdk, archs=archs, tool=tool, backends=backends), device


RELEASE = "release "
_PLAIN = str.maketrans(dict.fromkeys("-_/,;:\"'()[]=.", " "))
_ARCH_FACT = "arch"


class Query(Record):
    """A query: words that must all occur, and filters; an empty filter lets all rows pass.

    ``archs`` is None for every architecture, else those whose rows are wanted besides the general
    ones; ``backends`` is None for every backend.
    """

    words: Names
    sdk: str
    archs: Names | None
    tool: str
    backends: Names | None


class CompatAnswer(Published):
    """The rows that answer a query, best match first. ``answered_by`` names the release used for each family.

    ``near`` are features with names similar to the words, if no row matched.
    """

    rows: tuple[CompatRow, ...]
    requested: str = ""
    answered_by: Mapping[str, str] = {}
    near: Names = ()

    def as_published(self) -> Json:
        """The JSON of ``deploykit compat``."""
        sdk = {"requested": self.requested, "answered_by": self.answered_by}
        return {
            "rows": self.rows,
            **({"sdk": sdk} if self.requested else {}),
            **({"near": self.near} if self.near else {}),
        }


class ReleaseDifference(Published):
    """One difference between two releases; None on the side without a row."""

    before: CompatRow | None
    after: CompatRow | None

    @property
    def row(self) -> CompatRow:
        """The row of the later release, or of the earlier one if the later has none."""
        found = self.after or self.before
        assert found is not None
        return found

    def as_published(self) -> Json:
        """One entry in the JSON of ``deploykit compat diff``."""
        about = {name: getattr(self.row, name) for name in ("feature", "backend", "tool", "arch")}
        return {**about, **published(self)}


def answer(rows: Iterable[CompatRow], query: Query) -> CompatAnswer:
    """The rows for a query: every range of releases, or only the state at ``query.sdk`` if it is given.

    Raises UnknownTargetError if ``query.sdk`` is not a version, or no table covers it.
    """
    everything = tuple(rows)
    wanted = [row for row in everything if _passes(row, query)]
    answered_by = dict[str, str]()
    if query.sdk:
        answered_by = _answering(everything, query.sdk)
        wanted = _at(wanted, answered_by)
    found, near = search(wanted, query.words), list[str]()
    if not found:
        import difflib

        names = sorted({row.feature.removeprefix("flag ") for row in wanted})
        near = difflib.get_close_matches(" ".join(query.words), names, n=4, cutoff=0.5)
    shown = tuple(_stamped(row, answered_by) for row in found)
    for family, release in answered_by.items():
        spoken = dict.fromkeys(row.sdk for row in shown if row.family == family and row.since)
        answered_by[family] = ", ".join(spoken) or release
    return CompatAnswer(rows=shown, requested=query.sdk, answered_by=answered_by, near=tuple(near))


def search(rows: Iterable[CompatRow], words: Sequence[str]) -> tuple[CompatRow, ...]:
    """The rows with every word in feature, tool, backend or spellings, best match first.

    Whole words beat parts of words. A row under an old name adds the rows of the new name. If no name matches, the
    notes are searched for the whole words.
    """
    everything = tuple(rows)
    phrases = [phrase for phrase in map(_normal, words) if phrase]
    if not phrases:
        return everything
    joined = " ".join(phrases)
    # All names of each row.
    called = [_normal(" ".join((row.feature, row.tool, row.backend, *row.words))) for row in everything]
    for edge in (" ", ""):
        found = [row for row, names in zip(everything, called, strict=True) if _holds_all(names, phrases, edge)]
        if found:
            found.sort(key=lambda row: _normal(row.feature) != joined)
            wanted = {(row.backend, row.renamed_to) for row in found if row.renamed_to}
            if not wanted:
                return tuple(found)
            right = (row for row in everything if (row.backend, row.feature) in wanted)
            return tuple(dict.fromkeys((*found, *right)))
    return tuple(row for row in everything if _holds_all(_normal(row.note), phrases, " "))


def differences(rows: Iterable[CompatRow], before: str, after: str, query: Query) -> tuple[ReleaseDifference, ...]:
    """The features with another status, lifecycle or name at the release ``after`` than at ``before``."""
    everything = tuple(rows)
    wanted = [row for row in everything if _passes(row, query) and not row.feature.startswith(RELEASE)]
    old, new = (
        {_key(row): row for row in search(_at(wanted, _answering(everything, sdk)), query.words)}
        for sdk in (before, after)
    )
    keys = dict.fromkeys((*old, *new))
    found = []
    for key in keys:
        one, other = old.get(key), new.get(key)
        if one is None or other is None or (one is not other and _state(one) != _state(other)):
            sides = [None if row is None else _stamped(row, {}) for row in (one, other)]
            found.append(ReleaseDifference(before=sides[0], after=sides[1]))
    return tuple(found)


def releases_between(rows: Iterable[CompatRow], before: str, after: str, query: Query) -> tuple[CompatRow, ...]:
    """The rows about the changes of releases after ``before`` up to ``after``, as makers and users report them."""
    everything = [row for row in rows if row.since and _passes(row, query) and row.feature.startswith(RELEASE)]
    low, high = _parse(before), _parse(after)
    return tuple(row for row in everything if low < _version(row.since) and _truncated(row.since, high) <= high)


def device_rows(device: Device) -> Iterator[CompatRow]:
    """Yields the device database's facts as rows, and a row with status unknown if the architecture is missing."""
    for name, fact in device.facts.items():
        value = ", ".join(fact.value) if isinstance(fact.value, tuple) else fact.value
        others = f" (others say {', '.join(map(str, fact.alternatives))})" if fact.alternatives else ""
        yield _device_row(
            device,
            name,
            f"{value}{others}" + (f"; {fact.note}" if fact.note else ""),
            status=Status.UNSUPPORTED if fact.value is False else Status.SUPPORTED,
            source=fact.source,
            confidence=fact.confidence,
            contradicts=fact.contradicts,
        )
    if _ARCH_FACT not in device.facts:
        yield _device_row(
            device, _ARCH_FACT, "nobody published it", status=Status.UNKNOWN, source=(), confidence=None, contradicts=""
        )


def _device_row(device: Device, name: str, note: str, **more: Any) -> CompatRow:
    return CompatRow(
        feature=f"device {device.id} {name}",
        backend="",
        tool="",
        sdk="",
        since="",
        until="",
        note=note,
        words=(device.name, device.marketing, *device.aliases),
        **more,
    )


def _passes(row: CompatRow, query: Query) -> bool:
    """True for a row that passes the filters of a query."""
    return (
        (query.backends is None or row.backend in query.backends)
        and query.tool in ("", row.tool)
        and (query.archs is None or row.arch == "" or row.arch in query.archs)
    )


def _key(row: CompatRow) -> tuple[str, str, str, str]:
    return row.backend, row.feature, row.tool, row.arch


def _at(rows: Iterable[CompatRow], answered_by: Mapping[str, str]) -> list[CompatRow]:
    """The rows that hold at the release used for their family."""
    best = dict[Any, CompatRow]()
    for row in rows:
        asked = _version(answered_by.get(row.family) or "0")  # earlier than every release if none is used
        if not row.since or (_version(row.since) <= asked and (not row.until or asked <= _version(row.until))):
            # Two statements about one release (its changes) are two answers; of two ranges the later one counts.
            key = (*_key(row), row.note) if row.feature.startswith(RELEASE) else _key(row)
            if key not in best or _version(best[key].since or "0") <= _version(row.since or "0"):
                best[key] = row
    return list(best.values())


def _answering(rows: Iterable[CompatRow], sdk: str) -> dict[str, str]:
    """The release used for a version as typed, by family: itself, its series' newest, or the nearest lower one."""
    wanted = _parse(sdk)
    known = dict[str, set[str]]()
    for row in rows:
        if row.since:
            known.setdefault(row.family, set()).add(row.since)
    found = dict[str, str]()
    for family, releases in known.items():
        lower = [release for release in sorted(releases, key=_version) if _truncated(release, wanted) <= wanted]
        if lower and wanted.major == _version(lower[-1]).major:
            found[family] = lower[-1]
    if known and not found:
        ranges = ", ".join(f"{min(r, key=_version)} to {max(r, key=_version)}" for r in known.values())
        raise UnknownTargetError(f"no table speaks for SDK {sdk}", why=f"the tables cover {ranges}")
    return found


def _truncated(release: str, wanted: Version) -> Version:
    """The release cut to the length of ``wanted``: ``2.48.40`` is ``2.48`` for a series, so that all of it counts."""
    return Version(".".join(map(str, _version(release).release[: len(wanted.release)])))


def _state(row: CompatRow) -> tuple[str, str, str]:
    return row.status, row.lifecycle, row.renamed_to


def _stamped(row: CompatRow, answered_by: Mapping[str, str]) -> CompatRow:
    """The row with the release that was used, or with its own range of releases."""
    if not row.since:
        return row
    answers = answered_by.get(row.family, "")
    sdk = (answers and row.ran) or answers or release_range(row.since, row.until)
    return row if row.sdk == sdk else replace(row, sdk=sdk)


def _holds_all(text: str, phrases: Iterable[str], edge: str) -> bool:
    """True if every phrase occurs; with a space as ``edge`` only as whole words."""
    return all(f"{edge}{phrase}{edge}" in f" {text} " for phrase in phrases)


@cache
def _normal(text: str) -> str:
    return " ".join(text.lower().translate(_PLAIN).split())


@cache
def _version(text: str) -> Version:
    return Version(text)


def _parse(sdk: str) -> Version:
    try:
        return Version(sdk)
    except InvalidVersion:
        raise UnknownTargetError(
            f"unknown SDK version {sdk[:60]!r}", next="a version looks like 2.33, 2.33.0 or 2.33.0.250327"
        ) from None
