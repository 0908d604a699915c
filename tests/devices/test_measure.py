"""Statistics of raw times, held against a plain second computation of each."""

import math
import random
import statistics
from typing import Any
from xml.etree import ElementTree

import pytest

from deploykit.devices.measure import faster, summarize
from deploykit.errors import InputError, ToolError
from deploykit.report.for_ci import junit_text, run_cases
from tables import each_row


def drawn(count: int, middle: float, seed: int, step: float = 1.0) -> list[float]:
    source = random.Random(seed)
    return [round(source.lognormvariate(math.log(middle), 0.05) / step) * step for _ in range(count)]


@each_row(
    ("first", "second", "verdict"),
    (drawn(200, 5000, 1), drawn(200, 5500, 2), "faster"),
    (drawn(200, 5500, 1), drawn(200, 5000, 2), "slower"),
    (drawn(200, 5000, 1), drawn(200, 5000, 2), "no difference"),
    # Surely longer, and by less than two starts of one program differ.
    ([5000.0 + at % 3 for at in range(300)], [5050.0 + at % 3 for at in range(300)], "no difference"),
    ([5000.0] * 20, [5000.0] * 20, "no difference"),
    ([5000.0] * 20, [9000.0] * 20, "faster"),
    ([5000.0] * 7, [9000.0] * 100, "not judged"),
    ([5000.0 + at % 3 for at in range(300)], [5125.0 + at % 3 for at in range(300)], "faster"),
    ([5000.0 + at for at in range(8)], [9000.0 + at for at in range(8)], "faster"),
    # One late sample out of twenty moves the mean and says nothing.
    ([5000.0 + at for at in range(20)], [5000.0 + at for at in range(19)] + [90000.0], "no difference"),
)
def test_faster_is_said_where_it_is_so(first: list[float], second: list[float], verdict: str) -> None:
    found = faster(first, second)
    assert found.verdict == verdict
    assert verdict.split()[0] in found.words or verdict == "not judged"
    assert found.to_json()["counts"] == [len(first), len(second)]


def test_the_numbers_of_samples_are_those_of_plain_statistics() -> None:
    samples = [12.0, 5.0, 8.0, 30.0, 9.0, 7.0, 6.0, 11.0, 10.0, 100.0, 13.0]
    told = summarize(samples).to_json()
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    hundredths = statistics.quantiles(samples, n=100, method="inclusive")
    wanted = {"min_us": 5.0, "median_us": 10.0, "p90_us": tenths[-1], "p99_us": hundredths[-1], "max_us": 100.0}
    wanted |= {"mean_us": statistics.mean(samples), "std_us": statistics.stdev(samples)}
    wanted |= {"per_second": len(samples) / sum(samples) * 1e6, "count": len(samples)}
    assert {name: told[name] for name in wanted} == pytest.approx(wanted)
    found = faster(samples, [2 * one for one in samples])
    assert found.to_json()["ratio"] == pytest.approx(2.0) and found.low and found.high
    again = random.Random(1)
    medians = [statistics.median(again.choices(samples, k=11)) for _ in range(4000)]
    ratios = sorted(2 * second / first for first, second in zip(medians[::2], medians[1::2], strict=True))
    assert (found.low, found.high) == pytest.approx((ratios[50], ratios[-50]), rel=0.15)


def test_a_device_that_throttles_is_told() -> None:
    steady = drawn(300, 5000, 3)
    assert summarize(steady).trend.words == "" and "throttling" not in summarize(steady).described
    hot = [one * (1 + at / 1000) for at, one in enumerate(steady)]
    assert "throttling" in summarize(hot).described and summarize(hot).trend.ratio == pytest.approx(1.2, abs=0.05)
    assert "more warm-up" in summarize(hot[::-1]).described and summarize(hot[:20]).trend.p is None
    for slower, is_told in ((6000, False), (3000, True)):
        warm = [one * (1 + at / slower) for at, one in enumerate(steady)]
        assert ("throttling" in summarize(warm).described) is is_told


@pytest.mark.parametrize(
    "samples",
    [[], [5.0, -3.0], [5.0, 0.0], [5.0, math.nan], [math.inf], ["soon"], [5.0] * 10 + [3.6e9], [[1.0], [2.0, 3.0]]],
)
def test_times_that_no_clock_measured_are_refused(samples: list[float]) -> None:
    with pytest.raises(ToolError, match="device measured"):
        summarize(samples, within_s=60.0)
    if samples[1:2] != [5.0]:
        with pytest.raises(InputError):
            faster(samples, [1.0])


@each_row(
    ("right", "held", "kinds"),
    ("yes", True, [None, None, None]),
    ("no", False, ["failure", None, "failure"]),
    ("not judged", None, ["skipped", None]),
)
def test_a_record_becomes_rows_that_a_server_shows(right: str, held: bool | None, kinds: list[str | None]) -> None:
    latency = summarize(drawn(50, 5000, 1)).to_json()
    budget = None if held is None else {"p90_us": 6000.0, "held": held}
    record: dict[str, Any] = {"where": "dev\x00ice", "right": {"right": right}, "latency": latency, "budget": budget}
    suite = ElementTree.fromstring(junit_text("runs", {"out": run_cases(record)}))[0]
    rows = [next((told.tag for told in row if told.tag != "system-out"), None) for row in suite]
    assert rows == kinds
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == [
        str(len(kinds)),
        str(kinds.count("failure")),
        str(kinds.count("skipped")),
    ]
    assert float(suite[1].get("time") or 0) == pytest.approx(latency["median_us"] / 1e6, rel=1e-4)
