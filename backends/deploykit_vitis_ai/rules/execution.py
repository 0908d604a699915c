"""Rules about how the quantizer's run went. Codes VAI301 and VAI302."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

__all__ = ["RULES", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the execution went: the toolchain's state, and calibration files that the quantizer's script skipped."""

    toolchain: str
    state: str
    skipped: tuple[tuple[str, str], ...] = ()
    samples: int | None = None


RULES: Registry[Outcome] = Registry("execution")


@RULES.rule(
    "VAI301",
    "quantizer-not-installed",
    "warning",
    what="Quark is not installed on this machine, so the model was not quantized.",
    why="The package holds everything that is needed, but nothing of it was tried.",
    fix="Install it with 'deploykit toolchain install', and package again, or run scripts/quantize.py where Quark is.",
    sources=["deploykit: the toolchains on this machine"],
)
def check_installed(outcome: Outcome) -> Iterator[Found]:
    """A toolchain that is not ready."""
    if outcome.state != "ready":
        yield Found(
            kind=SubjectKind.ENVIRONMENT,
            name=outcome.toolchain,
            message=f"{outcome.toolchain} is {outcome.state}: scripts/quantize.py was generated and not run",
            hint=f"deploykit toolchain install {outcome.toolchain}",
        )


@RULES.rule(
    "VAI302",
    "calibration-file-skipped",
    "error",
    what="The quantizer's script could not decode or read a calibration file.",
    why="The header looked right, the content is not.",
    fix="Repair or remove the file.",
    sources=["deploykit: scripts/quantize.py, run with Quark"],
)
def check_skipped(outcome: Outcome) -> Iterator[Found]:
    """Files that were named in the result."""
    for name, why in outcome.skipped:
        yield Found(kind=SubjectKind.FILE, name=name, message=f"{why}; {outcome.samples} samples were used")
