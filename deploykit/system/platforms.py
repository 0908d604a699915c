"""What POSIX and Windows do in different ways: waiting for a program, ending its children, locking, a venv's layout.

Only here are modules and functions used that one of the two lacks. It starts no program but Windows' own ``taskkill``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

__all__ = [
    "can_end_with",
    "end_group",
    "end_tree",
    "end_with",
    "fork",
    "has_groups",
    "hold",
    "is_own",
    "on_disk",
    "python_of",
    "reap",
    "shell_script",
    "sites_of",
]

_LOCKED_BYTES = 1
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def reap(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """Wait for a program: its status, and the most memory it had in MiB, None where the system does not tell."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # Kilobytes on Linux, bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return process.returncode, usage.ru_maxrss / unit


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a program that leads a session of its own, with its children; one that has ended is no trouble."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    words = ("taskkill", "/T", "/F", "/PID", str(process.pid))
    import subprocess

    with contextlib.suppress(OSError):
        subprocess.run(words, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    process.kill()


def can_end_with() -> bool:
    """Whether this process can be forked, and the child be ended by the system when its parent dies: on Linux."""
    return sys.platform.startswith("linux") and hasattr(os, "fork")


def fork() -> int | None:
    """``os.fork``; None where the user may have no more processes."""
    try:
        return os.fork()
    except OSError:
        return None


def end_with(parent: int) -> None:
    """Have the system end this process when its parent dies, however that happens; it ends now where that is so."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def has_groups() -> bool:
    """Whether programs can be started as a group and ended as one."""
    return hasattr(os, "killpg")


def end_group(group: int, *, at_once: bool = True) -> None:
    """End all programs of a group, or ask them to end; a group that is gone is no trouble."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL if at_once else signal.SIGTERM)


@contextlib.contextmanager
def hold(file: IO[Any], *, shared: bool) -> Iterator[None]:
    """Hold a lock on an open file; the system frees it when the process ends, however that happens.

    Raises BlockingIOError while another process holds it. Windows has no shared locks of this kind: a shared one is
    given back at once.
    """
    if fcntl is None:
        with _hold_on_windows(file, shared=shared):
            yield
        return
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    yield


@contextlib.contextmanager
def _hold_on_windows(file: IO[Any], *, shared: bool) -> Iterator[None]:
    windows: Any = msvcrt  # its functions are known to the type checker on Windows only
    try:
        windows.locking(file.fileno(), windows.LK_NBLCK, _LOCKED_BYTES)
    except OSError as error:
        raise BlockingIOError(error.errno, "locked by another process") from None
    try:
        if shared:
            windows.locking(file.fileno(), windows.LK_UNLCK, _LOCKED_BYTES)
        yield
    finally:
        if not shared:
            windows.locking(file.fileno(), windows.LK_UNLCK, _LOCKED_BYTES)


def python_of(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "Scripts" / "python.exe" if os.name == "nt" else venv / "bin" / "python"


def sites_of(venv: Path) -> tuple[Path, ...]:
    """Where a virtual environment keeps its packages."""
    if os.name == "nt":
        return (venv / "Lib" / "site-packages",)
    return tuple((venv / "lib").glob("python3*/site-packages"))


def is_own(path: Path) -> bool:
    """Whether a file or folder belongs to whoever runs this; True where the system does not tell."""
    return not hasattr(os, "getuid") or path.lstat().st_uid == os.getuid()


def on_disk(status: os.stat_result) -> int:
    """The bytes that a file takes: its blocks, or its size where the system does not count blocks."""
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * 512


def shell_script(folder: Path, path: str) -> tuple[str, ...]:
    """How a script of a folder is run in it, by its path without an ending; on Windows a ``.ps1`` comes first."""
    if os.name == "nt" and (folder / f"{path}.ps1").is_file():
        return ("powershell", "-NoProfile", "-ExecutionPolicy", "Bypass", "-File", f"{path}.ps1")
    return ("bash", f"{path}.sh")
