"""Comparing sets of outputs: what is measured, what is found, and that sides and files cannot be mixed up silently."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploykit
from deploykit.accuracy.judge.compare import ComparedOutputs, OutputSet, compare, read_outputs, read_pair
from deploykit.accuracy.judge.rules import RULES as COMPARISON_RULES
from deploykit.accuracy.judge.rules import Judged, Thresholds
from deploykit.accuracy.judge.verdict import Against, Context, Measure, Verdict
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.errors import InputError, UsageError
from deploykit.findings import Finding, Severity
from tables import each_row

QUARK = Path(__file__).parents[1] / "data" / "quark"


def as_set(label: str, samples: dict[str, dict[str, np.ndarray]]) -> OutputSet:
    def reader(value: dict[str, np.ndarray]) -> Callable[[], dict[str, np.ndarray]]:
        return lambda: value

    return OutputSet(label=label, samples={name: reader(value) for name, value in samples.items()})


def pair(a: np.ndarray, b: np.ndarray) -> ComparedOutputs:
    return compare(as_set("a", {"0": {"y": a}}), as_set("b", {"0": {"y": b}}))


def fixture(name: str) -> ComparedOutputs:
    return compare(read_outputs(QUARK / "output_fp32"), read_outputs(QUARK / f"output_{name}"))


def verdict(*, right: bool) -> Verdict:
    number = Context(label="given", count=1, against=Against.FLOAT, bits=0, thresholds=None).number(
        "y", "dense", Measure.SQNR, 40.0 if right else 4.0
    )
    return Verdict(right=right, numbers=(number,))


RNG = np.random.default_rng(0)
MIXED = np.concatenate([RNG.random((1, 2, 64)) * 640, RNG.random((1, 2, 64))], axis=1)
COARSE = np.round(MIXED / 8) * 8
NOISY = MIXED.copy()
NOISY[:, 2:] += RNG.normal(0, 0.6, (1, 2, 64))
NAN = MIXED.copy()
NAN[0, 0, 0] = np.nan
SAME = pair(MIXED, MIXED)

CASES: dict[str, tuple[Judged, Judged]] = {
    "DK601": (Judged(comparison=fixture("vint8")), Judged(comparison=fixture("vint8_mixed"))),
    "DK602": (Judged(comparison=pair(MIXED, NOISY)), Judged(comparison=SAME)),
    "DK603": (
        Judged(comparison=compare(as_set("a", {"0": {}, "1": {}}), as_set("b", {"0": {}}))),
        Judged(comparison=compare(as_set("a", {"0": {}}), as_set("b", {"0": {}}))),
    ),
    "DK604": (
        Judged(comparison=compare(as_set("a", {"0": {}}), as_set("b", {"0": {}, "1": {}}))),
        Judged(comparison=compare(as_set("a", {"0": {}}), as_set("b", {"0": {}}))),
    ),
    "DK605": (Judged(comparison=pair(MIXED, MIXED[:, :3])), Judged(comparison=SAME)),
    "DK606": (Judged(comparison=pair(MIXED, NAN)), Judged(comparison=pair(NAN, NAN))),
    "DK607": (Judged(comparison=pair(COARSE, MIXED)), Judged(comparison=pair(MIXED, COARSE))),
    "DK609": (Judged(comparison=replace(SAME, ignored=("a.png",))), Judged(comparison=SAME)),
    "DK610": (
        Judged(comparison=SAME, verdict=verdict(right=False)),
        Judged(comparison=SAME, verdict=verdict(right=True)),
    ),
    "DK608": (
        Judged(comparison=pair(MIXED, COARSE), thresholds=Thresholds(min_sqnr=90)),
        Judged(comparison=pair(MIXED, COARSE), thresholds=Thresholds(min_sqnr=20)),
    ),
}


@each_row("code", [rule.code for rule in COMPARISON_RULES])
def test_each_rule_fires_and_stays_silent(code: str, as_expected: Callable[[str, Iterable[Finding]], None]) -> None:
    triggering, clean = CASES[code]
    rule = COMPARISON_RULES[code]
    as_expected(code, rule.run(triggering))
    assert not list(rule.run(clean))


def test_the_dead_scores_of_a_real_quantizer_are_named() -> None:
    comparison = fixture("vint8")
    assert comparison.outputs[""].summary()["min_cosine"] > 0.9998
    finding = next(iter(COMPARISON_RULES["DK601"].run(Judged(comparison=comparison))))
    assert finding.severity is Severity.ERROR
    assert (finding.evidence["axis"], finding.evidence["start"], finding.evidence["stop"]) == (1, 4, 8)


def test_dead_class_scores_of_one_softmax_are_no_error() -> None:
    """Unlikely classes rounded to zero are what 8 bits mean, not two ranges in one tensor."""
    logits = np.random.default_rng(1).normal(size=(1, 50)) * 3
    samples = {str(i): np.exp(logits + i / 10) / np.exp(logits + i / 10).sum() for i in range(3)}
    samples["9"] = np.roll(samples["0"], 1)
    rounded = {name: np.round(value * 128) / 128 for name, value in samples.items()}
    comparison = compare(
        as_set("a", {name: {"p": value} for name, value in samples.items()}),
        as_set("b", {name: {"p": value} for name, value in rounded.items()}),
    )
    findings = [f for f in COMPARISON_RULES.run(Judged(comparison=comparison)) if f.code == "DK601"]
    assert findings
    assert all(finding.severity is Severity.WARNING for finding in findings)


def dead_slices(first: int, stop: int, shape: tuple[int, ...]) -> Finding:
    """What is said of slices of axis 1 that hold a single value in the candidate."""
    lively = np.random.default_rng(3).random(shape)
    flat = lively.copy()
    flat[:, first:stop] = 0.5
    found = COMPARISON_RULES["DK601"].run(Judged(comparison=pair(lively, flat)))
    return next(finding for finding in found if finding.evidence["axis"] == 1)


@pytest.mark.parametrize(
    ("shape", "severity"),
    [
        ((1, 4, 16), Severity.ERROR),
        ((1, 4, 15), Severity.WARNING),
        ((16, 4), Severity.WARNING),
        ((2, 4, 2, 4), Severity.ERROR),
    ],
)
def test_dead_slices_are_an_error_where_many_values_say_so(shape: tuple[int, ...], severity: Severity) -> None:
    assert dead_slices(1, 3, shape).severity is severity


def levels(count: int) -> np.ndarray:
    return np.resize(np.arange(count, dtype=np.float64), (1, 1024))


@each_row(
    ("baseline", "candidate", "swapped"),
    [(256, 385, 1), (256, 384, 0), (257, 1024, 0), (4, 33, 1), (4, 32, 0), (2, 3, 0)],
)
def test_sides_look_swapped_by_their_distinct_values(baseline: int, candidate: int, swapped: int) -> None:
    """A tensor of 8 bits has at most 256 values; the other side needs half as many again, and more than 32."""
    judged = Judged(comparison=pair(levels(baseline), levels(candidate)))
    assert len(list(COMPARISON_RULES["DK607"].run(judged))) == swapped


@pytest.mark.parametrize(
    ("number", "threshold", "stricter"),
    [
        ("min_cosine", "min_cosine", 1),
        ("min_psnr_db", "min_psnr", 1),
        ("min_sqnr_db", "min_sqnr", 1),
        ("max_max_error", "max_error", -1),
    ],
)
def test_a_threshold_is_met_by_its_own_value(number: str, threshold: str, stricter: int) -> None:
    comparison = pair(MIXED, COARSE)
    value = comparison.outputs["y"].summary()[number]
    for limit, missed in ((value, 0), (value + stricter * 1e-6, 1), (value - stricter * 1e-6, 0)):
        judged = Judged(comparison=comparison, thresholds=Thresholds(**{threshold: limit}))
        assert len(list(COMPARISON_RULES["DK608"].run(judged))) == missed


@pytest.mark.parametrize(("good", "noise", "drowned"), [(0.02, 0.51, 1), (0.02, 0.49, 0), (0.2, 0.51, 0)])
def test_a_slice_drowns_below_six_decibels_in_an_output_above_twenty(good: float, noise: float, drowned: int) -> None:
    """Half of a small slice is noise (6 dB), the large slices have their own share."""
    large, small = np.full((1, 3, 8), 100.0), np.full((1, 1, 8), 1.0)
    large[..., ::2], small[..., ::2] = -100.0, -1.0
    baseline = np.concatenate([large, small], axis=1)
    candidate = np.concatenate([large * (1 + good), small * (1 + noise)], axis=1)
    found = COMPARISON_RULES["DK602"].run(Judged(comparison=pair(baseline, candidate)))
    assert len([finding for finding in found if finding.evidence["axis"] == 1]) == drowned


def test_slices_are_pooled_over_samples() -> None:
    a = {str(i): {"y": np.full((1, 2, 3), float(i + 1))} for i in range(3)}
    b = {name: {"y": value["y"] + np.array([0.0, 1.0])[None, :, None]} for name, value in a.items()}
    axis = compare(as_set("a", a), as_set("b", b)).outputs["y"].axes[0]
    signal = 3 * (1 + 4 + 9)
    assert axis.axis == 1
    assert axis.sqnr_db.tolist() == [math.inf, pytest.approx(10 * math.log10(signal / 9))]


def test_undefined_cosine_stays_undefined() -> None:
    zero = pair(np.ones((2, 3)), np.zeros((2, 3)))
    assert math.isnan(zero.outputs["y"].summary()["min_cosine"])
    assert json.loads(json.dumps(zero.to_json(slices=True), allow_nan=False))["outputs"][0]["min_cosine"] is None
    judged = Judged(comparison=zero, thresholds=Thresholds(min_cosine=0.1))
    assert [finding.code for finding in COMPARISON_RULES.run(judged) if finding.code == "DK608"]


@pytest.mark.parametrize(("name", "content"), [("x.npy", b""), ("x.npz", b"PK\x03\x04rest"), ("x.npy", b"\x93NUMPY")])
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        compare(read_outputs(tmp_path), read_outputs(tmp_path))


def test_folders_without_arrays_and_twins_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("no")
    with pytest.raises(InputError, match=r"no \.npy"):
        read_outputs(tmp_path)
    np.save(tmp_path / "a.npy", MIXED)
    assert read_outputs(tmp_path).ignored == ("a.txt",)
    np.savez(tmp_path / "a.npz", MIXED)
    with pytest.raises(InputError, match="same stem"):
        read_outputs(tmp_path)


def test_two_models_run_on_the_same_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(99)
    for i in range(3):
        np.save(tmp_path / f"result_{i}.npy", rng.random((1, 3, 64, 64), dtype=np.float32))
    ran = compare(*read_pair(QUARK / "fp32.onnx", QUARK / "vint8.onnx", tmp_path))
    saved = fixture("vint8")
    assert ran.outputs["output0"].summary()["min_cosine"] == pytest.approx(saved.outputs[""].summary()["min_cosine"])


def test_a_model_without_data_or_beside_a_folder_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data"):
        read_pair(QUARK / "fp32.onnx", QUARK / "vint8.onnx", None)
    with pytest.raises(UsageError, match="folder"):
        read_pair(QUARK / "fp32.onnx", tmp_path, None)


def test_flags_cannot_swap_the_sides(capsys: pytest.CaptureFixture[str]) -> None:
    fp32, vint8 = str(QUARK / "output_fp32"), str(QUARK / "output_vint8")
    numbers = []
    for arguments in (
        [fp32, vint8],
        ["--baseline", fp32, "--candidate", vint8],
        ["--candidate", vint8, "--baseline", fp32],
        [f"--quantized_results_folder={vint8}", f"--baseline_results_folder={fp32}"],
    ):
        assert run(cli, ["accuracy", "compare", *arguments, "--json"]) == 1
        numbers.append(json.loads(capsys.readouterr().out)["outputs"][0]["mean_psnr_db"])
    assert numbers == [pytest.approx(47.17204666137695, rel=1e-6)] * 4
    assert run(cli, ["accuracy", "compare", fp32, str(QUARK / "output_vint8_mixed"), "--slices"]) == 0
    assert "db" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("arguments", [["a"], ["a", "--candidate", "b"], ["a", "b", "c"], ["--baseline", "a"]])
def test_half_a_pair_is_wrong_usage(arguments: list[str]) -> None:
    assert run(cli, ["accuracy", "compare", *arguments]) == 2


def test_a_summary_of_infinities_is_a_number_or_none() -> None:
    """Better and worse than anything, in two samples: there is no mean of that, and no error either."""
    sides = [as_set("a", {"0": {"y": one}, "1": {"y": np.ones(2)}}) for one in (np.zeros(2), np.ones(2))]
    assert np.isnan(compare(*sides).outputs["y"].summary()["mean_sqnr_db"])


@pytest.mark.parametrize(("samples", "said"), [(8, set()), (16, {"DK601", "DK602"})])
def test_single_logits_tell_nothing_on_a_few_samples(samples: int, said: set[str]) -> None:
    """One class stands still and one is noise, among large ones: chance on a few samples, a finding on many."""
    rng = np.random.default_rng(1)
    baseline = [np.concatenate([rng.normal(0, 50, 8), rng.normal(0, 0.1, 2)])[None] for _ in range(samples)]
    candidate = [logits + np.r_[np.zeros(9), rng.normal(0, 0.1)] for logits in baseline]
    for logits in candidate:
        logits[0, 8] = 0.0
    sets = [as_set(n, {str(i): {"y": v} for i, v in enumerate(s)}) for n, s in (("a", baseline), ("b", candidate))]
    found = {finding.code for finding in COMPARISON_RULES.run(Judged(comparison=compare(*sets)))}
    assert found & {"DK601", "DK602"} == said


@pytest.mark.parametrize("kind", ["S4", "U2", [("a", "<f4"), ("b", "<i2")]])
def test_outputs_that_are_no_numbers_are_refused(kind: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.zeros(3, kind))
    np.savez(tmp_path / "b.npz", y=np.zeros(3, np.float32))
    with pytest.raises(InputError, match="output 'y': cannot be compared"):
        deploykit.evaluate(tmp_path / "a.npz", tmp_path / "b.npz")
