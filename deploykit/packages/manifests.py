"""The manifest of a package: its records, its digest, and reading it as a stranger's file. It judges no other file.

The digest is the SHA-256 of the manifest as deploykit writes it, without the digest itself. The bytes of the file must
be exactly what deploykit writes for what they say, so no bit of them can change unseen; and whoever kept the digest can
tell a package that was changed and sealed again from the one that was made.

What large files hashed to is remembered, for as long as the system says that nobody wrote to them: four gigabytes are
read once while a package is made, and not again for the list of inputs and for the check of what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from deploykit.errors import DeploykitError, PackageError
from deploykit.findings.records import Json, Names, Record, field
from deploykit.system.files import copy_hashed, open_regular, paths_below, read_regular, unreadable

__all__ = [
    "BUILD_FOLDERS",
    "MANIFEST",
    "REPORT_PAGE",
    "RUNS",
    "SIGNATURE",
    "Look",
    "Witnessed",
    "content_of",
    "hash_file",
    "json_text",
    "list_files",
    "read_manifest",
    "sealed",
]

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
"""Where ``ssh-keygen -Y sign`` leaves the signature of the manifest; it is no file of the package."""
RUNS, _LOGS = "artifacts/runs", "logs/"
"""Where the records of runs on devices lie, numbered."""
REPORT_PAGE = "report.html"
BUILD_FOLDERS = ("artifacts/", _LOGS)
"""Where a build leaves files; the manifest learns of them from ``record_build`` only."""
_LARGEST = 256 << 20


def json_text(value: Any) -> str:
    """JSON as deploykit writes it everywhere: one space of indent, the given key order, UTF-8, no NaN."""
    # Python encodes without indentation five times as fast as with it.
    return msgspec.json.format(json.dumps(value, ensure_ascii=False, allow_nan=False), indent=1) + "\n"


def sealed(manifest: Json) -> tuple[str, str]:
    """The text of a manifest file, its digest last, and that digest: ``sha256:`` and the one of the text without it."""
    text = json_text({key: value for key, value in manifest.items() if key != "digest"})
    digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    before, comma = (text.removesuffix("\n}\n"), ",") if text != "{}\n" else ("{", "")
    return f'{before}{comma}\n "digest": "{digest}"\n}}\n', digest


def content_of(manifest: Json) -> str:
    """The SHA-256 of what a device is given: every file but logs, the records of earlier runs and the page of both."""
    told = (_LOGS, f"{RUNS}/", REPORT_PAGE)
    kept = {path: row["sha256"] for path, row in manifest["files"].items() if not path.startswith(told)}
    return hashlib.sha256(json_text(dict(sorted(kept.items()))).encode()).hexdigest()


def hash_file(path: Path, *, size: int | None = None, follow: bool = True) -> tuple[int, str]:
    """Size and SHA-256 of a regular file of at most ``size`` bytes, read in chunks; raises InputError.

    Without ``follow`` a link is no file.
    """
    with open_regular(path, limit=size, follow=follow) as stream:
        try:
            return copy_hashed(stream)
        except OSError as error:
            raise unreadable(path, error) from None


def list_files(package: Path, *, with_empty: bool = False) -> Names:
    """Every file of a package by its POSIX path, sorted; links are listed, not followed.

    The manifest and its signature are left out. A folder that cannot be looked into is listed with a slash at the end,
    for it may hide any number of files; so are empty ones ``with_empty``.
    """
    found = paths_below(package, with_empty=with_empty)
    return tuple(sorted(path for path in found if path not in (MANIFEST, SIGNATURE)))


def read_manifest(package: Path) -> dict[str, Any]:
    """The manifest of a package folder; raises PackageError when the folder is none or the manifest is damaged."""
    if not package.is_dir():
        raise PackageError(f"{package}: no such package folder", next=_NAME_ONE)
    path = package / MANIFEST
    if not os.path.lexists(path):
        raise PackageError(f"{package}: has no {MANIFEST}", why="it is not a deploykit package", next=_NAME_ONE)
    try:
        data = read_regular(path, limit=_LARGEST, follow=False)
    except DeploykitError as error:
        raise PackageError(error.what, why=error.why, next=_AGAIN) from None
    return parse_manifest(data, where=str(path))


_AGAIN = "make the package again"
_NAME_ONE = "name the folder that 'deploykit package' wrote"


def parse_manifest(data: bytes, *, where: str) -> dict[str, Any]:
    """The manifest in these bytes; PackageError unless they are one of schema 1, unchanged since it was sealed."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{where}: cannot be read", why=str(error), next=_AGAIN) from None
    if not isinstance(manifest, dict) or manifest.get("schema") != 1 or not isinstance(manifest.get("files"), dict):
        raise PackageError(f"{where}: is not a manifest of schema 1", next=_AGAIN)
    try:  # the very bytes that deploykit writes for what they say
        is_sealed = sealed(manifest)[0].encode() == data
    except (ValueError, RecursionError):
        is_sealed = False
    if not is_sealed:
        raise PackageError(f"{where}: was changed", why="its digest is not that of its content", next=_AGAIN)
    problem = _problem(manifest)
    if problem:
        raise PackageError(f"{where}: {problem}", why="deploykit writes no such manifest", next=_AGAIN)
    return manifest


