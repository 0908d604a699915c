"""Rules about the SDK version as typed: which table answers, how well it is known. Codes QNN001 to QNN009."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.tables.capabilities import SdkTable

__all__ = ["RULES", "SdkChoice", "SdkMatch"]

_CADENCE = "Qualcomm Linux documentation, installation pages: monthly releases"
_OWN = "the tables of this package (backends/deploykit_qualcomm/data/sdks)"
SdkMatch = Literal["exact", "series", "build", "unlisted-build", "lower", "newer", "below"]
"""How a table was found: the version itself, its series, a listed or unlisted build of it, the nearest lower table
between two, the newest for a newer version, the oldest for an older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkChoice:
    """A version as typed, the table that answers for it, and how the two belong together.

    ``uses_tools`` is False for a backend that runs no tool of the SDK, only its libraries.
    """

    request: str
    table: SdkTable
    match: SdkMatch
    uses_tools: bool = True


RULES: Registry[SdkChoice] = Registry("sdk")


def _sdk(choice: SdkChoice, message: str, hint: str = "") -> Found:
    evidence = {"requested": choice.request, "table": choice.table.version, "match": choice.match}
    return Found(kind=SubjectKind.SDK, name=choice.request, message=message, hint=hint, evidence=evidence)


@RULES.rule(
    "QNN001",
    "sdk-nearest-lower",
    "warning",
    what="The SDK version that was asked for has no table; the nearest lower one answers.",
    why="Flags, features and configuration keys may have changed between the two releases.",
    fix="Read the plan with that in mind, or add a data file for the release that states what differs.",
    sources=[_OWN, _CADENCE],
)
def check_nearest_lower(choice: SdkChoice) -> Iterator[Found]:
    """A version between two tables."""
    if choice.match == "lower":
        yield _sdk(choice, f"no table for QAIRT {choice.request}: the one of {choice.table.version} answers")


@RULES.rule(
    "QNN002",
    "sdk-newer-than-tables",
    "warning",
    what="The SDK version that was asked for is newer than every table; the newest one answers.",
    why="What a later release changed is not known here.",
    fix="Read the plan with that in mind, or add a data file for the release that states what differs.",
    sources=[_OWN, _CADENCE],
)
def check_newer(choice: SdkChoice) -> Iterator[Found]:
    """A version beyond the newest table."""
    if choice.match == "newer":
        yield _sdk(choice, f"QAIRT {choice.request} is newer than every table: {choice.table.version} answers")


@RULES.rule(
    "QNN003",
    "sdk-build-not-listed",
    "info",
    what="The release has a table, but this build of it was not met in any source.",
    why="Builds of one release are expected to take the same flags; nobody has shown it for this one.",
    fix="Check the build number with the SDK's own folder name.",
    sources=[_OWN, "naming of QAIRT releases: 2.<minor>.<patch>.<YYMMDD>"],
)
def check_unlisted_build(choice: SdkChoice) -> Iterator[Found]:
    """A build that the table of its release does not list."""
    if choice.match == "unlisted-build":
        known = ", ".join(choice.table.builds) or "none"
        yield _sdk(choice, f"build {choice.request} is not among those met of {choice.table.version} (met: {known})")


@RULES.rule(
    "QNN004",
    "sdk-tools-not-seen",
    "warning",
    what="The release was met only inside another package; its converters and generators were not seen.",
    why="The rows of its tools are those of the release before it.",
    fix="Use a release whose tools are known, or check the flags against the SDK's own help.",
    sources=[_OWN, "onnxruntime-qnn wheels 2.4.0 to 2.7.0, which carry HTP libraries and no converter"],
)
def check_carrier(choice: SdkChoice) -> Iterator[Found]:
    """A release known from a wheel, asked for by a backend that runs its tools."""
    if choice.table.carrier and choice.uses_tools:
        yield _sdk(
            choice,
            f"QAIRT {choice.table.version} was met only inside {choice.table.carrier}: "
            "what its tools take is that of the release before",
        )


@RULES.rule(
    "QNN005",
    "sdk-below-tables",
    "warning",
    what="The SDK version that was asked for is older than every table; the oldest one answers.",
    why="Flags that came later may be used although the old release does not have them.",
    fix="Check every flag of the plan against the old SDK's own help.",
    sources=[_OWN],
)
def check_below(choice: SdkChoice) -> Iterator[Found]:
    """A version older than the oldest table, where the tables declare that a warning."""
    if choice.match == "below":
        yield _sdk(choice, f"QAIRT {choice.request} is older than every table: {choice.table.version} answers")
