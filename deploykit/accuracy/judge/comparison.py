"""Compares two sets of outputs: every output as a whole, and every slice along every axis, over all samples.

It measures; what a number means for the model is judged in ``deploykit.accuracy.judge.rules``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.measures import Quality, measure
from deploykit.accuracy.judge.outputs import Outputs, OutputSet
from deploykit.errors import InputError

__all__ = ["AxisSlices", "Comparison", "Mismatch", "OutputComparison", "SliceRun", "compare"]

_Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRun:
    """Neighbouring slices, ``stop`` excluded, of one axis. ``peak`` is the baseline's largest magnitude in them."""

    axis: int
    start: int
    stop: int
    peak: float

    def __str__(self) -> str:
        last = self.stop - 1
        return f"{self.start}" if last == self.start else f"{self.start} to {last}"


@dataclass(slots=True, kw_only=True)
class AxisSlices:
    """Per slice along one axis, pooled over all samples: energies, ranges, the largest error."""

    axis: int
    signal: _Doubles
    noise: _Doubles
    worst: _Doubles
    baseline_low: _Doubles
    baseline_high: _Doubles
    candidate_low: _Doubles
    candidate_high: _Doubles
    elements: int = 0

    @classmethod
    def empty(cls, axis: int, count: int) -> AxisSlices:
        """Nothing seen yet."""
        zeros, low, high = np.zeros(count), np.full(count, np.inf), np.full(count, -np.inf)
        return cls(
            axis=axis,
            signal=zeros.copy(),
            noise=zeros.copy(),
            worst=zeros.copy(),
            baseline_low=low.copy(),
            baseline_high=high.copy(),
            candidate_low=low.copy(),
            candidate_high=high.copy(),
        )

    def add(self, baseline: _Doubles, candidate: _Doubles) -> None:
        """One more sample."""
        others = tuple(axis for axis in range(baseline.ndim) if axis != self.axis)
        difference = np.abs(baseline - candidate)
        self.signal += (baseline**2).sum(axis=others)
        self.noise += (difference**2).sum(axis=others)
        self.worst = np.maximum(self.worst, difference.max(axis=others))
        self.baseline_low = np.minimum(self.baseline_low, baseline.min(axis=others))
        self.baseline_high = np.maximum(self.baseline_high, baseline.max(axis=others))
        self.candidate_low = np.minimum(self.candidate_low, candidate.min(axis=others))
        self.candidate_high = np.maximum(self.candidate_high, candidate.max(axis=others))
        self.elements += baseline.size // max(1, len(self.signal))

    @property
    def sqnr_db(self) -> _Doubles:
        """Signal to noise per slice, in dB; infinite without a difference."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = 10 * np.log10(self.signal / self.noise)
        return np.where(self.noise == 0, np.inf, values)

    @property
    def dead(self) -> npt.NDArray[np.bool_]:
        """Slices in which the candidate never changes although the baseline does."""
        still = self.candidate_low == self.candidate_high
        return np.asarray(still & (self.baseline_low < self.baseline_high), dtype=np.bool_)

    def runs(self, chosen: npt.NDArray[np.bool_]) -> tuple[SliceRun, ...]:
        """The chosen slices as runs of neighbours."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8)))
        peaks = np.maximum(np.abs(self.baseline_low), np.abs(self.baseline_high))
        pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        return tuple(SliceRun(axis=self.axis, start=a, stop=b, peak=float(peaks[a:b].max())) for a, b in pairs)

    def to_json(self) -> dict[str, Any]:
        """Every slice with its numbers."""
        rows = zip(self.sqnr_db.tolist(), self.worst.tolist(), self.dead.tolist(), strict=True)
        return {
            "axis": self.axis,
            "slices": [
                {"index": i, "sqnr_db": s if math.isfinite(s) else None, "max_error": w, "dead": d}
                for i, (s, w, d) in enumerate(rows)
            ],
        }


@dataclass(slots=True, kw_only=True)
class OutputComparison:
    """One output over all samples: the quality of each sample, and the slices of each axis longer than 1.

    ``axes`` is empty when the shape differs between samples. ``finite`` is False when only the candidate has values
    that are not finite. ``levels`` are the numbers of distinct values of both sides in the first sample.
    """

    name: str
    shape: tuple[int, ...]
    qualities: dict[str, Quality] = field(default_factory=dict)
    axes: list[AxisSlices] = field(default_factory=list)
    finite: bool = True
    levels: tuple[int, int] = (0, 0)

    def summary(self) -> dict[str, float]:
        """Mean and worst of each number over the samples; a nan in one sample is kept, as the vendor's tool does."""
        found = list(self.qualities.values())
        rows: dict[str, list[float]] = {name: [getattr(q, name) for q in found] for name in Quality.__slots__}
        result: dict[str, float] = {}
        for name, values in rows.items():
            larger_is_worse = name in ("l2", "max_error")
            undefined = any(math.isnan(value) for value in values)
            result[f"mean_{name}"] = math.nan if undefined else _mean(values)
            worst = max(values) if larger_is_worse else min(values)
            result[f"{'max' if larger_is_worse else 'min'}_{name}"] = math.nan if undefined else worst
        return result

    def to_json(self, *, slices: bool = False) -> dict[str, Any]:
        """The numbers as JSON values: None for undefined or unbounded ones."""
        summary = {name: value if math.isfinite(value) else None for name, value in self.summary().items()}
        axes = [axis.to_json() for axis in self.axes] if slices else [_worst(axis) for axis in self.axes]
        samples = {name: quality.to_json() for name, quality in self.qualities.items()}
        return {"name": self.name, "shape": list(self.shape), **summary, "axes": axes, "samples": samples}


