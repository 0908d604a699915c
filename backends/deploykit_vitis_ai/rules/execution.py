"""Rules about how the quantizer's run went, and what was left in float because of it. VAI301 and on, VAI280, VAI281."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

__all__ = ["RULES", "Outcome", "Trial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A part that was left in float to see what it brings: its nodes, and the outputs before and after in words.

    ``of_nodes`` and ``of_values`` are its share of the model's nodes and of the values that the model computes.
    """

    words: str
    nodes: tuple[str, ...]
    before: str
    after: str
    kept: bool
    of_nodes: float
    of_values: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the execution went: the toolchain's state, and calibration files that the quantizer's script skipped."""

    toolchain: str
    state: str
    skipped: tuple[tuple[str, str], ...] = ()
    samples: int | None = None
    trials: tuple[Trial, ...] = ()


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


_MEASURED = ["deploykit: Quark, run with and without this part; both models run on the calibration samples"]


@RULES.rule(
    "VAI280",
    "end-left-in-float",
    "info",
    what="A part of the model stays in float, since integers destroyed what it computes.",
    why="Boxes and scores on one grid, the decoding of boxes, and sums over bins need more than 256 steps. Float "
    "takes longer than int8, and every border between the two costs a conversion.",
    fix="Nothing to do. Quantize all of it with --exclude-nothing, or name another part with --exclude-subgraph.",
    sources=_MEASURED,
)
def check_left(outcome: Outcome) -> Iterator[Found]:
    """The part that was measured better in float, with both measurements and its share of the model."""
    for trial in outcome.trials:
        if trial.kept:
            yield _tried(
                trial, f"{trial.words} stay in float ({_cost(trial)}): {trial.after}; quantized {trial.before}"
            )


@RULES.rule(
    "VAI281",
    "tried-in-float",
    "info",
    what="A part of the model was left in float for a trial, and is quantized after all.",
    why="The outputs were no better with it: what is lost is lost before.",
    fix="Find the operators that lose most with 'deploykit locate'; calibrate anew, or ask for a wider format.",
    sources=_MEASURED,
)
def check_in_vain(outcome: Outcome) -> Iterator[Found]:
    """Each part that brought nothing, with both measurements."""
    for trial in outcome.trials:
        if not trial.kept:
            yield _tried(trial, f"{trial.words}, tried in float: {trial.after}; quantized {trial.before}: undone")


def _cost(trial: Trial) -> str:
    return f"{trial.of_nodes:.0%} of the nodes, {trial.of_values:.0%} of the values computed"


def _tried(trial: Trial, message: str) -> Found:
    evidence = {"nodes": list(trial.nodes), "before": trial.before, "after": trial.after}
    return Found(kind=SubjectKind.NODE, name=trial.nodes[-1], message=message, evidence=evidence)