class _ManifestStep(Record):
    """One step of a manifest."""

    id: str
    tool: str
    argv: tuple[str, ...]
    inputs: Names
    outputs: Names


class _File(Record):
    """The record of one file of a manifest."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str
    executable: bool = False
    before: _File | None = None


class _Manifest(Record):
    """What is read of a manifest later, in the shape that it is written in; what else it holds is not asked for."""

    files: dict[str, _File]
    deploykit: str | None = None
    backend: str = ""
    target: Json = field(default_factory=dict)
    sdk: Json = field(default_factory=dict)
    route: Json | None = None
    inputs: list[Any] | None = None
    steps: tuple[_ManifestStep, ...] | None = None
    precision: dict[str, dict[str, str]] | None = None
    executed: Names = ()
    generated: Names = ()
    float_tensors: Names = ()
    record: Json | None = None
    status: Json | None = None
    runs: tuple[dict[str, Any], ...] = ()
    findings: list[Any] | None = None


def _problem(manifest: Json) -> str:
    """What is not of the shape that is read later; "" where all is."""
    try:
        read = msgspec.convert(manifest, _Manifest)
    except (msgspec.ValidationError, RecursionError) as error:
        return f"is not what deploykit writes ({error})"
    for path in read.files:
        pure = PurePosixPath(path)
        inside = bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts and pure.as_posix() == path
        if not inside or path == MANIFEST:
            return f"files.{path} is no file of a package"
    for index, step in enumerate(read.steps or ()):
        # A step without a command is one that deploykit itself executed.
        if not step.argv and step.id not in read.executed:
            return f"steps[{index}] has no command"
    return ""


_LARGE = 16 << 20
# Nanoseconds after which another change would show in the time of the last one, on any disk.
_SETTLED = 2_000_000_000
# The same where times tell more than hundredths of a second: they then step with the system's own clock.
_SETTLED_FINE = 100_000_000
_HUNDREDTH = 10_000_000

_identity = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


class Look(Record):
    """The state of a file before it is read, and whether every change from then on shows in its times."""

    status: os.stat_result
    settled: bool

    @classmethod
    def at(cls, status: os.stat_result) -> Look:
        """A state that was asked for just now.

        To give a file another name, or to take one away, is a change too: its time is that of what was done last.
        """
        least = _SETTLED_FINE if status.st_ctime_ns % _HUNDREDTH else _SETTLED
        age = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)
        return cls(status=status, settled=age > least)


class Witnessed(Record):
    """The sizes and digests of files that were hashed while they were read or written, by their identity."""

    known: dict[tuple[int, ...], tuple[int, str]] = field(default_factory=dict)

    def note_read(self, before: Look, after: os.stat_result, size: int, digest: str, *, linked: bool = False) -> None:
        """A file of somebody else's, which has these states before and after it was read whole.

        One that was ``linked`` in between has a later change time; a write shows in the time of the last one.
        """
        was, is_now = _identity(before.status), _identity(after)
        if before.settled and (was == is_now or (linked and was[:-1] == is_now[:-1])):
            self.note(after, size, digest)

    def note(self, status: os.stat_result, size: int, digest: str) -> None:
        """A file that nobody else writes to, with the state it has now."""
        if size >= _LARGE and status.st_size == size:
            self.known[_identity(status)] = (size, digest)

    def hash(self, path: Path, *, size: int | None = None, follow: bool = True) -> tuple[int, str]:
        """What ``hash_file`` says: remembered for a large file that nobody wrote to since, else read now."""
        try:
            known = self.known.get(_identity(path.stat(follow_symlinks=follow)))
        except OSError:
            known = None
        if known is None or size not in (None, known[0]):
            return hash_file(path, size=size, follow=follow)
        return known
