"""Rules about the quantizer's run, and about choices made because of it. Codes VAI280 to VAI283, VAI301 and later."""

from __future__ import annotations

from deploykit.findings.records import Names, Pairs, Record
from deploykit.findings.rules import Finds, Found, Registry

__all__ = ["RULES", "QuarkOutcome", "QuarkTrial"]


class QuarkTrial(Record, kw_only=False):
    """One attempt at better outputs: the requested format, a part of the model in float, or a wider format.

    ``outcome`` describes its outputs. ``part`` describes the part, ``nodes`` are its names, and ``of_nodes`` and
    ``of_values`` its share of the model's nodes and of its computed values.
    """

    words: str
    outcome: str
    chosen: bool = False
    part: str = ""
    nodes: Names = ()
    of_nodes: float = 0.0
    of_values: float = 0.0


class QuarkOutcome(Record):
    """The result of the execution: the toolchain's state, and calibration files that the quantizer's script skipped.

    ``trials`` begin with the requested format. If a format was to be chosen, ``asked`` is the goal for its outputs, and
    ``reached`` tells if the chosen one reaches it, None if unknown; ``untried`` is the package's format if nothing
    could be measured. ``room`` describes the disk and time that installing the toolchain takes. ``endless`` is the
    error of cross-layer equalization, "" if there was none.
    """

    toolchain: str
    state: str
    skipped: Pairs = ()
    samples: int | None = None
    trials: tuple[QuarkTrial, ...] = ()
    asked: str = ""
    reached: bool | None = None
    untried: str = ""
    room: str = ""
    endless: str = ""

    @property
    def parts(self) -> tuple[QuarkTrial, ...]:
        """The parts that were tried in float; none if a wider format was taken, as they led to it."""
        is_wider = any(trial.chosen and not trial.part for trial in self.trials[1:])
        return () if is_wider else tuple(trial for trial in self.trials if trial.part)


RULES = Registry[QuarkOutcome]("execution")


@RULES.rule("VAI301", "quantizer-not-installed", "warning", "deploykit: the toolchains on this machine")
def check_installed(outcome: QuarkOutcome) -> Finds:
    """Quark is not installed on this machine, so the model was not quantized.

    The package holds everything that is needed, but nothing of it was tried.

    Fix: Install it with 'deploykit toolchain install', and package again, or run scripts/quantize.py where Quark is.
    """
    if outcome.state != "ready":
        room = f"; installing it takes {outcome.room}" if outcome.room else ""
        unsure = f"; {outcome.untried} is only the first that --precision auto tries" if outcome.untried else ""
        yield Found(
            "environment",
            outcome.toolchain,
            f"{outcome.toolchain} is {outcome.state}: scripts/quantize.py was generated and not run{unsure}{room}",
            hint=f"deploykit toolchain install {outcome.toolchain}",
        )


@RULES.rule("VAI302", "calibration-file-skipped", "error", "deploykit: scripts/quantize.py, run with Quark")
def check_skipped(outcome: QuarkOutcome) -> Finds:
    """The quantizer's script could not decode or read a calibration file.

    The header looked right, the content is not.

    Fix: Repair or remove the file.
    """
    # Files that the script's result names.
    for name, why in outcome.skipped:
        yield Found("file", name, f"{why}; {outcome.samples} samples were used")


@RULES.rule("VAI303", "equalization-left-out", "warning", "amd-quark 0.12.post1, two models of PP-OCR, a log-mel one")
def check_endless(outcome: QuarkOutcome) -> Finds:
    """Cross-layer equalization failed, or ended in values without an end, so the model was quantized without it.

    Ranges of neighbouring layers are not evened out then, which int8 may pay for.

    Fix: nothing has to be done; --option include_cle=true insists on it
    """
    # The error of the first run, with equalization.
    if outcome.endless:
        yield Found("environment", outcome.toolchain, f"without cross-layer equalization: {outcome.endless}")


_MEASURED = ["deploykit: Quark, run with and without this part; both models run on the calibration samples"]


@RULES.rule("VAI280", "end-left-in-float", "warning", _MEASURED)
def check_left(outcome: QuarkOutcome) -> Finds:
    """A part of the model stays in float, since integers destroyed what it computes.

    Boxes and scores on one grid, the decoding of boxes, and sums over bins need more than 256 steps. Float takes longer
    than int8, and every border between the two costs a conversion.

    Fix: Quantize all of it with --exclude-nothing, or name another part with --exclude-subgraph.
    """
    # The part whose outputs were better in float, with both measurements and its share of the model.
    for trial in outcome.parts:
        if trial.chosen:
            cost = f"{trial.of_nodes:.0%} of the nodes, {trial.of_values:.0%} of the values computed"
            yield _of_part(outcome, trial, f"{trial.part} stay in float ({cost})")


@RULES.rule("VAI281", "tried-in-float", "info", _MEASURED)
def check_in_vain(outcome: QuarkOutcome) -> Finds:
    """A part of the model was left in float for a trial, and is quantized after all.

    The outputs were no better with it: what is lost is lost before.

    Fix: Find the operators that lose most with 'deploykit accuracy locate'; calibrate anew, or take a wider format.
    """
    # Each part that gave no better outputs, with both measurements.
    for trial in outcome.parts:
        if not trial.chosen:
            yield _of_part(outcome, trial, f"{trial.part}, tried in float and undone")


@RULES.rule(
    "VAI283",
    "precision-chosen",
    "info",
    "deploykit: Quark, run for each format; the models run on the calibration samples",
)
def check_chosen(outcome: QuarkOutcome) -> Finds:
    """The number format was chosen by measuring: the cheapest one whose outputs are good enough.

    Integers are the fastest here, and which of them a model survives is seen on its outputs only. Quark makes each; of
    bf16 it makes an imitation for the CPU, since the compiler does the rounding.

    Fix: Ask for one format with --precision, or for another quality with --goal.
    """
    # All trials with their measurements, the chosen one, and whether it is good enough.
    if not outcome.asked:
        return
    chosen = next(trial.words for trial in outcome.trials if trial.chosen)
    end = {True: "", False: f"; the best, none of them {outcome.asked}", None: "; not judged"}[outcome.reached]
    tried = "; ".join(f"{trial.words}: {trial.outcome}" for trial in outcome.trials)
    rungs = [{"tried": one.words, "outcome": one.outcome, "chosen": one.chosen} for one in outcome.trials]
    yield Found("config-key", "precision", f"chosen: {chosen}{end}. Tried: {tried}", evidence={"rungs": rungs})


def _of_part(outcome: QuarkOutcome, trial: QuarkTrial, told: str) -> Found:
    before = outcome.trials[0].outcome
    evidence = {"nodes": list(trial.nodes), "before": before, "after": trial.outcome}
    return Found("node", trial.nodes[-1], f"{told}: {trial.outcome}; quantized {before}", evidence=evidence)
