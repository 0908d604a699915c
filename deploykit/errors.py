"""Every error that deploykit raises deliberately, with its exit status. It knows no commands or vendors.

    DeploykitError
    ├── UsageError           2  the request itself is not valid
    ├── InputError           3  a file that is unreadable, malformed or hostile
    ├── UnknownTargetError   4  no such device, SDK version or capability table
    ├── ToolError            5  a vendor tool, or the environment it needs, failed
    ├── PackageError         6  the package could not be written, or is damaged
    └── DefectError         70  deploykit contradicts itself: always a bug

A "no" about a model is not an exception: it is a finding of level error, with exit status 1.
"""

from __future__ import annotations

__all__ = [
    "DefectError",
    "DeploykitError",
    "InputError",
    "PackageError",
    "ToolError",
    "UnknownTargetError",
    "UsageError",
]


class DeploykitError(Exception):
    """Says what is wrong, why, and what to do next, and carries the exit status.

    ``what`` names the file and the wrong entry; ``why`` and ``next`` are "" if ``what`` is enough.
    """

    exit_status = 70

    def __init__(self, what: str, *, why: str = "", next: str = "") -> None:  # noqa: A002 (as in the message)
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next

    def __str__(self) -> str:
        # A name from a file may contain line breaks, which must not look like our own lines.
        lines = [self.what.replace("\n", "\\n")]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.next:
            lines.append(f"  next: {self.next}")
        return "\n".join(lines)


class UsageError(DeploykitError):
    """The request is not valid: contradictory options, an unknown option key, a value out of range."""

    exit_status = 2


class InputError(DeploykitError):
    """An input file is missing, unreadable, malformed or hostile."""

    exit_status = 3


class UnknownTargetError(DeploykitError):
    """The device, the SDK version or the capability table is not known."""

    exit_status = 4


class ToolError(DeploykitError):
    """A vendor tool failed, or the environment it needs is missing."""

    exit_status = 5


class PackageError(DeploykitError):
    """The package could not be written, or what is on disk is damaged."""

    exit_status = 6


class DefectError(DeploykitError):
    """deploykit contradicts itself, for instance by rendering a flag its own table does not list."""

    exit_status = 70
