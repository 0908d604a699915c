"""Rules about the release that answers for a version as typed. Codes VAI001 and VAI002."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit_vitis_ai.tables import Release

__all__ = ["RULES", "Choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The release that was picked for a version as typed ("" for the newest)."""

    requested: str
    release: Release

    @property
    def exact(self) -> bool:
        """True when the release is the one that was asked for, patch releases of its series included."""
        if not self.requested:
            return True
        return Version(self.requested).release[:2] == Version(self.release.version).release[:2]


RULES: Registry[Choice] = Registry("target")


@RULES.rule(
    "VAI001",
    "release-between-tables",
    "warning",
    what="The version that was asked for has no table of its own; the nearest lower one answers for it.",
    why="A release may change what the execution provider accepts; what is said here is known for another one.",
    fix="Compare the release notes of the two versions.",
    sources=["deploykit: the data files of this backend"],
)
def check_exact(choice: Choice) -> Iterable[Found]:
    """A version without a table."""
    if not choice.exact:
        yield Found(
            kind=SubjectKind.SDK,
            name=f"{choice.release.name} {choice.requested}",
            message=f"no table for {choice.release.name} {choice.requested}: that of {choice.release.version} is used",
            evidence={"requested": choice.requested, "table": choice.release.version},
        )


@RULES.rule(
    "VAI002",
    "release-not-established",
    "warning",
    what="Nothing reliable is published about this release.",
    why="Options, passes and the quantizer that belongs to it are taken from what newer releases document.",
    fix="Ask the release's own documentation, or use a newer release.",
    sources=["deploykit: the data files of this backend"],
)
def check_established(choice: Choice) -> Iterable[Found]:
    """A release of which only the name is known."""
    if not choice.release.established:
        yield Found(
            kind=SubjectKind.SDK,
            name=f"{choice.release.name} {choice.release.version}",
            message=f"{choice.release.name} {choice.release.version}: {choice.release.note}",
        )
