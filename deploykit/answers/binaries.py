"""The metadata of a compiled binary, and the releases and devices on which it loads.

The backend that made such files reads and judges them; it is asked here once for each release in its tables.
"""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from deploykit.backend.plugins import first_offering
from deploykit.backend.targets import find_device
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.findings.records import Json, Names, Published, published
from deploykit.tables.capabilities import CompatRow, Status

__all__ = ["BinaryReport", "report_binary"]


class Runtime(Published):
    """One release, and whether it loads the binary; ``carriers`` are the packages with its libraries."""

    release: str
    status: Status
    carriers: Names = ()


class BinaryReport(Published):
    """``info`` is the binary's own metadata; ``loads`` is the verdict for the requested release and device.

    ``runtimes`` holds every release with tables, oldest first, for the named device or the binary's own chip.
    """

    info: Json
    loads: tuple[CompatRow, ...]
    runtimes: tuple[Runtime, ...]

    @property
    def refused(self) -> bool:
        """True if the binary is known not to load as requested, or to be too large for its chip."""
        too_large = any((graph.get("fits") or {}).get("ok") is False for graph in self.info["graphs"])
        return too_large or any(row.status is Status.UNSUPPORTED for row in self.loads)

    def as_published(self) -> Json:
        """The JSON of ``deploykit explain`` and ``deploykit compat binary``."""
        return {**self.info, **published(self, without=("info",))}


def report_binary(path: Path, *, backend: str | None, runtime: str, target: str) -> BinaryReport:
    """Reads a compiled file and judges it for ``runtime`` and ``target``, if they are given.

    ``runtime`` is a release as typed, or the name and version of a package that carries one. Raises InputError for
    another file, UnknownTargetError for an unknown device or release, UsageError without a backend that reads it.
    """
    known = first_offering("inspect", backend)
    if known is None:
        raise UsageError(f"{backend or 'no installed backend'}: reads no compiled files")
    info = known.inspect(path)
    if not known.offers("binary_rows"):
        return BinaryReport(info=info, loads=(), runtimes=())
    built_with, built_for = str(info["release"]), str(info.get("arch") or "")
    arch = str(find_device(known.devices(), target).fact("arch") or "") if target else built_for
    rows = tuple(known.compat())
    release = runtime or built_with
    if " " in runtime.strip():  # the name and version of a package that carries a release
        wanted = f"wheel {' '.join(runtime.split())}"
        release = next((row.since for row in rows if row.feature == wanted), "")
        if not release:
            next_ = "'deploykit compat wheel' lists them"
            raise UnknownTargetError(f"no table knows the package {runtime!r}", next=next_)
    carriers = dict[str, dict[str, None]]()
    for row in rows:
        if row.feature == f"release {row.since}":
            carriers.setdefault(row.since, {})
        elif row.feature.startswith("wheel ") and row.since:
            carriers.setdefault(row.since, {})[row.feature.removeprefix("wheel ")] = None
    runtimes = []
    for known_release in sorted(carriers, key=Version):
        # The first row is the whole verdict; without an architecture only the release decides, which is the second row.
        verdicts = [row.status for row in known.binary_rows(built_with, built_for, known_release, arch)]
        status = verdicts[0] if arch and built_for else verdicts[min(1, len(verdicts) - 1)]
        runtimes.append(Runtime(release=known_release, status=status, carriers=tuple(carriers[known_release])))
    asked = runtime or target
    loads = tuple(known.binary_rows(built_with, built_for, release, arch)) if asked else ()
    return BinaryReport(info=info, loads=loads, runtimes=tuple(runtimes))
