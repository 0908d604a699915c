"""What an SDK version can do, as rows read from data files: flags of tools, features, configuration keys.

One file per SDK version; it ``extends`` an earlier one and states only differences. A row that no file has is
unknown, never a guess. Nothing here knows a vendor.
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
    """A row of a release. ``since`` is filled by the loader: the version whose file set the row's present state."""

    confidence_note: str = ""
    since: str = ""


class _Setting(_Row):
    """Something that is set, in a command line or a file."""

    status: Status = Status.SUPPORTED
    default: str | None = None
    default_note: str = ""
    values: tuple[str, ...] = ()
    lifecycle: Literal["normal", "hidden", "superseded", "deprecated"] = "normal"
    renamed_to: str = ""


class Flag(_Setting):
    """One command-line flag of one tool, as the table of one SDK version has it.

    ``flags`` holds the spelling to use, or several flags that share the row; ``aliases`` are other spellings.
    ``kind``: ``switch`` takes no value, ``value`` takes one argv entry, ``values`` takes several.
    """

    tool: str
    flags: tuple[str, ...]
    meaning: str
    kind: Literal["switch", "value", "values"] = "value"
    aliases: Names = ()
    version_note: str = ""
    present_in: tuple[str, ...] = ()
    absent_in: tuple[str, ...] = ()


class Feature(_Row):
    """One capability, for one tool and architecture where it depends on them ("" means it does not).

    ``extent`` is filled by the loader: the first and the last release that the sources speak of; empty when they are
    not bound to releases. Beyond it the loader lowers the confidence to ``inferred``.
    """

    feature: str
    status: Status
    tool: str = ""
    arch: str = ""
    extent: tuple[str, ...] = ()


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
    """One thing that a release changed, in words."""

    text: str


class CompatRow(Published):
    """One answer of ``deploykit compat``, in the published shape.

    ``since`` is the first release that is known to have this state, ``until`` the last ("" for still so); both "" when
    it does not depend on releases. ``sdk`` is a release or, beside a ``since``, best the ``release_range``: an answer
    that lists ranges makes any other row anew. ``family`` names what the releases are releases of. ``lifecycle`` is a
    word such as ``deprecated`` or "". ``words`` are other spellings that find the row, ``renamed_to`` the ``feature``
    of the row to use instead. ``ran`` is the release that was really executed, where it speaks for others by inference.
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
    words: tuple[str, ...] = ()
    ran: str = ""


def compat_row(
    backend: str, feature: str, row: object, *notes: str, since: str = "", until: str = "", **more: Any
) -> CompatRow:
    """What a row of a table says of itself, unless ``more`` says it: source, confidence, status, contradictions."""
    said = {"tool": "", "status": Status.SUPPORTED, "source": (), "sdk": release_range(since, until) if since else ""}
    for name in ("status", "source", "confidence", "contradicts"):
        if hasattr(row, name):
            said[name] = getattr(row, name)
    note = "; ".join(filter(None, notes))
    return CompatRow(backend=backend, feature=feature, note=note, since=since, until=until, **{**said, **more})


class SdkTable(SourcedRow):
    """Everything known about one SDK version, its ancestors' rows included.

    ``carrier`` names the package inside which the release was met when the SDK itself was not seen; then the rows of
    its tools are those of its ancestors. ``facts`` holds what is known about this release alone, by name.
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
        """The version, comparable."""
        return Version(self.version)

    def flag(self, tool: str, spelling: str) -> Flag | None:
        """The row of one flag of one tool, by any of its spellings, or None when no table lists it."""
        rows = (row for row in self.flags if row.tool == tool and spelling in (*row.flags, *row.aliases))
        return next(rows, None)

    def has_flag(self, tool: str, spelling: str) -> bool:
        """True when the table lists the flag as usable for that tool."""
        row = self.flag(tool, spelling)
        return row is not None and row.status is Status.SUPPORTED

    def tools(self) -> Names:
        """The tools for which at least one flag is listed, in table order."""
        return tuple(dict.fromkeys(row.tool for row in self.flags))

    def feature(self, feature: str, *, tool: str = "", arch: str = "") -> Feature | None:
        """The most specific row for a feature: tool and arch, then tool, then arch, then neither; None = unknown."""
        for wanted in ((tool, arch), (tool, ""), ("", arch), ("", "")):
            for row in self.features:
                if row.feature == feature and (row.tool, row.arch) == wanted:
                    return row
        return None

    def status(self, feature: str, *, tool: str = "", arch: str = "") -> Status:
        """The status of a feature; unknown when no row speaks of it."""
        row = self.feature(feature, tool=tool, arch=arch)
        return Status.UNKNOWN if row is None else row.status

    def key(self, path: str) -> ConfigKey | None:
        """The row of one configuration key by its dotted path."""
        return next((row for row in self.config_keys if row.path == path), None)


def release_range(since: str, until: str) -> str:
    """The releases from ``since`` to ``until`` in words that package indexes use; ``until`` is "" for still so."""
    if not until:
        return f">={since}"
    return since if since == until else f">={since},<={until}"
