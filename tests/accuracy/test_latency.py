"""Time by the compiler's cost model: every moment of a trace belongs to somebody, and to nobody twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploykit.accuracy.latency import Estimate, TraceEvent, operator_times


def event(node: str, thread: str, start: float, duration: float, unit: str = "vector", moved: int = 0) -> TraceEvent:
    return TraceEvent(node=node, thread=thread, start=start, duration=duration, unit=unit, ddr_bytes=moved)  # type: ignore[arg-type]


def test_operators_that_run_at_once_share_the_moment() -> None:
    found = {item.node: item for item in operator_times([event("a", "1", 0, 10), event("b", "2", 4, 10)])}
    assert found["a"].share == 4 + 3
    assert found["b"].share == 3 + 4
    assert found["a"].waiting == found["b"].waiting == 0


def test_a_transfer_counts_only_while_nothing_computes() -> None:
    """The first bytes are waited for; those of the next layer come while this one computes."""
    events = [event("a", "dma", 0, 6, "dma", 100), event("a", "1", 6, 10), event("b", "dma", 6, 8, "dma", 50)]
    found = {item.node: item for item in operator_times([*events, event("b", "1", 20, 5)])}
    assert (found["a"].share, found["a"].waiting, found["a"].ddr_bytes) == (16, 6, 100)
    assert (found["b"].share, found["b"].waiting) == (9, 4)  # nothing runs from 16 to 20: b is what is waited for
    assert found["b"].busy == {"dma": 8, "vector": 5}


numbers = st.integers(0, 50)
events = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", "dma"]), numbers, numbers), min_size=1, max_size=30
)


@given(events)
def test_all_shares_add_up_to_the_whole(rows: list[tuple[str, str, int, int]]) -> None:
    made = [
        event(node, thread, at, length, "dma" if thread == "dma" else "vector") for node, thread, at, length in rows
    ]
    found = operator_times(made)
    whole = max(e.start + e.duration for e in made) - min(e.start for e in made)
    assert sum(item.share for item in found) == pytest.approx(whole)
    assert all(0 <= item.waiting <= item.share + 1e-9 for item in found)
    assert [item.share for item in found] == sorted((item.share for item in found), reverse=True)


def test_operators_without_a_cost_make_it_a_least_time() -> None:
    known = Estimate(time_us=2390, lower_us=2280, upper_us=2510, cycles=3_579_264, chip="77")
    assert known.described == (
        "about 2.39 ms on the accelerator (2.28 ms to 2.51 ms), by the compiler's own model for 77"
    )
    partly = Estimate(time_us=593, lower_us=548, upper_us=645, cycles=888_997, chip="77", missing_ops=10)
    assert partly.described.startswith("at least 593 us") and "10 operators have no cost in it" in partly.described
