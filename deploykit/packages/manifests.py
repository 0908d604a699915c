"""The manifest of a package: its records, its digest, and reading it as a stranger's file. It judges no other file.

The digest is the SHA-256 of the manifest as deploykit writes it, without the digest itself. The bytes of the file must
be exactly what deploykit writes for what they say, so no bit of them can change unseen; and whoever kept the digest can
tell a package that was changed and sealed again from the one that was made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from deploykit.errors import DeploykitError, InputError, PackageError
from deploykit.system.files import open_regular, read_regular

__all__ = [
    "BUILD_FOLDERS",
    "MANIFEST",
    "REPORT_PAGE",
    "RUNS",
    "SIGNATURE",
    "FileRecord",
    "content_of",
    "digest_of",
    "hash_file",
    "json_text",
    "list_files",
    "parse_manifest",
    "read_manifest",
    "sealed",
    "sealed_text",
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
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a package: its path, size in bytes, SHA-256, and whether it was ``generated`` or ``executed``."""

    path: str
    bytes: int
    sha256: str
    origin: str
    executable: bool = False

    def to_json(self) -> dict[str, Any]:
        """The entry of the manifest."""
        run = {"executable": True} if self.executable else {}
        return {"bytes": self.bytes, "sha256": self.sha256, "origin": self.origin, **run}


def json_text(value: Any) -> str:
    """JSON as deploykit writes it everywhere: one space of indent, the given key order, UTF-8, no NaN."""
    # Python encodes without indentation five times as fast as with it.
    return msgspec.json.format(json.dumps(value, ensure_ascii=False, allow_nan=False), indent=1) + "\n"


def sealed(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a manifest file, its digest last, and that digest: ``sha256:`` and the one of the text without it."""
    text = json_text({key: value for key, value in manifest.items() if key != "digest"})
    digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    before, comma = (text.removesuffix("\n}\n"), ",") if text != "{}\n" else ("{", "")
    return f'{before}{comma}\n "digest": "{digest}"\n}}\n', digest


def digest_of(manifest: Mapping[str, Any]) -> str:
    """The digest of a manifest; its own ``digest`` is left out."""
    return sealed(manifest)[1]


def content_of(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of what a device is given: every file but logs, the records of earlier runs and the page of both."""
    told = (_LOGS, f"{RUNS}/", REPORT_PAGE)
    kept = {path: row["sha256"] for path, row in manifest["files"].items() if not path.startswith(told)}
    return hashlib.sha256(json_text(dict(sorted(kept.items()))).encode()).hexdigest()


def sealed_text(manifest: Mapping[str, Any]) -> str:
    """The text of a manifest file."""
    return sealed(manifest)[0]


def hash_file(path: Path, *, size: int | None = None, follow: bool = True) -> tuple[int, str]:
    """Size and SHA-256 of a regular file of at most ``size`` bytes, read in chunks; raises InputError.

    Without ``follow`` a link is no file.
    """
    digest, read = hashlib.sha256(), 0
    with open_regular(path, limit=size, follow=follow) as stream:
        left = os.fstat(stream.fileno()).st_size
        try:
            while chunk := stream.read(min(_CHUNK, left - read)):
                digest.update(chunk)
                read += len(chunk)
        except OSError as error:
            raise InputError(f"{path}: cannot be read", why=error.strerror or str(error)) from None
    return read, digest.hexdigest()


def list_files(package: Path, *, with_empty: bool = False) -> tuple[str, ...]:
    """Every file of a package by its POSIX path, sorted; links are listed, not followed.

    The manifest and its signature are left out. A folder that cannot be looked into is listed with a slash at the end;
    so are empty ones ``with_empty``.
    """
    found: list[str] = []
    closed: list[str] = []
    for folder, folders, names in os.walk(package, followlinks=False, onerror=lambda e: closed.append(e.filename)):
        relative = Path(folder).relative_to(package)
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        found += ((relative / name).as_posix() for name in (*names, *linked))
        if with_empty and not folders and not names and relative.parts:
            found.append(f"{relative.as_posix()}/")
    # What lies in them nobody can say; passed over, they would hide any number of files.
    found += (f"{Path(folder).relative_to(package).as_posix()}/" for folder in closed)
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
    if not _is_sealed(data):
        raise PackageError(f"{where}: was changed", why="its digest is not that of its content", next=_AGAIN)
    problem = _problem(manifest)
    if problem:
        raise PackageError(f"{where}: {problem}", why="deploykit writes no such manifest", next=_AGAIN)
    return manifest


@lru_cache(maxsize=4)
def _is_sealed(data: bytes) -> bool:
    """True for the very bytes that deploykit writes for what they say. A package that is replaced is asked thrice."""
    try:
        return sealed_text(json.loads(data)).encode() == data
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _ManifestStep:
    """One step of a manifest."""

    id: str
    tool: str
    argv: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The record of one file of a manifest."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str
    executable: bool = False
    before: _File | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """What is read of a manifest later, in the shape that it is written in; what else it holds is not asked for."""

    files: dict[str, _File]
    deploykit: str | None = None
    backend: str = ""
    target: dict[str, Any] = field(default_factory=dict)
    sdk: dict[str, Any] = field(default_factory=dict)
    route: dict[str, Any] | None = None
    inputs: list[Any] | None = None
    steps: tuple[_ManifestStep, ...] | None = None
    precision: dict[str, dict[str, str]] | None = None
    executed: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    float_tensors: tuple[str, ...] = ()
    record: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    runs: tuple[dict[str, Any], ...] = ()
    findings: list[Any] | None = None


def _problem(manifest: Mapping[str, Any]) -> str:
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
