"""Describes a toolchain as values; it looks at no environment on disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploykit.errors import UnknownTargetError, UsageError
from deploykit.findings import Confidence
from deploykit.findings.records import Names, Record

__all__ = ["Need", "Stage", "ToolchainSpec", "select"]

_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_SAFE_HASHES = frozenset("0123456789abcdef")


class Stage(Record):
    """One step of an installation: packages for pip, or Python arguments to run inside the environment.

    ``prefer_index`` is an index that is tried first, without dependencies, and skipped if it cannot be reached: for
    packages whose usual index carries a much larger build. ``lock`` is a file of pins with hashes, in the folder of the
    backend's own files, for the Pythons of ``lock_python`` on Linux x86-64: with it nothing else is installed, and
    ``else_index`` is used for what the usual index lacks. Stages may share a lock, and the first of them installs
    everything in it. In ``run``, ``{root}`` is replaced by the environment's folder, ``{files}`` by the folder of the
    backend's own files, and the name of a need by the path of its program. ``inputs`` are paths in that folder: if one
    of them changes, the stage runs again. ``hashes`` are the SHA-256 of every allowed file of the stage's only package,
    which is then installed without its dependencies.
    """

    id: str
    packages: Names = ()
    prefer_index: str = ""
    lock: str = ""
    lock_python: tuple[str, ...] = ()
    else_index: str = ""
    run: tuple[str, ...] = ()
    inputs: Names = ()
    note: str = ""
    hashes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.hashes and (len(self.packages) != 1 or not _SAFE_HASHES.issuperset("".join(self.hashes))):
            raise ValueError(f"stage {self.id}: hashes are lower-case hexadecimal and belong to exactly one package")


class Need(Record):
    """A system program that a toolchain runs: names on the PATH or full paths, of which the first one found is used."""

    name: str
    programs: Names
    install: str
    note: str = ""

    def find(self, which: Callable[[str], str | None] = shutil.which) -> str | None:
        """Return the path of the program, None if it is not installed."""
        return next(filter(None, map(which, self.programs)), None)


class ToolchainSpec(Record):
    """One version of one tool and the pins that it is known to work with.

    ``constraints`` are pins for everything that is installed; ``environment`` are variables for every program that runs
    inside, in which ``{root}`` is the environment's folder. ``verified`` says where it was actually tried. ``files`` is
    the folder of the backend's own files for the stages; ``licence`` names the terms of what is downloaded.
    """

    schema: int
    name: str
    version: str
    summary: str
    python: str
    disk_mb: int
    minutes: int
    stages: tuple[Stage, ...]
    source: tuple[str, ...]
    confidence: Confidence
    constraints: Names = ()
    needs_cxx: bool = False
    environment: Mapping[str, str] = {}
    verified: str = ""
    note: str = ""
    licence: str = ""
    needs: tuple[Need, ...] = ()
    files: str = ""
    backend: str = ""

    def __post_init__(self) -> None:
        if not _SAFE_NAME.fullmatch(self.name) or not _SAFE_NAME.fullmatch(self.version):
            raise ValueError(f"{self.name!r} {self.version!r}: only lower-case letters, digits, dots and dashes")
        if len({stage.id for stage in self.stages}) != len(self.stages) or not self.stages:
            raise ValueError("stages need ids that differ, and there must be one")

    @property
    def id(self) -> str:
        """The name with the version, as pip writes it."""
        return f"{self.name}=={self.version}"


def select(specs: Iterable[ToolchainSpec], wanted: str) -> ToolchainSpec:
    """Return the newest known version that satisfies ``NAME``,
    ``NAME-VERSION`` or ``NAME==VERSION``, or any pip condition.

    ``NAME-VERSION`` may omit the last numbers: ``x-2.48`` matches 2.48.40. Raises UsageError or UnknownTargetError.
    """
    known = tuple(specs)
    exact = [spec for spec in known if wanted == f"{spec.name}-{spec.version}"]
    series = exact or [spec for spec in known if f"{spec.name}-{spec.version}".startswith(f"{wanted}.")]
    if series:
        return max(series, key=lambda spec: Version(spec.version))
    try:
        requirement = Requirement(wanted)
    except InvalidRequirement:
        raise UsageError(f"{wanted!r} is not NAME or NAME==VERSION") from None
    named = [spec for spec in known if spec.name == canonicalize_name(requirement.name)]
    fitting = [spec for spec in named if requirement.specifier.contains(spec.version, prereleases=True)]
    if not fitting:
        offered = ", ".join(spec.id for spec in named or known) or "none"
        raise UnknownTargetError(f"no toolchain {wanted!r} is known", next=f"known: {offered}")
    return max(fitting, key=lambda spec: Version(spec.version))
