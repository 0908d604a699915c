"""Copies an open file and hashes the copy while it grows; blocks are shared where the disk can. It chooses no names."""

from __future__ import annotations

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

__all__ = ["copy_hashed"]

_CHUNK = 1 << 20
_STRETCH = 32 << 20
"""How much is copied before it is hashed: the one goes on while the other does."""

_NOT_HERE = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY)


def copy_hashed(stream: BinaryIO, sink: BinaryIO) -> tuple[int, str]:
    """Copy a file that was just opened; the size in bytes and the SHA-256 of what ``sink`` then holds.

    ``sink`` is an empty file, open for reading too. Raises OSError, also where somebody shortens the copy meanwhile.
    """
    copied, digest, whole = 0, hashlib.sha256(), os.fstat(stream.fileno()).st_size
    with ThreadPoolExecutor(max_workers=1) as beside:
        hashed = []
        # A file that grows meanwhile ends at the size it had when it was opened.
        while length := _copy(stream, sink, min(_STRETCH, whole - copied)):
            hashed.append(beside.submit(_hash, digest, sink.fileno(), copied, copied + length))
            copied += length
    for stretch in hashed:
        stretch.result()
    return copied, digest.hexdigest()


def _copy(stream: BinaryIO, sink: BinaryIO, length: int) -> int:
    """Copy at most so many bytes, inside the system where that can; how many there were."""
    if length and hasattr(os, "copy_file_range"):
        try:
            done = os.copy_file_range(stream.fileno(), sink.fileno(), length)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
        else:
            # Some systems answer 0 for files whose size they do not know: reading decides whether it is the end.
            if done:
                return done
    data = os.read(stream.fileno(), min(length, _CHUNK))
    view = memoryview(data)
    while view:
        view = view[os.write(sink.fileno(), view) :]
    return len(data)


def _hash(digest: hashlib._Hash, file: int, begin: int, end: int) -> None:
    while begin < end:
        chunk = os.pread(file, min(_CHUNK, end - begin), begin)
        if not chunk:
            raise OSError(errno.EIO, "the copy was shortened while it was written")
        digest.update(chunk)
        begin += len(chunk)
