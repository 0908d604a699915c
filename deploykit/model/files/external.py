"""Decides which files hold a model's external data; everything is checked by path and size before anything is opened.

The file that a tensor points to must lie in the model's own folder. This module opens no file at all.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath

from deploykit.errors import InputError
from deploykit.model.files.tensors import StoredTensor, byte_size
from deploykit.system.files import regular_size

__all__ = ["MAPPED", "Claim", "ExternalFile", "claim_of", "locate_external"]

MAPPED = "deploykit.mapped"
"""The entry by which a tensor in memory names the file that was located for it; no file may hold it."""

_FORBIDDEN = "a model may only use files in its own folder, or it could read anything on this machine"
_SHARED, _SMALL = 4, 256 << 20
"""How many times over the bytes of a file may be claimed, beyond an amount that needs no question."""
_KEEP_BESIDE = "put the real file into the model's folder and point 'location' to it by its bare name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one tensor claims of an external file: ``length`` bytes from byte ``offset`` on."""

    tensor: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalFile:
    """One external data file: ``location`` as written in the model, ``path`` the resolved file, ``size`` in bytes."""

    location: str
    path: Path
    size: int
    claims: tuple[Claim, ...] = ()


def locate_external(path: Path, tensors: Iterable[StoredTensor]) -> tuple[ExternalFile, ...]:
    """The external files of the model at ``path``, in the order met, with what is claimed of each.

    Raises InputError, naming model, tensor and file, for a location that leaves the folder, a file that is missing or
    no regular file, and data that is shorter than claimed. All locations are judged before any file is looked at.
    """
    users: dict[str, list[StoredTensor]] = {}
    located: dict[str, Path] = {}
    for stored in tensors:
        entries = _entries(path, stored)
        location = entries.get("location", "")
        _check_location(path, stored, location)
        users.setdefault(location, []).append(stored)
        if MAPPED in entries:
            located[location] = Path(entries[MAPPED])
    # The folder is followed, the model itself is not: data lies beside the name by which the model is known.
    folder = path.parent.resolve()
    files = [
        _resolve(path, folder, location, claimants[0])
        if location not in located
        else ExternalFile(location=location, path=located[location], size=regular_size(located[location]))
        for location, claimants in users.items()
    ]
    return tuple(_measure(path, file, users[file.location]) for file in files)


def claim_of(path: Path, stored: StoredTensor, size: int) -> Claim:
    """Which bytes of a file of ``size`` bytes a tensor claims; InputError where they are not there."""
    entries = _entries(path, stored)
    where = f"{path}: {stored.where}"
    location, needed = entries.get("location", ""), byte_size(stored.proto, where)
    offset = _number(entries, "offset", where, default=0)
    length = _number(entries, "length", where, default=needed)
    if length != needed:
        raise InputError(
            f"{where}: claims {length:,} bytes of {location!r}, but its type and dimensions need {needed:,}",
            why="the model is damaged, or was written wrongly",
            next="export the model again",
        )
    if offset + length > size:
        raise InputError(
            f"{where}: needs bytes {offset:,} to {offset + length:,} of {location!r}, which has only {size:,}",
            why="the external data file is shorter than the model claims",
            next="copy the file again, completely; it belongs to exactly this model",
        )
    return Claim(tensor=stored.proto.name, offset=offset, length=length)


def _entries(path: Path, stored: StoredTensor) -> Mapping[str, str]:
    entries = {entry.key: entry.value for entry in stored.proto.external_data}
    if any(not isinstance(text, str) for pair in entries.items() for text in pair):
        raise InputError(f"{path}: {stored.where}: its external data entries are not valid text")
    return entries


def _number(entries: Mapping[str, str], key: str, where: str, *, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InputError(f"{where}: the {key} {text[:40]!r} of its external data is not a number of bytes")
    return int(text)


def _check_location(path: Path, stored: StoredTensor, location: str) -> None:
    """Refuse what leaves the folder by its spelling alone, in the notation of any system."""
    where = f"{path}: {stored.where}"
    if not location:
        raise InputError(f"{where}: its data is external, but no location is given", next="export the model again")
    if len(location) > 4096 or any(ord(letter) < 32 for letter in location):
        raise InputError(f"{where}: its external data has the location {location[:80]!r}, which is no file name")
    windows = PureWindowsPath(location)
    if PurePosixPath(location).is_absolute() or windows.drive or windows.root:
        raise InputError(
            f"{where}: its external data {location[:200]!r} is an absolute path", why=_FORBIDDEN, next=_KEEP_BESIDE
        )
    if ".." in windows.parts:
        raise InputError(
            f"{where}: its external data {location[:200]!r} leaves the model's folder",
            why=_FORBIDDEN,
            next=_KEEP_BESIDE,
        )


def _resolve(path: Path, folder: Path, location: str, stored: StoredTensor) -> ExternalFile:
    """Follow symbolic links without opening anything; the end must be a regular file in the folder."""
    where = f"{path}: {stored.where}"
    try:
        target = (folder / location).resolve()
    except (OSError, RuntimeError, UnicodeError) as error:
        raise InputError(f"{where}: its external data {location!r} cannot be followed", why=str(error)) from None
    if not target.is_relative_to(folder):
        raise InputError(
            f"{where}: its external data {location!r} leaves the model's folder through a symbolic link",
            why=_FORBIDDEN,
            next="replace the link by the real file",
        )
    if target == folder / path.name:
        raise InputError(
            f"{where}: its external data {location!r} is the model itself",
            why="no exporter writes that; the bytes of a graph are no weights",
            next="export the model again",
        )
    try:
        status = target.stat()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise InputError(
            f"{where}: its external data {location!r} {'is missing' if missing else 'cannot be reached'}",
            why=f"{folder / location}: {error.strerror or error}",
            next="copy the file beside the model; it was written together with it",
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{where}: its external data {location!r} is not a regular file", next=_KEEP_BESIDE)
    return ExternalFile(location=location, path=target, size=status.st_size)


def _measure(path: Path, file: ExternalFile, users: Iterable[StoredTensor]) -> ExternalFile:
    claims = tuple(claim_of(path, stored, file.size) for stored in users)
    claimed = sum(claim.length for claim in claims)
    if claimed > _SHARED * file.size + _SMALL:
        raise InputError(
            f"{path}: {len(claims):,} tensors claim {claimed:,} bytes of {file.location!r}, which has {file.size:,}",
            why="a few tensors may share their data; these would fill any memory from a small file",
            next="export the model again",
        )
    return replace(file, claims=claims)
