"""What a comparison means: rules about dead slices, missing files, lost types, and thresholds of the user."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.verdict import PROBABILITY_TOLERANCE, Measure, Thresholds, Verdict
from deploykit.encodings.post_processing import find_mixing, output_of_shape
from deploykit.findings import Severity, listed
from deploykit.findings.records import Json, Names, Record
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    from deploykit.accuracy.judge.compare import ComparedOutputs, OutputComparison
    from deploykit.accuracy.judge.measures import Slices

__all__ = ["RULES", "Judged", "Thresholds"]

_GOOD_DB = 20.0
_TELLING_VALUES = 16
_DROWNED_DB = 6.0
_QUANTIZED_LEVELS = 256


class Judged(Record):
    """A comparison with what is known around it: the float model's facts, the target, and the thresholds.

    ``precision`` is the one that a proposed command names to leave a part in float; ``verdict`` is the judge's, where a
    model says what its outputs are.
    """

    comparison: ComparedOutputs
    facts: GraphFacts | None = None
    model: str = "MODEL"
    target: str = "TARGET"
    precision: str = "mixed"
    thresholds: Thresholds = Thresholds()
    verdict: Verdict | None = None


_SOURCE = "deploykit: measured on the two sets of outputs"
RULES = Registry[Judged]("comparison", sources=[_SOURCE])


@RULES.rule(
    "DK601",
    "dead-channels",
    "error",
    [_SOURCE, "observed: a quantized detector, all scores 0, whole-tensor cosine 0.9999 (docs/numbers.md)"],
)
def check_dead(judged: Judged) -> Finds:
    """Neighbouring slices of an output never change in the candidate although they do in the baseline.

    Values of different ranges share one scale, typically boxes and scores joined by a Concat: the small ones round to
    one value. Metrics over the whole tensor do not show it.

    Fix: Keep the part that makes these values in float; 'deploykit accuracy compare --model' names the Concat.
    """
    numbers = () if judged.verdict is None else judged.verdict.numbers
    scores = {number.output for number in numbers if number.kind == "scores"}
    for output in judged.comparison.outputs.values():
        least = PROBABILITY_TOLERANCE if output.name in scores else 0  # of a class that never occurs
        for axis in _parts(judged, output):
            for where, evidence in _told_slices(output, axis, axis.dead):
                if evidence["baseline_peak"] > least:
                    yield _dead(judged, output, axis, where, evidence)


def _parts(judged: Judged, output: OutputComparison) -> Iterator[Slices]:
    """The axes whose slices are parts of the output; of a map of areas only its channels, and no row of pixels."""
    numbers = () if judged.verdict is None else judged.verdict.numbers
    areas = any(n.limit.measure is Measure.IOU and n.output in ("", output.name) for n in numbers)
    yield from (axis for axis in output.axes if not areas or axis.axis == 1)


def _told_slices(output: OutputComparison, axis: Slices, chosen: Any) -> Iterator[tuple[str, Json]]:
    """Runs of neighbouring chosen slices, in words and as evidence.

    A run with one value per sample on a few samples, as the logit of one class, is left out: such values meet by
    chance.
    """
    from deploykit.accuracy.judge.measures import runs_of

    for start, stop in runs_of(chosen):
        if axis.elements > len(output.qualities) or axis.elements * (stop - start) >= _TELLING_VALUES:
            which = f"slices {start} to {stop - 1}" if stop - start > 1 else f"slice {start}"
            peak = float(axis.peaks[start:stop].max())
            evidence = {"axis": axis.axis, "start": start, "stop": stop, "baseline_peak": peak}
            yield f"{which} of axis {axis.axis}", evidence


def _about(output: OutputComparison, message: str, **more: Any) -> Found:
    return Found("tensor", output.name or "the output", message, **more)


def _dead(judged: Judged, output: OutputComparison, axis: Slices, where: str, evidence: Json) -> Found:
    facts = judged.facts
    name = None if facts is None else output_of_shape(facts, output.name, output.shape)
    mixing = None if facts is None or name is None else find_mixing(facts, name, axis.axis)
    message = (
        f"{where} hold a single value in the candidate; in the baseline they reach {evidence['baseline_peak']:.4g}"
    )
    sure = mixing is not None or (len(output.shape) > 2 and axis.elements >= _TELLING_VALUES)
    severity = Severity.ERROR if sure else Severity.WARNING
    if mixing is None:
        return _about(output, message, severity=severity, evidence=evidence)
    lost = ", ".join(mixing.part_of(evidence["start"], evidence["stop"]))
    message += f". They come from {lost}, joined with other ranges by the Concat {mixing.concat.label!r}"
    # The command can be pasted; capitals stand for what is not known here.
    hint = f"deploykit package {shlex.quote(judged.model)} --target {shlex.quote(judged.target)} --precision "
    hint += f"{judged.precision} --exclude-subgraph {shlex.quote(mixing.exclusion)} --calibration FOLDER -o OUT"
    if not mixing.exclusion:
        hint = f"keep {mixing.concat.label!r} and what feeds it in float; name its nodes first, some have no name"
    evidence = {**evidence, "concat": mixing.concat.label, "exclude_subgraph": mixing.exclusion}
    return _about(output, message, hint=hint, severity=severity, evidence=evidence)


@RULES.rule("DK602", "drowned-channels", "warning")
def check_drowned(judged: Judged) -> Finds:
    """Neighbouring slices have almost as much noise as signal while the whole output looks good.

    Their range is small beside that of the rest of the tensor, so that its scale leaves them a few steps only.

    Fix: Keep the part that joins them in float, or give the two parts their own outputs.
    """
    for output in judged.comparison.outputs.values():
        for axis in _parts(judged, output) if output.summary()["min_sqnr_db"] >= _GOOD_DB else ():
            low = (axis.sqnr_db < _DROWNED_DB) & (axis.signal > 0) & ~axis.dead
            for where, evidence in _told_slices(output, axis, low):
                yield _about(
                    output,
                    f"{where}: under {_DROWNED_DB:.0f} dB, where the whole is over {_GOOD_DB:.0f} dB",
                    evidence=evidence,
                )


@RULES.rule("DK603", "missing-samples", "error")
def check_missing(judged: Judged) -> Finds:
    """The baseline has samples that the candidate lacks, or nothing is common to both.

    An average over the rest would hide them.

    Fix: Run the candidate on the same inputs, and save its outputs under the same names.
    """
    return _lacking(judged.comparison, "candidate", "missing", judged.comparison.missing)


@RULES.rule("DK604", "extra-samples", "warning")
def check_extra(judged: Judged) -> Finds:
    """The candidate has samples that the baseline lacks.

    They are not compared.

    Fix: Remove them, or run the baseline on the same inputs.
    """
    return _lacking(judged.comparison, "baseline", "extra", judged.comparison.extra)


def _lacking(comparison: ComparedOutputs, side: str, what: str, names: Names) -> Finds:
    if names:
        yield Found(
            "data",
            comparison.candidate,
            f"the {side} lacks {len(names)}: {listed(names)}",
            evidence={what: list(names)},
        )


@RULES.rule("DK605", "not-comparable", "error")
def check_comparable(judged: Judged) -> Finds:
    """An output exists on one side only, or its shape differs.

    There is nothing to measure.

    Fix: Save the same outputs of both models.
    """
    for place, why in judged.comparison.mismatches:
        yield Found("data", place.strip(": ") or "the sample", why)


@RULES.rule("DK606", "not-finite", "error")
def check_finite(judged: Judged) -> Finds:
    """The candidate has NaN or infinite values where the baseline has none.

    A float16 or bfloat16 range was left, or a kernel failed.

    Fix: Find the first tensor that is not finite, and keep its part in a wider type.
    """
    for output in judged.comparison.outputs.values():
        if not output.finite:
            yield _about(output, "the candidate is not finite")


@RULES.rule("DK607", "sides-look-swapped", "warning")
def check_swapped(judged: Judged) -> Finds:
    """The baseline has the few distinct values of a quantized tensor, the candidate does not.

    PSNR and SQNR are not symmetric: swapped sides give other numbers without any message.

    Fix: Check which side is the float model: --baseline FLOAT --candidate QUANTIZED.
    """
    for output in judged.comparison.outputs.values():
        first, second = output.levels
        if first <= _QUANTIZED_LEVELS and second > 1.5 * first and second > 32:
            what = f"{output.name or 'the output'}: {first} distinct values in the baseline, {second} in the candidate"
            yield Found("data", judged.comparison.baseline, what)


@RULES.rule("DK608", "below-threshold", "error")
def check_thresholds(judged: Judged) -> Finds:
    """A number of the worst sample misses a threshold that was given.

    You asked for it.

    Fix: Look at the slices (--slices) to see which part of the output is worst.
    """
    for output in judged.comparison.outputs.values():
        summary, asked = output.summary(), judged.thresholds
        rows = (
            ("cosine", summary["min_cosine"], asked.min_cosine, 1),
            ("PSNR (dB)", summary["min_psnr_db"], asked.min_psnr, 1),
            ("SQNR (dB)", summary["min_sqnr_db"], asked.min_sqnr, 1),
            ("largest error", summary["max_max_error"], asked.max_error, -1),
        )
        for name, value, limit, sign in rows:
            if limit is not None and not sign * value >= sign * limit:  # nan misses every threshold
                yield _about(output, f"{name} {value:.6g} misses {limit:g}")


@RULES.rule(
    "DK610",
    "not-right",
    "error",
    "deploykit: the table of thresholds with a reason and a source for each (docs/numbers.md)",
)
def check_right(judged: Judged) -> Finds:
    """An output misses what its kind must have: detections in pixels, labels by agreement, maps by SQNR.

    Each kind of output fails in its own way; one number for all of them calls good what is not, and the reverse.

    Fix: Name the cause with 'deploykit accuracy locate', or give the threshold that your application needs.
    """
    verdict = judged.verdict
    for number in verdict.failures if verdict is not None and verdict.right is False else ():
        name, message = number.output or "the output", f"{number.loss}, {number.limit.reason}"
        sources = (number.limit.source,)
        yield Found("tensor", name, message, sources=sources, evidence=number.to_json())
