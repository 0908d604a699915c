"""Reads one entry of what is kept between runs: only a whole one, and only from a folder that is this user's alone.

It is light, for queries that take less time than importing what writes entries would. It writes nothing.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from deploykit.system.platforms import is_own

__all__ = ["cache_folder", "is_off", "is_private", "read_entry", "user_cache", "user_home"]


def cache_folder() -> Path:
    """Where entries live: ``DEPLOYKIT_CACHE``, else deploykit's part of the user's cache folder."""
    given = os.environ.get("DEPLOYKIT_CACHE")
    return Path(given) if given else user_cache() / "deploykit"


def user_cache() -> Path:
    """The user's cache folder (``XDG_CACHE_HOME`` honoured)."""
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else user_home() / ".cache"


def user_home() -> Path:
    """The user's home. Whom the system does not know, as in containers, has none: a place where nothing can be."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def is_off() -> bool:
    """True where ``DEPLOYKIT_NO_CACHE`` says that nothing is to be taken from here, nor left."""
    return os.environ.get("DEPLOYKIT_NO_CACHE", "").lower() not in ("", "0", "false", "no")


def is_private(folder: Path) -> bool:
    """True for a folder of this user's that nobody else may write to; where the system has no such rights, for any."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    shared = os.name != "nt" and bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return stat.S_ISDIR(status.st_mode) and is_own(folder) and not shared


def read_entry(path: Path) -> bytes | None:
    """The content of an entry that is what was written, by nobody else; None where there is none."""
    if is_off() or not is_private(path.parent):
        return None
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest != sha256(data).hexdigest().encode():
        return None
    with suppress(OSError):
        os.utime(path)  # the oldest use goes first
    return data
