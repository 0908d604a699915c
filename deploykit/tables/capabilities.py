"""What an SDK version can do, as rows read from data files: flags of tools, features, configuration keys.

There is one file per SDK version; it ``extends`` an earlier one and states only differences. What no file lists is
unknown, never guessed. Nothing here knows a vendor.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from packaging.version import Version

from deploykit.findings import Confidence
from deploykit.findings.records import Json, Names, Published, field
from deploykit.tables.sources import NotedRow, SourcedRow

__all__ = [
    "CompatRow",
    "ConfigKey",
    "Feature",
    "Flag",
    "ReleaseChange",
    "SdkTable",
    "Status",
    "compat_row",
    "release_range",
]


class Status(StrEnum):
    """Whether something can be relied on."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class _Row(NotedRow):
    """A row of a release. ``since`` is set by the loader to the version whose file gave the row its present state."""

    since: str = ""


class _Setting(_Row):
    """Something that can be set, on a command line or in a file."""

    status: Status = Status.SUPPORTED
    default: str | None = None
    default_note: str = ""
    values: Names = ()
    lifecycle: Literal["normal", "hidden", "superseded", "deprecated"] = "normal"
    renamed_to: str = ""


class Flag(_Setting):
    """One command-line flag of one tool, as listed for one SDK version.

    ``flags`` holds the spelling to use, or several flags that share the row; ``aliases`` are other spellings. ``kind``:
    ``switch`` takes no value, ``value`` takes one argv entry, ``values`` takes several.
    """

    tool: str
    flags: Names
    meaning: str
    kind: Literal["switch", "value", "values"] = "value"
    aliases: Names = ()
    version_note: str = ""
    present_in: Names = ()
    absent_in: Names = ()


class Feature(_Row):
    """One capability, for one tool and architecture if it depends on them ("" means it does not).

    ``extent`` is set by the loader to the first and last release that the sources cover; it is empty if they are not
    bound to releases. Outside of it the loader lowers the confidence to ``inferred``.
    """

    feature: str
    status: Status
    tool: str = ""
    arch: str = ""
    extent: Names = ()


class ConfigKey(_Setting):
    """One key of a configuration file: its dotted path (``[]`` marks a list), type, range, file and phase."""

    path: str
    type: str
    file: str
    phase: str = ""
    phase_note: str = ""
    unit: str = ""
    range: tuple[int, ...] = ()
    example: str = ""
    python_name: str = ""
    required: bool = False


class ReleaseChange(SourcedRow):
    """One change in a release, in words."""

    text: str


class CompatRow(Published):
    """One answer of ``deploykit compat``, in its published form.

    ``since`` is the first release known to have this state, ``until`` the last ("" if it still applies); both
    are "" if it does not depend on releases. ``sdk`` is a release or, if there is a ``since``, usually the
    ``release_range``: an answer that lists ranges makes new rows for any others. ``family`` names the product
    of the releases. ``lifecycle`` is a word such as ``deprecated``, or "". ``words`` are other spellings that
    find the row, ``renamed_to`` the ``feature`` of the row to use instead. ``ran`` is the release that was
    actually run, if others were inferred from it.
    """

    WITHOUT = ("family", "words", "ran")

    feature: str
    backend: str
    tool: str
    sdk: str
    status: Status
    since: str
    until: str
    note: str
    source: tuple[str, ...]
    confidence: Confidence | None
    arch: str = ""
    contradicts: str = ""
    family: str = ""
    lifecycle: str = ""
    renamed_to: str = ""
    words: Names = ()
    ran: str = ""


def compat_row(
    backend: str, feature: str, row: object, *notes: str, since: str = "", until: str = "", **more: Any
) -> CompatRow:
    """Make a row from a row of a table; ``more`` overrides its source, confidence, status and contradictions."""
    said = {"tool": "", "status": Status.SUPPORTED, "source": (), "sdk": release_range(since, until) if since else ""}
    for name in ("status", "source", "confidence", "contradicts"):
        if hasattr(row, name):
            said[name] = getattr(row, name)
    note = "; ".join(filter(None, notes))
    return CompatRow(backend=backend, feature=feature, note=note, since=since, until=until, **{**said, **more})


class SdkTable(SourcedRow):
    """Everything known about one SDK version, including the rows inherited from earlier versions.

    ``carrier`` names the package in which the release was found if the SDK itself was not seen; the rows of its tools
    are then inherited. ``facts`` holds, by name, what is known about this release alone.
    """

    sdk: str
    version: str
    extends: str
    builds: Names
    flags: tuple[Flag, ...] = ()
    features: tuple[Feature, ...] = ()
    config_keys: tuple[ConfigKey, ...] = ()
    changes: tuple[ReleaseChange, ...] = ()
    carrier: str = ""
    facts: Json = field(default_factory=dict)

    @property
    def parsed(self) -> Version:
        """The version as a comparable object."""
        return Version(self.version)

    def flag(self, tool: str, spelling: str) -> Flag | None:
        """Return the row of one flag of one tool, by any of its spellings, None if it is not listed."""
        rows = (row for row in self.flags if row.tool == tool and spelling in (*row.flags, *row.aliases))
        return next(rows, None)

    def has_flag(self, tool: str, spelling: str) -> bool:
        """Whether the table lists the flag as supported by that tool."""
        row = self.flag(tool, spelling)
        return row is not None and row.status is Status.SUPPORTED

    def tools(self) -> Names:
        """Return the tools with at least one listed flag, in table order."""
        return tuple(dict.fromkeys(row.tool for row in self.flags))

    def feature(self, feature: str, *, tool: str = "", arch: str = "") -> Feature | None:
        """Return the most specific row for a feature, None if unknown.

        The order is: tool and architecture, tool alone, architecture alone, neither.
        """
        for wanted in ((tool, arch), (tool, ""), ("", arch), ("", "")):
            for row in self.features:
                if row.feature == feature and (row.tool, row.arch) == wanted:
                    return row
        return None

    def status(self, feature: str, *, tool: str = "", arch: str = "") -> Status:
        """Return the status of a feature, ``unknown`` if no row lists it."""
        row = self.feature(feature, tool=tool, arch=arch)
        return Status.UNKNOWN if row is None else row.status

    def key(self, path: str) -> ConfigKey | None:
        """Return the row of one configuration key by its dotted path, None if it is not listed."""
        return next((row for row in self.config_keys if row.path == path), None)


def release_range(since: str, until: str) -> str:
    """Return the releases from ``since`` to ``until`` in the notation of pip; ``until`` is "" for an open range."""
    if not until:
        return f">={since}"
    return since if since == until else f">={since},<={until}"
