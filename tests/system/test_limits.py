"""The time and the memory that one piece of work may take: nested, per thread, for programs and sessions inside."""

from __future__ import annotations

import resource
import sys
import threading
import time
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from deploykit.model import running
from deploykit.model.running import CpuSession
from deploykit.system.limits import guarded_memory, limited_time, one_patience, time_left
from deploykit.system.processes import run
from text_models import text_model


def test_the_tightest_of_nested_bounds_counts_in_its_own_thread() -> None:
    seen: list[float | None] = []
    assert time_left() is None
    with limited_time(1000.0):
        with limited_time(10.0):
            assert 9.0 < (time_left() or 0.0) <= 10.0
            other = threading.Thread(target=lambda: seen.append(time_left()))
            other.start()
            other.join()
        with limited_time(5000.0), limited_time(None):
            assert 990.0 < (time_left() or 0.0) <= 1000.0
    with limited_time(0.0), limited_time(60.0):
        assert time_left() == 0.0, "what is over stays at nothing"
    assert time_left() is None and seen == [None]


@pytest.mark.parametrize("own", [None, 600.0])
def test_a_program_ends_with_the_time_of_its_caller(own: float | None) -> None:
    started = time.monotonic()
    with limited_time(0.5):
        done = run([sys.executable, "-c", "import time; time.sleep(600)"], timeout=own)
    assert done.timed_out and not done.ok
    assert time.monotonic() - started < 60.0


def endless() -> bytes:
    """A loop that negates something for longer than anyone waits; large enough that its own bound is far away."""
    body = "body (int64 i, bool c, float[4] v) => (bool d, float[4] w) { d = Identity (c) w = Neg (v) }"
    stored: dict[str, Any] = {"n": np.array(1 << 62), "t": np.array(True), "ballast": np.zeros(25_000_000, np.float32)}
    model = text_model("float[4] x", f"y = Loop <body = {body}> (n, t, x)", "float[4] y", **stored)
    return bytes(model.SerializeToString())


def test_a_session_ends_with_the_time_of_its_caller() -> None:
    """Its own bound, 5 s for each MB, would let it run for minutes."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = CpuSession(endless(), options)
    started = time.monotonic()
    with limited_time(0.5), pytest.raises(Exception, match="terminate flag"):
        session.run(None, {"x": np.ones(4, np.float32)})
    assert time.monotonic() - started < 60.0


def test_an_operator_that_goes_on_is_left_behind_and_no_other_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime looks who wants it to end between two operators only; this one takes seconds."""
    for name, seconds in (("_LEAST_SECONDS", 0.2), ("_LAST_SECONDS", 0.2), ("_SECONDS_PER_BYTE", 0.0)):
        monkeypatch.setattr(running, name, seconds)
    pool = text_model("float[1,1,600,600] x", "y = AveragePool <kernel_shape = [200, 200]> (x)", "float[1,1,401,401] y")
    small = text_model("float[4] x", "y = Neg (x)", "float[4] y")
    slow, quick = (CpuSession(one.SerializeToString(), ort.SessionOptions()) for one in (pool, small))
    feed = {"x": np.ones(4, np.float32)}
    with one_patience():
        assert quick.run(None, feed)
        with pytest.raises(TimeoutError):
            slow.run(None, {"x": np.ones((1, 1, 600, 600), np.float32)})
        with one_patience(), pytest.raises(TimeoutError, match="earlier"):
            quick.run(None, feed)
    assert quick.run(None, feed)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the system tells no sizes")
def test_a_check_takes_two_gigabytes_at_most_and_programs_inside_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "64G")
    with guarded_memory(checking=True), pytest.raises(MemoryError):
        bytearray(3 << 30)
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "100M")
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY)"
    with guarded_memory():
        with pytest.raises(MemoryError):
            bytearray(200 << 20)
        assert run([sys.executable, "-c", code]).tail == ("True",)
    with guarded_memory(size=100 << 20):
        assert bytearray(200 << 20)


def test_bounds_of_threads_end_in_any_order() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    first, second = guarded_memory(), guarded_memory(size=1 << 20)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
