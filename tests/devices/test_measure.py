"""Statistics of raw times, held against a plain second computation of each."""

import math
import random
import statistics
from pathlib import Path

import pytest

from deploykit.devices.measure import faster, summarize
from deploykit.errors import InputError, ToolError
from told import check_told


def drawn(count: int, middle: float, seed: int, step: float = 1.0) -> list[float]:
    source = random.Random(seed)
    return [round(source.lognormvariate(math.log(middle), 0.05) / step) * step for _ in range(count)]


PAIRS: dict[str, tuple[list[float], list[float]]] = {
    "a tenth longer": (drawn(200, 5000, 1), drawn(200, 5500, 2)),
    "a tenth shorter": (drawn(200, 5500, 1), drawn(200, 5000, 2)),
    "drawn alike": (drawn(200, 5000, 1), drawn(200, 5000, 2)),
    "surely longer, and by less than two starts of one program differ": (
        [5000.0 + at % 3 for at in range(300)],
        [5050.0 + at % 3 for at in range(300)],
    ),
    "equal": ([5000.0] * 20, [5000.0] * 20),
    "constant": ([5000.0] * 20, [9000.0] * 20),
    "2 % longer": ([5000.0] * 20, [5100.0] * 20),
    "2 % shorter": ([5000.0] * 20, [4900.0] * 20),
    "seven": ([5000.0] * 7, [9000.0] * 100),
    "seven of the others": ([5000.0] * 100, [9000.0] * 7),
    "eight": ([5000.0 + at for at in range(8)], [9000.0 + at for at in range(8)]),
    "five of eight longer": ([5000.0 + at for at in range(8)], [4990.0] * 3 + [9000.0] * 5),
    "one late of twenty": ([5000.0 + at for at in range(20)], [5000.0 + at for at in range(19)] + [90000.0]),
}


def test_faster_is_said_where_it_is_so() -> None:
    told = {}
    for name, pair in PAIRS.items():
        found = faster(*pair)
        numbers = (f"{key} {getattr(found, key)!s:.8}" for key in ("ratio", "low", "high", "u", "p"))
        told[name] = [f"{found.verdict}: {found.words}", f"  {found.counts}, {', '.join(numbers)}"]
    check_told(Path(__file__).with_name("faster.told"), told)


def _steady(slower: float = math.inf, count: int = 300) -> list[float]:
    return [one * (1 + at / slower) for at, one in enumerate(drawn(count, 5000, 3))]


def test_times_are_summed_up_and_a_device_that_throttles_is_told() -> None:
    cases = {
        "eleven": [12.0, 5.0, 8.0, 30.0, 9.0, 7.0, 6.0, 11.0, 10.0, 100.0, 13.0],
        "one": [123456.0],
        "23, a third is too few": [5.0] * 8 + [9.0] * 15,
        "24": [5.0] * 8 + [9.0] * 16,
        "5 % slower": [5.0] * 15 + [5.25] * 15,
        "6 % slower": [5.0] * 15 + [5.3] * 15,
        "6 % faster": [5.3] * 15 + [5.0] * 15,
        "4 % faster": [5.2] * 15 + [5.0] * 15,
        "steady": _steady(),
        "hot": _steady(1000),
        "cold": _steady(1000)[::-1],
        "a little hot": _steady(6000),
    }
    told = {}
    for name, samples in cases.items():
        found = summarize(samples, within_s=sum(samples) / 0.999e6)
        trend = f"ratio {found.trend.ratio:.4g}, p {found.trend.p if found.trend.p is None else f'{found.trend.p:.4g}'}"
        told[name] = [
            found.described,
            f"  {found.mean_us:.6g} +- {found.std_us:.6g}, at most {found.max_us:g}, {trend}",
        ]
    check_told(Path(__file__).with_name("latency.told"), told)


def test_times_that_are_longer_than_the_run_are_refused() -> None:
    with pytest.raises(ToolError, match="the times that the device measured are wrong") as caught:
        summarize([5000.0] * 10, within_s=0.049)
    assert caught.value.why == "they add up to 0.05 s, and the whole run took 0.049 s"
    with pytest.raises(ToolError, match="the times that a device measured are wrong") as caught:
        summarize([5.0, 4.0, 0.0])
    assert (caught.value.why, caught.value.next) == ("number 3 of 3 is 0 us", "its clock was set meanwhile: run again")
    with pytest.raises(InputError, match="nothing was measured that could be compared"):
        faster([5.0], [])


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
