"""Opens and copies untrusted files, and writes result files completely or not at all. It knows no format.

A pipe, device or folder in place of a file is refused before it is opened, so that reading never blocks or never ends;
a file that grows while it is read ends at its size when opened.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BufferedIOBase, BufferedReader
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

# Does not block on a pipe, in case the path has become one since it was checked.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
# Linux keeps what is written at once in one block of memory, and looks long for larger ones while others work.
_CHUNK = 1 << 15
_DEEPEST = 500  # levels of folders: Python's own functions cannot remove a thousand


def open_regular(
    path: Path, *, size: int | None = None, limit: int | None = None, follow: bool = True
) -> BufferedReader:
    """Open a regular file for reading. Raises InputError for anything else.

    ``size`` is the required size in bytes, ``limit`` the largest allowed one; None means any. Without ``follow`` a link
    is refused, even one that was created after a check.
    """
    try:
        # Opening a device can have effects, so check the path first and the open file again.
        _check(path, path.stat(follow_symlinks=follow), size, limit)
        descriptor = os.open(path, _FLAGS | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:  # a name that contains NUL
        raise InputError(f"{str(path)!r}: no file name", why=str(error)) from None
    try:
        _check(path, os.fstat(descriptor), size, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, *, size: int | None = None, limit: int | None = None, follow: bool = True) -> bytes:
    """Read the bytes of a regular file, up to its size when it was opened; see ``open_regular``."""
    with open_regular(path, size=size, limit=limit, follow=follow) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)
        except OSError as error:
            raise unreadable(path, error) from None


def regular_size(path: Path) -> int:
    """Return the size in bytes of a regular file without opening it. Raises InputError for anything else."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    _check(path, status, None, None)
    return status.st_size


def paths_below(folder: Path, *, with_empty: bool = False) -> Iterator[str]:
    """Yield the POSIX path, relative to the folder, of every file below it; links are listed, not followed.

    A folder that cannot be opened is listed with a trailing slash, and so are empty ones if ``with_empty``. Folders
    that are nested too deeply are listed like files.
    """
    todo = [""]
    for start in todo:  # grows during the loop: recursion would fail at a thousand levels
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
    """Return the error for a file that cannot be read or does not exist."""
    if isinstance(error, FileNotFoundError):
        from difflib import get_close_matches  # imported only on failure

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


def copy_hashed(stream: BufferedIOBase, sink: BinaryIO | None = None) -> tuple[int, str]:
    """Copy a newly opened file to ``sink``, if any; return its size in bytes and its SHA-256. Raises OSError.

    A file that grows meanwhile ends at its size when opened.
    """
    copied, digest, size = 0, hashlib.sha256(), os.fstat(stream.fileno()).st_size
    room = memoryview(bytearray(_CHUNK))
    while got := stream.readinto(room[: size - copied]):
        if sink is not None:
            sink.write(room[:got])
        digest.update(room[:got])
        copied += got
    return copied, digest.hexdigest()


def write_files(files: Mapping[Path, str], *, force: bool) -> None:
    """Write texts in UTF-8; each file is written completely or not at all. Raises PackageError.

    If a file exists and ``force`` is not set, nothing is written.
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
    """Return the error for a file or folder that cannot be written."""
    return PackageError(f"{path}: cannot be written", why=error.strerror or str(error), next=advice)


def with_folder(path: Path) -> Path:
    """Return the path of a file to be written, after making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _remove(paths: Iterable[Path]) -> None:
    """Remove files that still exist, even if a signal arrives in the middle."""
    try:
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
