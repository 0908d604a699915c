"""How much memory this process may use: what was asked for, else a share of what the machine and its groups leave free.

It measures and reads words; nothing is allocated and nothing is bounded here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploykit.errors import UsageError

__all__ = ["VARIABLE", "free_memory", "memory_budget", "read_size", "with_memory"]

VARIABLE = "DEPLOYKIT_MEMORY"
"""The environment variable that states the budget: processes started by this one obey it too."""

_SHARE = 0.6
_UNKNOWN = 4 << 30
"""What counts as free where the system does not say."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def read_size(text: str) -> int:
    """The bytes of ``3G``, ``512M`` or ``1.5GiB``; powers of 1024. Raises UsageError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * 1024 ** _POWERS[found[2].upper()]) if found else 0
    if size <= 0:
        raise UsageError(f"{text!r} is no amount of memory", next="give bytes, or a number with K, M, G or T: 3G")
    return size


def memory_budget() -> int:
    """The bytes that simulations may take: ``DEPLOYKIT_MEMORY`` (``--memory``), else 60 % of what is free now."""
    said = os.environ.get(VARIABLE)
    return read_size(said) if said else int(_SHARE * free_memory())


@contextmanager
def with_memory(size: str | None) -> Iterator[None]:
    """State the budget for what is done inside, in this process and those it starts; None changes nothing."""
    before = os.environ.get(VARIABLE)
    if size is None:
        yield
        return
    read_size(size)
    os.environ[VARIABLE] = size
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that could be had now without swapping, in the machine and in every control group around this process."""
    known = [*_of_machine(root / "proc/meminfo"), *_of_groups(root)]
    return max(0, min(known, default=_UNKNOWN))


def _of_machine(table: Path) -> Iterator[int]:
    for line in _text(table).splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """What each group's limit leaves; caches of files count as free, since the kernel gives them up first."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        newer = not controllers
        if not newer and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if newer else "memory")
        limit, used = ("memory.max", "memory.current") if newer else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        here = top / path.lstrip("/")
        for group in (here, *here.parents):
            if not group.is_relative_to(top):
                break
            most, taken = _text(group / limit).strip(), _text(group / used).strip()
            if most.isdigit() and taken.isdigit():
                yield int(most) - int(taken) + _cached(group / "memory.stat", newer=newer)


def _cached(table: Path, *, newer: bool) -> int:
    key = "inactive_file" if newer else "total_inactive_file"
    found = [line.split()[1] for line in _text(table).splitlines() if line.startswith(key + " ")]
    return int(found[0]) if found and found[0].isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeError):
        return ""
