"""Limits of memory and time, folders, and programs that are started."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from deploykit.errors import UsageError
from deploykit.model import running
from deploykit.model.running import CpuSession
from deploykit.system.limits import (
    VARIABLE,
    free_memory,
    guarded_memory,
    limited_time,
    memory_budget,
    read_size,
    share_timeouts,
    with_memory,
)
from deploykit.system.processes import run
from tables import each_row
from text_models import text_model


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
    with share_timeouts():
        assert quick.run(None, feed)
        with pytest.raises(TimeoutError):
            slow.run(None, {"x": np.ones((1, 1, 600, 600), np.float32)})
        with share_timeouts(), pytest.raises(TimeoutError, match="earlier"):
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


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("4T", 4 << 40), ("1.5 GiB", 3 << 29), ("512m", 512 << 20), ("2KB", 2048)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert read_size(text) == size


@each_row("text", "", "0", "-1", "3X", "G", "1e9", "nan", "0.1", "9" * 400, "9999999T")
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no amount of memory"):
        read_size(text)


def test_a_budget_holds_inside_and_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "5K")
    with with_memory("3K"):
        assert memory_budget() == 3072
        with with_memory(None):
            assert memory_budget() == 3072
    assert memory_budget() == 5120
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UsageError), with_memory("much"):
        pass
    assert 0 < memory_budget() <= free_memory() * 0.7


def test_the_tightest_group_counts_and_its_file_caches_are_free(tmp_path: Path) -> None:
    machine = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   1000 kB", "proc/self/cgroup": "0::/a/b"}
    group: dict[str, object] = {"a/memory.max": 600 << 10, "a/memory.current": 500 << 10, "a/b/memory.max": "max"}
    group |= {"a/memory.stat": f"anon 1\ninactive_file {50 << 10}", "a/b/memory.current": 1}
    groups = {f"sys/fs/cgroup/{name}": text for name, text in group.items()}
    for texts, free in ((machine, 1000 << 10), (groups, 150 << 10)):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n", "ascii")
        assert free_memory(tmp_path) == free


PROGRAM = """
import os, signal, sys
from pathlib import Path
from deploykit.cli.frame import Ended, _ended_by_signals
from deploykit.system.files import write_files
from deploykit.system.folders import workspace

place, what, at, seen = Path(sys.argv[1]), sys.argv[2], 0, 0
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.scandir", "fcntl.flock"}

def look(event, of):
    global seen
    if event in EVENTS:
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGTERM)

def folder():
    with workspace(place, "out") as made:
        (made / "new").mkdir()
        (made / "new" / "file").write_text("text")
        (made / "new").rename(place / "out")
        (made / "more").write_text("text")

def files():
    write_files({place / "a": "a", place / "b": "b"}, force=True)

def tell():
    sys.addaudithook(look)
    try:
        with _ended_by_signals():
            {"folder": folder, "files": files}[what]()
    except Ended:
        return 143
    return 0 if seen < at else 9

# What is at work is imported once; every moment has a fork of its own.
status = None
while status != 0:
    at += 1
    place = Path(sys.argv[1], str(at))
    place.mkdir()
    child = os.fork()
    if not child:
        os._exit(tell())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = [path.name for path in place.iterdir() if path.name.startswith(".")]
    if status not in (0, 143) or left:
        sys.exit(f"moment {at}: status {status}, left {left}")
sys.exit(0 if at > 5 else "too few moments")
"""


@pytest.mark.parametrize("what", ["folder", "files"])
def test_a_signal_at_any_moment_leaves_nothing_hidden(what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), what], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_status_and_a_signal_are_told_apart() -> None:
    for code, status in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 11)", -11)):
        assert run([sys.executable, "-c", code]).returncode == status


def test_a_program_that_hangs_is_ended_with_its_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    done = run([sys.executable, "-c", code], timeout=1.0)
    assert done.timed_out and not done.ok
