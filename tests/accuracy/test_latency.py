"""Time by the compiler's cost model: every moment of a trace belongs to somebody, and to nobody twice."""

import pytest

from deploykit.accuracy.latency import Estimate, TraceEvent, chrome_trace, operator_times, read_time


def event(node: str, thread: str, start: float, duration: float, unit: str = "vector", moved: int = 0) -> TraceEvent:
    return TraceEvent(node=node, thread=thread, start=start, duration=duration, unit=unit, ddr_bytes=moved)  # type: ignore[arg-type]


def test_operators_that_run_at_once_share_the_moment() -> None:
    found = {item.node: item for item in operator_times([event("a", "1", 0, 10), event("b", "2", 4, 10)])}
    assert found["a"].share == 4 + 3 and found["b"].share == 3 + 4
    assert found["a"].waiting == found["b"].waiting == 0


def test_a_transfer_counts_only_while_nothing_computes() -> None:
    """The first bytes are waited for; those of the next layer come while this one computes."""
    events = [event("a", "dma", 0, 6, "dma", 100), event("a", "1", 6, 10), event("b", "dma", 6, 8, "dma", 50)]
    found = {item.node: item for item in operator_times([*events, event("b", "1", 20, 5)])}
    assert (found["a"].share, found["a"].waiting, found["a"].ddr_bytes) == (16, 6, 100)
    assert (found["b"].share, found["b"].waiting) == (9, 4)  # nothing runs from 16 to 20: b is what is waited for
    assert found["b"].busy == {"dma": 8, "vector": 5}
    told = found["b"].to_json(0.5)
    assert (told["time_us"], told["waiting_us"], told["busy_us"]) == (4.5, 2.0, {"dma": 4.0, "vector": 2.5})


def test_operators_without_a_cost_make_it_a_least_time() -> None:
    known = Estimate(time_us=2390, lower_us=2280, upper_us=2510, cycles=3_579_264, soc_model="77")
    assert known.described == (
        "about 2.39 ms on the accelerator (2.28 ms to 2.51 ms), by the compiler's own model for 77"
    )
    partly = Estimate(time_us=593, lower_us=548, upper_us=645, cycles=888_997, soc_model="77", missing_ops=10)
    assert partly.described.startswith("at least 593 us") and "10 operators have no cost in it" in partly.described


def test_a_trace_opens_with_a_row_per_thread_and_ends_with_the_whole() -> None:
    events = (event("a", "dma", 0, 6, "dma", 100), event("a", "1", 6, 10), event("b", "1", 16, 4))
    known = Estimate(time_us=40, lower_us=30, upper_us=50, cycles=20, soc_model="77", chip="the chip", events=events)
    trace = chrome_trace(known)["traceEvents"]
    assert [row["args"]["name"] for row in trace if row["ph"] == "M"] == ["1", "dma"]
    shown = [(row["name"], row["tid"], row["ts"], row["dur"]) for row in trace if row["ph"] == "X"]
    assert shown == [("a", 0, 12, 20), ("b", 0, 32, 8), ("a", 1, 0, 12)]
    assert trace[-1]["args"] == {"kernel": "", "ddr_bytes": 100}


@pytest.mark.parametrize(("text", "us"), [("", 0), ("5ms", 5000), ("800us", 800), ("0.2 s", 200_000), ("3", 3000)])
def test_a_time_is_read_as_people_write_it(text: str, us: float) -> None:
    assert read_time(text) == us
