"""Comparing sets of outputs: what is measured, what is found, and that sides and files cannot be mixed up silently."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploykit
from deploykit.accuracy.judge.compare import ComparedOutputs, OutputSet, compare, read_outputs
from deploykit.accuracy.judge.rules import RULES as COMPARISON_RULES
from deploykit.accuracy.judge.rules import Judged, Thresholds
from deploykit.accuracy.judge.verdict import Context, Measure, Verdict
from deploykit.errors import InputError
from deploykit.findings import Finding, Severity
from rule_cases import check_pairs
from tables import each_row

QUARK = Path(__file__).parents[1] / "data" / "quark"


def as_set(label: str, samples: dict[str, dict[str, np.ndarray]]) -> OutputSet:
    def reader(value: dict[str, np.ndarray]) -> Callable[[], dict[str, np.ndarray]]:
        return lambda: value

    return OutputSet(label=label, samples={name: reader(value) for name, value in samples.items()})


def pairs(a: Iterable[np.ndarray], b: Iterable[np.ndarray]) -> ComparedOutputs:
    one, two = ({str(number): {"y": value} for number, value in enumerate(side)} for side in (a, b))
    return compare(as_set("a", one), as_set("b", two))


def pair(a: np.ndarray, b: np.ndarray) -> ComparedOutputs:
    return pairs([a], [b])


def fixture(name: str) -> ComparedOutputs:
    return compare(read_outputs(QUARK / "output_fp32"), read_outputs(QUARK / f"output_{name}"))


def told(code: str, comparison: ComparedOutputs, **more: Any) -> list[Finding]:
    return list(COMPARISON_RULES[code].run(Judged(comparison=comparison, **more)))


def verdict(db: float) -> Verdict:
    number = Context(label="given").number("y", "dense", Measure.SQNR, db)
    return Verdict(right=number.passes, numbers=(number,))


RNG = np.random.default_rng(0)
MIXED = np.concatenate([RNG.random((1, 2, 64)) * 640, RNG.random((1, 2, 64))], axis=1)
COARSE = np.round(MIXED / 8) * 8
NOISY = MIXED.copy()
NOISY[:, 2:] += RNG.normal(0, 0.6, (1, 2, 64))
NAN = MIXED.copy()
NAN[0, 0, 0] = np.nan
SAME = pair(MIXED, MIXED)
NONE: dict[str, Any] = {"0": {}}
MORE: dict[str, Any] = {"0": {}, "1": {}}
CASES: dict[str, tuple[Judged, Judged]] = {
    code: (Judged(comparison=bad), Judged(comparison=clean))
    for code, bad, clean in (
        ("DK601", fixture("vint8"), fixture("vint8_mixed")),
        ("DK602", pair(MIXED, NOISY), SAME),
        ("DK603", compare(as_set("a", MORE), as_set("b", NONE)), SAME),
        ("DK604", compare(as_set("a", NONE), as_set("b", MORE)), SAME),
        ("DK605", pair(MIXED, MIXED[:, :3]), SAME),
        ("DK606", pair(MIXED, NAN), pair(NAN, NAN)),
        ("DK607", pair(COARSE, MIXED), pair(MIXED, COARSE)),
    )
} | {
    "DK608": (
        Judged(comparison=pair(MIXED, COARSE), thresholds=Thresholds(min_sqnr=90)),
        Judged(comparison=pair(MIXED, COARSE), thresholds=Thresholds(min_sqnr=20)),
    ),
    "DK610": (Judged(comparison=SAME, verdict=verdict(4)), Judged(comparison=SAME, verdict=verdict(40))),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, COMPARISON_RULES)


@each_row(("one", "two", "swapped"), (256, 385, 1), (256, 384, 0), (257, 1024, 0), (4, 33, 1), (4, 32, 0), (2, 3, 0))
def test_sides_look_swapped_by_their_distinct_values(one: int, two: int, swapped: int) -> None:
    """A tensor of 8 bits has at most 256 values; the other side needs half as many again, and more than 32."""
    sides = (np.resize(np.arange(count, dtype=np.float64), (1, 1024)) for count in (one, two))
    assert len(told("DK607", pair(*sides))) == swapped


@each_row(
    ("number", "threshold", "stricter"),
    ("min_cosine", "min_cosine", 1),
    ("min_psnr_db", "min_psnr", 1),
    ("min_sqnr_db", "min_sqnr", 1),
    ("max_max_error", "max_error", -1),
)
def test_a_threshold_is_met_by_its_own_value(number: str, threshold: str, stricter: int) -> None:
    comparison = pair(MIXED, COARSE)
    value = comparison.outputs["y"].summary()[number]
    for limit, missed in ((value, 0), (value + stricter * 1e-6, 1), (value - stricter * 1e-6, 0)):
        assert len(told("DK608", comparison, thresholds=Thresholds(**{threshold: limit}))) == missed


@each_row(("good", "noise", "drowned"), (0.02, 0.51, 1), (0.02, 0.49, 0), (0.2, 0.51, 0))
def test_a_slice_drowns_below_six_decibels_in_an_output_above_twenty(good: float, noise: float, drowned: int) -> None:
    """Half of a small slice is noise (6 dB), the large slices have their own share."""
    large, small = np.full((1, 3, 8), 100.0), np.full((1, 1, 8), 1.0)
    large[..., ::2], small[..., ::2] = -100.0, -1.0
    baseline = np.concatenate([large, small], axis=1)
    candidate = np.concatenate([large * (1 + good), small * (1 + noise)], axis=1)
    found = [finding for finding in told("DK602", pair(baseline, candidate)) if finding.evidence["axis"] == 1]
    assert len(found) == drowned


@each_row(("samples", "said"), (8, set()), (16, {"DK601", "DK602"}))
def test_single_logits_tell_nothing_on_a_few_samples(samples: int, said: set[str]) -> None:
    """One class stands still and one is noise, among large ones: chance on a few samples, a finding on many."""
    rng = np.random.default_rng(1)
    baseline = [np.concatenate([rng.normal(0, 50, 8), rng.normal(0, 0.1, 2)])[None] for _ in range(samples)]
    candidate = [logits + np.r_[np.zeros(9), rng.normal(0, 0.1)] for logits in baseline]
    for logits in candidate:
        logits[0, 8] = 0.0
    found = {finding.code for finding in COMPARISON_RULES.run(Judged(comparison=pairs(baseline, candidate)))}
    assert found & {"DK601", "DK602"} == said


@each_row("one", np.zeros(3, "S4"), np.zeros(3, [("a", "<f4"), ("b", "<i2")]), np.ones(3, complex))
def test_what_are_no_numbers_is_named(one: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=one)
    np.savez(tmp_path / "b.npz", y=np.zeros(3))
    with pytest.raises(InputError, match="output 'y': cannot be compared"):
        deploykit.evaluate(tmp_path / "a.npz", tmp_path / "b.npz")


@each_row(
    ("shape", "severity"),
    ((1, 4, 16), Severity.ERROR),
    ((1, 4, 15), Severity.WARNING),
    ((16, 4), Severity.WARNING),  # unlikely classes rounded to zero are what 8 bits mean
    ((2, 4, 2, 4), Severity.ERROR),
)
def test_dead_slices_are_an_error_where_many_values_say_so(shape: tuple[int, ...], severity: Severity) -> None:
    lively = np.random.default_rng(3).random(shape)
    flat = lively.copy()
    flat[:, 1:3] = 0.5
    found = next(finding for finding in told("DK601", pair(lively, flat)) if finding.evidence["axis"] == 1)
    assert found.severity is severity and found.message.startswith("slices 1 to 2 of axis 1 hold a single value")
    sure = np.where(flat == 0.5, 1 - lively / 4096, lively)
    assert not told("DK601", pair(sure, np.where(flat == 0.5, 1.0, lively))), "a probability that is 1 in few bits"
