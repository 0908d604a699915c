"""Time by the compiler's cost model: every moment of a trace belongs to somebody, and to nobody twice."""

import json
import re
from pathlib import Path

import pytest

from deploykit.accuracy.latency import Estimate, OperatorTime, TraceEvent, chrome_trace, operator_times, read_time
from deploykit.errors import UsageError
from tables import each_row
from told import check_file, check_told

HERE = Path(__file__).parent


def event(node: str, thread: str, start: float, duration: float, unit: str = "vector", moved: int = 0) -> TraceEvent:
    return TraceEvent(node=node, thread=thread, start=start, duration=duration, unit=unit, ddr_bytes=moved)  # type: ignore[arg-type]


TRACES: dict[str, list[TraceEvent]] = {
    "two that run at once share the moment": [event("a", "1", 0, 10), event("b", "2", 4, 10)],
    # The first bytes are waited for; those of the next layer come while this one computes, then nothing runs.
    "transfers": [
        event("a", "dma", 0, 6, "dma", 100),
        event("a", "1", 6, 10, "matrix"),
        event("b", "dma", 6, 8, "dma", 50),
        event("b", "1", 20, 5),
    ],
    "two transfers at once": [event("b", "x", 0, 4, "dma", 8), event("a", "y", 0, 2, "dma", 7), event("a", "1", 4, 1)],
    "a kernel that takes no time": [event("a", "1", 0, 0), event("b", "1", 3, 2)],
    "nothing": [],
}


def test_every_moment_belongs_to_an_operator() -> None:
    told = {}
    for name, events in TRACES.items():
        found = operator_times(events)
        assert found == operator_times(events[::-1]), "in any order"
        told[name] = [f"{one.share:g} cycles, {json.dumps(one.to_json(0.5))}" for one in found]
    check_told(HERE / "operators.told", told)


def _estimate(question: str) -> list[str]:
    """Fields of an estimate that are not the usual ones, in JSON; operators are (share, waiting)."""
    fields = json.loads(question)
    rows = enumerate(fields.pop("operators", ()))
    of = [OperatorTime(node=f"n{n}", share=share, waiting=wait, busy={}, ddr_bytes=0) for n, (share, wait) in rows]
    usual = {"time_us": 2390, "lower_us": 999.6, "upper_us": 99.4, "cycles": 3_579_264, "soc_model": "77"}
    found = Estimate(**{**usual, **fields}, operators=tuple(of))
    told = found.to_json()
    return [found.described, f"{found.us_per_cycle:.6g} us per cycle, {len(told['dearest'])} of {len(of)} published"]


def test_an_estimate_in_a_line() -> None:
    check_file(HERE / "estimates.told", _estimate)


def test_a_trace_opens_with_a_row_per_thread_and_ends_with_the_whole() -> None:
    events = (event("a", "dma", 0, 6, "dma", 100), event("a", "1", 6, 10), event("b", "1", 16, 4))
    known = Estimate(time_us=40, lower_us=30, upper_us=50, cycles=20, soc_model="77", chip="the chip", events=events)
    made = chrome_trace(known)
    assert (made["displayTimeUnit"], made["otherData"]) == ("ns", {"what": known.described})
    rows = [(r["name"], r["tid"], r["ts"], r["dur"], r["cat"], r["ph"]) for r in made["traceEvents"][2:]]
    assert made["traceEvents"][:2] == [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}}
        for number, name in enumerate(("1", "dma"))
    ]
    assert rows == [("a", 0, 12, 20, "vector", "X"), ("b", 0, 32, 8, "vector", "X"), ("a", 1, 0, 12, "dma", "X")]
    assert made["traceEvents"][-1]["args"] == {"kernel": "", "ddr_bytes": 100}


@each_row(("text", "us"), ("", 0), ("5ms", 5000), ("800us", 800), ("0.2 s", 200_000), ("3", 3000), (" 7 ", 7000))
def test_a_time_is_read_as_people_write_it(text: str, us: float) -> None:
    assert read_time(text) == us
    for wrong in ("0", "0.0ms", "5 min", "-3", "1e3"):
        with pytest.raises(UsageError, match=f"--x {re.escape(wrong)}: no time"):
            read_time(wrong, "--x")
