"""Will a context binary built by one release for one architecture load on another; a judgement with its sources.

Two things decide: the release (a binary is never newer than its runtime) and the architecture. It reads no binary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from deploykit.errors import UnknownTargetError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from deploykit_qualcomm.archs import arch_number, known_archs
from deploykit_qualcomm.compat import FAMILY
from deploykit_qualcomm.tables import tables

__all__ = ["Loading", "binary_rows", "judge_loading"]

_CACHE = "onnxruntime/onnxruntime-qnn onnxruntime/core/providers/qnn builder/qnn_cache_compatibility_manager.cc"
_LAB = "onnxruntime-qnn 2.3.0 to 2.7.0 run on Linux x86-64 without hardware: 25 pairs of builder and runtime"
_EMULATOR = "onnxruntime-qnn 2.7.0 run on Linux x86-64 without hardware: 36 pairs of architectures"
_MAINTAINER = "qualcomm/ai-hub-apps#148 (maintainer statement)"
_V81 = 81  # the emulator refuses binaries for v81 under any older architecture, and no others


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """One part of the judgement: ``release`` or ``architecture``."""

    part: str
    status: Status
    why: str
    source: tuple[str, ...] = ()
    confidence: Confidence | None = None
    contradicts: str = ""


def judge_loading(built_with: str, built_for: str, runtime: str, arch: str) -> tuple[Loading, Loading]:
    """The judgement by release and by architecture; both must be supported for the binary to load.

    Versions as typed, ``2.48`` or ``2.48.0.260626``; architectures ``v73``, or "" for unknown. Raises
    UnknownTargetError for what is neither.
    """
    return _by_release(_version(built_with), _version(runtime)), _by_arch(_known(built_for), _known(arch))


def binary_rows(backend: str, built_with: str, built_for: str, runtime: str, arch: str) -> Iterator[CompatRow]:
    """The judgement as rows: one for the whole, then one per part."""
    parts = judge_loading(built_with, built_for, runtime, arch)
    what = f"context-binary built with {built_with} for {built_for or 'an unknown architecture'}"
    verdict = _worst(parts)
    why = f"on {runtime}, {arch or 'an unknown architecture'}: {'; '.join(part.why for part in parts)}"
    sources = tuple(dict.fromkeys(source for part in parts for source in part.source))
    contradicts = "; ".join(part.contradicts for part in parts if part.contradicts)
    whole = Loading(
        part="",
        status=verdict,
        why=why,
        source=sources,
        confidence=_weakest(part for part in parts if part.status is verdict),
        contradicts=contradicts,
    )
    for part in (whole, *parts):
        yield CompatRow(
            feature=f"{what}{f' ({part.part})' if part.part else ''}",
            backend=backend,
            tool="",
            sdk=runtime,
            status=part.status,
            since="",
            until="",
            note=part.why,
            source=part.source,
            confidence=part.confidence,
            arch=arch,
            contradicts=part.contradicts,
            family=FAMILY,
        )


def _by_release(built: Version, runtime: Version) -> Loading:
    if _comparable(built, runtime) <= _comparable(runtime, built):
        if _comparable(built, runtime) == runtime and any(built.release[len(runtime.release) : 3]):
            why = f"{runtime} may be an older build than {built}: name it with all its numbers"
            return Loading(part="release", status=Status.UNKNOWN, why=why)
        return _release(Status.SUPPORTED, f"a binary of {built} is not newer than the runtime {runtime}")
    written, read = _blob_written(built), _blob_read(runtime)
    why = f"{built} is newer than the runtime {runtime}"
    if written and read and Version(written) > Version(read):
        why += f"; it writes context blobs of version {written} or later, the runtime reads at most {read}"
    return _release(Status.UNSUPPORTED, why)


def _blob_written(built: Version) -> str | None:
    """The blob version of the newest release up to ``built`` of which it is known: at least that is written."""
    known = [blob for version, blob in _blobs() if version <= built]
    return known[-1] if known else None


def _blob_read(runtime: Version) -> str | None:
    """The blob version of the oldest release from ``runtime`` on of which it is known: at most that is read."""
    return next((blob for version, blob in _blobs() if version >= runtime), None)


def _blobs() -> list[tuple[Version, str]]:
    shelf = tables()
    files = (shelf.file(version) for version in shelf.versions)
    told = {f.version: str(f.facts["context_blob"].value) for f in files if "context_blob" in f.facts}
    told.update({wheel.sdk: wheel.blob for wheel in shelf.wheels if wheel.blob})
    return sorted((Version(version), blob) for version, blob in told.items())


def _release(status: Status, why: str) -> Loading:
    source = (_CACHE, _MAINTAINER, _LAB)
    return Loading(part="release", status=status, why=why, source=source, confidence=Confidence.OBSERVED)


def _comparable(version: Version, other: Version) -> Version:
    """Cut to the numbers that both name: a build of 2.48 is not newer than a runtime that is called 2.48."""
    numbers = version.release[: len(other.release)]
    return Version(".".join(map(str, numbers)))


def _by_arch(built_for: int | None, arch: int | None) -> Loading:
    if built_for is None or arch is None:
        return Loading(part="architecture", status=Status.UNKNOWN, why="an architecture is unknown")
    if built_for == arch:
        return _arch(Status.SUPPORTED, f"built for v{arch} itself: optimal")
    if built_for < arch:
        return _arch(
            Status.SUPPORTED,
            f"built for v{built_for}, below v{arch}: accepted, recompilation preferred",
            contradicts="the vendor's HTP backend page (2.39) calls loading a binary of another arch indeterminate",
        )
    return _arch(
        Status.UNSUPPORTED,
        f"built for v{built_for}, above v{arch}: refused",
        contradicts="" if built_for >= _V81 else "the x86 emulator loads such a binary all the same",
    )


def _arch(status: Status, why: str, *, contradicts: str = "") -> Loading:
    return Loading(
        part="architecture",
        status=status,
        why=why,
        source=(_CACHE, _EMULATOR),
        confidence=Confidence.OBSERVED,
        contradicts=contradicts,
    )


def _worst(parts: tuple[Loading, ...]) -> Status:
    order = (Status.UNSUPPORTED, Status.UNKNOWN, Status.SUPPORTED)
    return min((part.status for part in parts), key=order.index)


def _weakest(parts: Iterator[Loading]) -> Confidence | None:
    known = [part.confidence for part in parts if part.confidence is not None]
    return max(known, key=lambda confidence: confidence.rank) if known else None


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UnknownTargetError(
            f"unknown SDK version {text[:60]!r}", next="a version looks like 2.48 or 2.48.0"
        ) from None


def _known(arch: str) -> int | None:
    if not arch:
        return None
    number = arch_number(arch)
    if number is None:
        raise UnknownTargetError(f"unknown architecture {arch!r}", next=f"known: {', '.join(known_archs())}")
    return number
