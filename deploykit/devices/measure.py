"""Computes statistics of measured times and decides whether one run is really faster than another. It runs nothing.

Every number can be recomputed from the raw samples of a record with the methods named in its ``method``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from deploykit.accuracy.latency import in_time
from deploykit.errors import DeploykitError, InputError, ToolError
from deploykit.findings.records import Numbers, Published

__all__ = ["Comparison", "Latency", "faster", "summarize"]

PERCENTILES = "linear interpolation between closest ranks (Hyndman and Fan, type 7); throughput is count / sum"
TEST = (
    "Mann-Whitney U, two-sided, normal approximation with ties and continuity corrected; "
    "interval: percentiles 2.5 and 97.5 of the ratio of medians over 2,000 bootstrap resamples "
    "(numpy default_rng(0).integers(0, n, n) for each of the first sample, then for each of the second)"
)
_RESAMPLES = 2000
_AT_ONCE = 1 << 21  # values drawn at once: 16 MB, for any number of samples
# Two starts of one program on one device differ: published medians of
# one release and the next are 0.5 to 1.3 % apart.
_SAME = 0.02
_SURE = 0.01  # largest p value that counts as a difference
_FEWEST = 8  # with fewer samples the normal approximation of U is too far from the exact distribution
# A chip that throttles stays slower for a while; a single late sample must not count as throttling.
_THROTTLED = 1.05
_CLOCK = "its clock was set meanwhile: run again"


class Comparison(Published):
    """Compares two samples of times: ``ratio`` is the median of the second divided by that of the first.

    Above 1 the first is faster. ``low`` and ``high`` bound the ratio in 95 % of the resamples; ``p`` is the p value of
    the test. All three are None if a sample is too small to be tested.
    """

    ALSO = ("words",)

    verdict: Literal["faster", "slower", "no difference", "not judged"]
    ratio: float
    low: float | None
    high: float | None
    u: float | None
    p: float | None
    counts: tuple[int, int]
    method: str = TEST

    @property
    def words(self) -> str:
        """One sentence for people, in which A is the first sample and B the second."""
        if self.verdict == "not judged":
            return f"too few samples to compare ({self.counts[0]} and {self.counts[1]}; {_FEWEST} are needed)"
        band = f"(95 %: {self.low:.3g} to {self.high:.3g}, p = {self.p:.2g})"
        if self.verdict == "no difference":
            return f"no difference that counts: the medians are as 1 to {self.ratio:.3g} {band}"
        return f"A is {self.verdict}: it runs {self.ratio:.3g} times as fast as B {band}"


class Trend(Published):
    """Compares the last third of the samples with the first third: ``ratio`` of the medians, above 1 if it got slower.

    ``p`` is None if there are too few samples. ``words`` is "" without a significant change.
    """

    ratio: float
    p: float | None
    words: str


class Latency(Published):
    """The times of one run in microseconds, for single inferences run one after another.

    ``samples_us`` holds all of them in measured order, without the warm-up.
    """

    count: int
    min_us: float
    median_us: float
    p90_us: float
    p99_us: float
    max_us: float
    mean_us: float
    std_us: float
    per_second: float
    trend: Trend
    samples_us: tuple[float, ...]
    method: str = PERCENTILES

    @property
    def described(self) -> str:
        """One line that describes the times for people."""
        rate = f"{self.per_second:,.0f}" if self.per_second >= 100 else f"{self.per_second:.3g}"
        line = f"{in_time(self.median_us)} (median of {self.count:,}; fastest {in_time(self.min_us)}, "
        line += f"p90 {in_time(self.p90_us)}, p99 {in_time(self.p99_us)}), {rate} per second"
        return f"{line}; {self.trend.words}" if self.trend.words else line


def summarize(samples_us: Sequence[float], *, within_s: float | None = None) -> Latency:
    """Compute the statistics of one run. ``within_s`` is the duration of the
    whole run by another clock; None skips the check.

    Raises ToolError for samples that no clock can have measured.
    """
    samples = _times(samples_us, ToolError)
    if not samples.size:
        raise ToolError("the device measured no inference", next="run more iterations")
    spent_s = float(samples.sum()) / 1e6
    if within_s is not None and spent_s > within_s:
        why = f"they add up to {spent_s:.3g} s, and the whole run took {within_s:.3g} s"
        raise ToolError("the times that the device measured are wrong", why=why, next=_CLOCK)
    median, p90, p99 = (float(value) for value in np.percentile(samples, (50, 90, 99)))
    return Latency(
        count=samples.size,
        min_us=float(samples.min()),
        median_us=median,
        p90_us=p90,
        p99_us=p99,
        max_us=float(samples.max()),
        mean_us=float(samples.mean()),
        std_us=float(samples.std(ddof=1)) if samples.size > 1 else 0.0,
        per_second=samples.size / float(samples.sum()) * 1e6,
        trend=_trend(samples),
        samples_us=tuple(samples.tolist()),
    )


def _times(values: Sequence[float], refusal: type[DeploykitError] = InputError) -> Numbers:
    try:
        times = np.asarray(values, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise refusal("the times that a device measured are no numbers", why=str(error)) from None
    bad = np.flatnonzero(~np.isfinite(times) | (times <= 0))
    if bad.size:
        why = f"number {bad[0] + 1} of {times.size} is {times[bad[0]]:g} us"
        raise refusal("the times that a device measured are wrong", why=why, next=_CLOCK)
    return times


def _trend(samples: Numbers) -> Trend:
    """Decide whether the device got slower or faster during the measurement."""
    third = samples.size // 3
    if third < _FEWEST:
        return Trend(ratio=1.0, p=None, words="")
    early, late = samples[:third], samples[-third:]
    ratio, (_, p) = float(np.median(late) / np.median(early)), _mann_whitney(early, late)
    words = ""
    if p <= _SURE and ratio > _THROTTLED:
        words = f"it got slower: the last third takes {ratio:.2f} times the first (throttling)"
    elif p <= _SURE and ratio < 1 / _THROTTLED:
        words = f"it got faster: the last third takes {ratio:.2f} times the first (more warm-up is needed)"
    return Trend(ratio=ratio, p=p, words=words)


def faster(first_us: Sequence[float], second_us: Sequence[float]) -> Comparison:
    """Decide whether the first sample of times is really shorter than the second, by a test on all samples.

    A difference counts if the test is significant, the interval excludes 1, and the medians differ by more than two
    starts of one program do. Raises InputError for values that are not times.
    """
    first, second = _times(first_us), _times(second_us)
    counts = (first.size, second.size)
    if min(counts) < 1:
        raise InputError("nothing was measured that could be compared")
    ratio = float(np.median(second) / np.median(first))
    if min(counts) < _FEWEST:
        return Comparison(verdict="not judged", ratio=ratio, low=None, high=None, u=None, p=None, counts=counts)
    u, p = _mann_whitney(first, second)
    drawn = np.random.default_rng(0)
    medians = []
    for sample in (first, second):
        rows = max(1, min(_RESAMPLES, _AT_ONCE // sample.size))
        blocks = [min(rows, _RESAMPLES - done) for done in range(0, _RESAMPLES, rows)]
        drawings = (sample[drawn.integers(0, sample.size, (block, sample.size))] for block in blocks)
        medians.append(np.concatenate([np.median(drawing, axis=1) for drawing in drawings]))
    low, high = (float(value) for value in np.percentile(medians[1] / medians[0], (2.5, 97.5)))
    verdict: Literal["faster", "slower", "no difference"] = "no difference"
    if p <= _SURE and not low <= 1 <= high and abs(ratio - 1) >= _SAME:
        verdict = "faster" if ratio > 1 else "slower"
    return Comparison(verdict=verdict, ratio=ratio, low=low, high=high, u=u, p=p, counts=counts)


def _mann_whitney(first: Numbers, second: Numbers) -> tuple[float, float]:
    """Return U of the first sample and the two-sided p value; equal values share their mean rank."""
    _, place, ties = np.unique(np.concatenate([first, second]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    n, m = first.size, second.size
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    total = n + m
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (total * (total - 1))
    deviation = math.sqrt(n * m / 12 * (total + 1 - tied))
    if not deviation:  # all samples are equal
        return u, 1.0
    z = max(abs(u - n * m / 2) - 0.5, 0.0) / deviation
    return u, math.erfc(z / math.sqrt(2))
