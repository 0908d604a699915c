"""A record of a run is computed again from its raw samples, by a script that shares nothing with the product."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import deploykit

SCRIPT = """
import json, math, sys
import numpy as np  # for the random numbers of the interval alone

def percentile(values, part):
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)

def median(values):
    return percentile(values, 0.5)

now, before = (json.load(open(path)) for path in sys.argv[1:])
told, a, b = now["latency"], now["latency"]["samples_us"], before["latency"]["samples_us"]
found = {"min_us": min(a), "median_us": median(a), "p90_us": percentile(a, 0.9), "p99_us": percentile(a, 0.99)}
mean = sum(a) / len(a)
found |= {"max_us": max(a), "mean_us": mean, "per_second": len(a) / sum(a) * 1e6}
found["std_us"] = math.sqrt(sum((one - mean) ** 2 for one in a) / (len(a) - 1))
for name, value in found.items():
    assert math.isclose(told[name], value, rel_tol=1e-9), name
assert told["count"] == len(a)

test = now["against"]
n, m = len(a), len(b)
u = sum((x > y) + (x == y) / 2 for x in a for y in b)
ties = {value: (a + b).count(value) for value in set(a + b)}
tied = sum(count**3 - count for count in ties.values()) / ((n + m) * (n + m - 1))
z = max(abs(u - n * m / 2) - 0.5, 0) / math.sqrt(n * m / 12 * (n + m + 1 - tied))
assert math.isclose(test["u"], u) and math.isclose(test["p"], math.erfc(z / math.sqrt(2)), rel_tol=1e-6)
assert math.isclose(test["ratio"], median(b) / median(a))
drawn = np.random.default_rng(0)
firsts = [median([a[at] for at in drawn.integers(0, n, n)]) for _ in range(2000)]
ratios = [median([b[at] for at in drawn.integers(0, m, m)]) / first for first in firsts]
assert math.isclose(test["low"], percentile(ratios, 0.025)) and math.isclose(test["high"], percentile(ratios, 0.975))
"""


def test_every_number_of_a_record_follows_from_its_samples(plain: Path, tmp_path: Path) -> None:
    records = []
    for number, against in enumerate([None, plain]):
        report = deploykit.run(plain, on="local", iterations=60, warmup=2, seconds=5.0, against=against)
        (tmp_path / f"{number}.json").write_text(json.dumps(report.to_json()), "utf-8")
        records.append(str(tmp_path / f"{number}.json"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *reversed(records)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
