"""The manifest of a package: its records, its digest, and reading it as untrusted input. It judges no other file.

The digest is the SHA-256 of the manifest as deploykit writes it, without the digest itself. The file's bytes must be
exactly what deploykit writes for that content, so no bit can change unnoticed; whoever kept the digest can detect a
package that was changed and sealed again.

The hashes of large files are remembered as long as the system shows that nobody wrote to them: four gigabytes are read
once while a package is made, and not again for the list of inputs or the check of the written files.
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
    "HashMemory",
    "Look",
    "content_of",
    "hash_file",
    "json_text",
    "list_files",
    "read_manifest",
    "sealed",
]

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
"""The path for the signature that ``ssh-keygen -Y sign`` writes; it is not a file of the package."""
RUNS, _LOGS = "artifacts/runs", "logs/"
"""The folder for the numbered records of runs on devices."""
REPORT_PAGE = "report.html"
BUILD_FOLDERS = ("artifacts/", _LOGS)
"""The folders for a build's files, which only ``record_build`` adds to the manifest."""
_LARGEST = 256 << 20


def json_text(value: Any) -> str:
    """Format JSON as deploykit writes it everywhere: indent of one space, keys in the given order, UTF-8, no NaN."""
    # Python encodes five times faster without indentation than with it.
    return msgspec.json.format(json.dumps(value, ensure_ascii=False, allow_nan=False), indent=1) + "\n"


def sealed(manifest: Json) -> tuple[str, str]:
    """Return the text of a manifest file with its digest, and the digest: ``sha256:`` and the hash of the rest."""
    text = json_text({key: value for key, value in manifest.items() if key != "digest"})
    digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    before, comma = (text.removesuffix("\n}\n"), ",") if text != "{}\n" else ("{", "")
    return f'{before}{comma}\n "digest": "{digest}"\n}}\n', digest


def content_of(manifest: Json) -> str:
    """Return the SHA-256 of what a device receives: every file except logs, run records and the report page."""
    told = (_LOGS, f"{RUNS}/", REPORT_PAGE)
    kept = {path: row["sha256"] for path, row in manifest["files"].items() if not path.startswith(told)}
    return hashlib.sha256(json_text(dict(sorted(kept.items()))).encode()).hexdigest()


def hash_file(path: Path, *, size: int | None = None, follow: bool = True) -> tuple[int, str]:
    """Return the size and SHA-256 of a regular file, read in chunks.

    Raises InputError, also for a file above ``size`` bytes (None for no limit). Without ``follow`` links are refused.
    """
    with open_regular(path, limit=size, follow=follow) as stream:
        try:
            return copy_hashed(stream)
        except OSError as error:
            raise unreadable(path, error) from None


def list_files(package: Path, *, with_empty: bool = False) -> Names:
    """Return the POSIX paths of all files of a package, sorted; links are listed, not followed.

    The manifest and its signature are left out. A folder that cannot be opened is listed with a trailing slash, since
    it may hide any number of files; so are empty folders if ``with_empty``.
    """
    found = paths_below(package, with_empty=with_empty)
    return tuple(sorted(path for path in found if path not in (MANIFEST, SIGNATURE)))


def read_manifest(package: Path) -> dict[str, Any]:
    """Read the manifest of a package folder. Raises PackageError if there is no package or the manifest is damaged."""
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
    """Parse a manifest. Raises PackageError unless it has schema 1 and is unchanged since it was sealed."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{where}: cannot be read", why=str(error), next=_AGAIN) from None
    if not isinstance(manifest, dict) or manifest.get("schema") != 1 or not isinstance(manifest.get("files"), dict):
        raise PackageError(f"{where}: is not a manifest of schema 1", next=_AGAIN)
    try:  # compare with the bytes that deploykit would write for this content
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
    """The fields of a manifest that are read later, in the format in which they are written; others are ignored."""

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
    """Describe the first part that has an unexpected format; "" if there is none."""
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
        # A step without a command was executed by deploykit itself.
        if not step.argv and step.id not in read.executed:
            return f"steps[{index}] has no command"
    return ""


_LARGE = 16 << 20
# Nanoseconds after which another change is sure to alter the file's time, on any disk.
_SETTLED = 2_000_000_000
# The same for times finer than hundredths of a second, which advance with the system's own clock.
_SETTLED_FINE = 100_000_000
_HUNDREDTH = 10_000_000

_identity = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


class Look(Record):
    """The state of a file before it is read, and whether every later change will show in its times."""

    status: os.stat_result
    settled: bool

    @classmethod
    def at(cls, status: os.stat_result) -> Look:
        """Make a look from a status that was queried just now.

        Renaming or deleting a link of the file also counts as a change: it sets the time of the last change.
        """
        least = _SETTLED_FINE if status.st_ctime_ns % _HUNDREDTH else _SETTLED
        age = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)
        return cls(status=status, settled=age > least)


class HashMemory(Record):
    """The sizes and digests of files that were hashed while being read or written, by their identity."""

    known: dict[tuple[int, ...], tuple[int, str]] = field(default_factory=dict)

    def note_read(self, before: Look, after: os.stat_result, size: int, digest: str, *, linked: bool = False) -> None:
        """Record a file owned by others, with its states before and after it was read completely.

        If the file was ``linked`` in between, its change time is later; a write would show in the modification time.
        """
        was, is_now = _identity(before.status), _identity(after)
        if before.settled and (was == is_now or (linked and was[:-1] == is_now[:-1])):
            self.note(after, size, digest)

    def note(self, status: os.stat_result, size: int, digest: str) -> None:
        """Record a file that nobody else writes to, in its current state."""
        if size >= _LARGE and status.st_size == size:
            self.known[_identity(status)] = (size, digest)

    def hash(self, path: Path, *, size: int | None = None, follow: bool = True) -> tuple[int, str]:
        """Return what ``hash_file`` returns, remembered if the file is large and unchanged, else computed now."""
        try:
            known = self.known.get(_identity(path.stat(follow_symlinks=follow)))
        except OSError:
            known = None
        if known is None or size not in (None, known[0]):
            return hash_file(path, size=size, follow=follow)
        return known