def _worst(axis: AxisSlices) -> dict[str, Any]:
    values = axis.sqnr_db
    index = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
    lowest = float(values[index])
    return {
        "axis": axis.axis,
        "count": len(values),
        "worst_index": index,
        "worst_sqnr_db": lowest if math.isfinite(lowest) else None,
        "dead": [[run.start, run.stop] for run in axis.runs(axis.dead)],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A sample or output that could not be compared, and why."""

    sample: str
    output: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything measured. ``missing`` samples are in the baseline only, ``extra`` in the candidate only."""

    baseline: str
    candidate: str
    outputs: Mapping[str, OutputComparison]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """How many samples were compared."""
        return len({name for output in self.outputs.values() for name in output.qualities})

    def to_json(self, *, slices: bool = False) -> dict[str, Any]:
        """The published shape, without the findings."""
        return {
            "baseline": self.baseline,
            "candidate": self.candidate,
            "samples": self.samples,
            "missing": list(self.missing),
            "extra": list(self.extra),
            "ignored": list(self.ignored),
            "outputs": [output.to_json(slices=slices) for output in self.outputs.values()],
        }


def compare(baseline: OutputSet, candidate: OutputSet) -> Comparison:
    """Measure every sample that both sides have, in the order of the names."""
    shared = sorted(baseline.samples.keys() & candidate.samples.keys())
    outputs: dict[str, OutputComparison] = {}
    mismatches: list[Mismatch] = []
    for name in shared:
        mismatches += _add_sample(outputs, name, baseline.samples[name](), candidate.samples[name]())
    return Comparison(
        baseline=baseline.label,
        candidate=candidate.label,
        outputs=outputs,
        missing=tuple(sorted(baseline.samples.keys() - candidate.samples.keys())),
        extra=tuple(sorted(candidate.samples.keys() - baseline.samples.keys())),
        mismatches=tuple(mismatches),
        ignored=(*baseline.ignored, *candidate.ignored),
    )


def _add_sample(
    outputs: dict[str, OutputComparison], sample: str, baseline: Outputs, candidate: Outputs
) -> Iterable[Mismatch]:
    if len(baseline) == len(candidate) == 1 and "" in (*baseline, *candidate):  # a .npy file names no output
        name = max(*baseline, *candidate)
        baseline, candidate = {name: next(iter(baseline.values()))}, {name: next(iter(candidate.values()))}
    for name in sorted(baseline.keys() ^ candidate.keys()):
        side = "baseline" if name in baseline else "candidate"
        yield Mismatch(sample=sample, output=name, why=f"only the {side} has this output")
    for name, value in baseline.items():
        if name not in candidate:
            continue
        other = candidate[name]
        if value.shape != other.shape:
            yield Mismatch(sample=sample, output=name, why=f"shapes differ: {value.shape} and {other.shape}")
        elif not value.size:
            yield Mismatch(sample=sample, output=name, why="the output is empty")
        else:
            _add_output(outputs, sample, name, value, other)


def _numbers(name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        why = f"it holds values of the type {values.dtype}"
        raise InputError(f"output {name!r}: cannot be compared", why=why, next="save plain numbers") from None


def _add_output(
    outputs: dict[str, OutputComparison],
    sample: str,
    name: str,
    baseline: npt.NDArray[Any],
    candidate: npt.NDArray[Any],
) -> None:
    known = name in outputs
    output = outputs.setdefault(name, OutputComparison(name=name, shape=baseline.shape))
    a, b = _numbers(name, baseline), _numbers(name, candidate)
    output.finite &= bool(np.isfinite(b).all() or not np.isfinite(a).all())
    with np.errstate(invalid="ignore", over="ignore"):
        output.qualities[sample] = measure(a, b)
        if not known:
            output.levels = (len(np.unique(a)), len(np.unique(b)))
            output.axes = [AxisSlices.empty(i, n) for i, n in enumerate(a.shape) if n > 1 and a.ndim > 1]
        elif a.shape != output.shape:
            output.axes = []
        for axis in output.axes:
            axis.add(a, b)


def _mean(values: Sequence[float]) -> float:
    """The mean of numbers of which some may be infinite, to both sides even: then there is none."""
    infinite = {value for value in values if math.isinf(value)}
    if infinite:
        return infinite.pop() if len(infinite) == 1 else math.nan
    return math.fsum(values) / len(values)
