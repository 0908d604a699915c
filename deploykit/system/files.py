"""Opens files that somebody else wrote, copies them, and writes result files whole or not at all. It knows no format.

A pipe, a device or a folder under the name of a file is refused before it is opened, so that nothing waits on it or
reads it without end; a file that grows while it is read ends at the size it had when it was opened.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from deploykit.errors import InputError, PackageError

__all__ = [
    "copy_hashed",
    "open_regular",
    "paths_below",
    "read_regular",
    "regular_size",
    "unreadable",
    "unwritable",
    "with_folder",
    "write_files",
]

# Without waiting for the other end of a pipe, should the name have become one since it was looked at.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
# Small enough for memory that is at hand: more is asked of the system anew for each piece.
_CHUNK = 1 << 17
_DEEPEST = 500  # levels of folders: a thousand cannot be removed again by Python's own means


def open_regular(
    path: Path, *, size: int | None = None, limit: int | None = None, follow: bool = True
) -> BufferedReader:
    """A regular file, opened for reading. Raises InputError for anything else.

    ``size`` is what it must have in bytes, ``limit`` the most it may have. Without ``follow`` a link is refused, even
    one that came between a look and this call.
    """
    try:
        # Opening a device can already do something, so the name is asked first and the open file once more.
        _check(path, path.stat(follow_symlinks=follow), size, limit)
        descriptor = os.open(path, _FLAGS | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:  # a name with a NUL in it
        raise InputError(f"{str(path)!r}: no file name", why=str(error)) from None
    try:
        _check(path, os.fstat(descriptor), size, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, *, size: int | None = None, limit: int | None = None, follow: bool = True) -> bytes:
    """The bytes of one regular file, as many as it had when it was opened; see ``open_regular``."""
    with open_regular(path, size=size, limit=limit, follow=follow) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)
        except OSError as error:
            raise unreadable(path, error) from None


def regular_size(path: Path) -> int:
    """The size in bytes of a regular file, which is not opened; InputError for anything else."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    _check(path, status, None, None)
    return status.st_size


def paths_below(folder: Path, *, with_empty: bool = False) -> Iterator[str]:
    """Every file below a folder by its POSIX path from there; links are given, not followed.

    A folder that cannot be looked into is given with a slash at the end, and so are empty ones ``with_empty``; one that
    lies too deep is given as a file is.
    """
    todo = [""]
    for start in todo:  # it grows meanwhile: a call in a call for each level would end at a thousand
        try:
            entries = sorted(os.scandir(folder / start), key=lambda entry: entry.name)
        except OSError:
            yield start or "./"
            continue
        if with_empty and start and not entries:
            yield start
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and start.count("/") < _DEEPEST:
                todo.append(f"{start}{entry.name}/")
            else:
                yield f"{start}{entry.name}"


def _check(path: Path, status: os.stat_result, size: int | None, limit: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path}: is a folder, not a file", next="name the file in it")
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.filemode(status.st_mode)[0], "of a kind that is not read")
        raise InputError(f"{path}: is not a regular file", why=f"it is {kind}")
    if size is not None and status.st_size != size:
        raise InputError(f"{path}: has {status.st_size:,} bytes, not {size:,}")
    if limit is not None and status.st_size > limit:
        raise InputError(f"{path}: has {status.st_size:,} bytes, more than the {limit:,} that are read")


_KINDS = {"p": "a pipe", "s": "a socket", "c": "a device", "b": "a disk", "l": "a link"}


def unreadable(path: Path, error: OSError) -> InputError:
    """What to say of a file that the system does not let be read, or that is not there."""
    if isinstance(error, FileNotFoundError):
        from difflib import get_close_matches  # on use: an answer that is right needs no such guess

        try:
            near = get_close_matches(path.name, [other.name for other in path.parent.iterdir()], n=2)
        except OSError:
            return InputError(
                f"{path}: no such file",
                why=f"there is no folder {path.parent}",
                next="download it first: an address is no file" if ":/" in str(path) else "",
            )
        meant = " or ".join(str(path.with_name(name)) for name in near)
        return InputError(f"{path}: no such file", next=f"did you mean {meant}?" if near else "check the path")
    return InputError(f"{path}: cannot be read", why=error.strerror or str(error))


def copy_hashed(stream: BinaryIO, sink: BinaryIO | None = None) -> tuple[int, str]:
    """Copy a file that was just opened, if anywhere; its size in bytes and its SHA-256. Raises OSError.

    A file that grows meanwhile ends at the size it had when it was opened.
    """
    copied, digest, left = 0, hashlib.sha256(), os.fstat(stream.fileno()).st_size
    while chunk := stream.read(min(_CHUNK, left)):
        if sink is not None:
            sink.write(chunk)
        digest.update(chunk)
        copied, left = copied + len(chunk), left - len(chunk)
    return copied, digest.hexdigest()


def write_files(files: Mapping[Path, str], *, force: bool) -> None:
    """Write texts in UTF-8; every file is complete or was not touched. Raises PackageError.

    Files that exist are kept unless ``force``; then nothing at all is written.
    """
    for path in files:
        if path.is_dir():
            raise PackageError(f"{path}: is a folder", next="name a file")
        if path.exists() and not force:
            raise PackageError(f"{path}: exists and was kept", next="name another file, or replace it with --force")
    written = {path: path.with_name(f".{path.name}.{secrets.token_hex(8)}") for path in files}
    try:
        for path, beside in written.items():
            with beside.open("x", encoding="utf-8", newline="\n") as file:
                file.write(files[path])
        for path, beside in written.items():
            beside.replace(path)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        _remove(written.values())


def unwritable(path: Path, error: OSError, advice: str = "") -> PackageError:
    """What to say of a file or folder that the system does not let be written."""
    return PackageError(f"{path}: cannot be written", why=error.strerror or str(error), next=advice)


def with_folder(path: Path) -> Path:
    """The path of a file to be written, whose folder is there from now on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _remove(paths: Iterable[Path]) -> None:
    """Remove what is still there, also when the one signal that a command takes comes in the middle of it."""
    try:
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
