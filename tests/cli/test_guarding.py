"""A command runs in a child: a library that ends the process is answered, and every other end is as without it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only there a command has a child")
PROGRAM = """
import os, signal, sys, time
from deploykit.cli.frame import guarded

# Ignored where the tests run in the background of a shell, or under nohup.
signal.signal(signal.SIGINT, signal.default_int_handler)

def wait():
    times = 0
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if not times:
                print(os.getpid(), flush=True)
            time.sleep(0.5 if times else 60)
            break
        except KeyboardInterrupt:
            times += 1
    print("interrupted", times, flush=True)
    return 130

def told(what):
    return {"abort": os.abort, "fault": lambda: os.kill(os.getpid(), signal.SIGSEGV), "wait": wait}.get(what) or (
        lambda: int(what)
    )

sys.exit(guarded(told(sys.argv[1])))
"""


def _words(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *arguments]


@pytest.mark.parametrize(("how", "name"), [("abort", "SIGABRT"), ("fault", "SIGSEGV")])
def test_a_library_that_ends_the_process_is_an_error_with_its_status(how: str, name: str) -> None:
    done = subprocess.run(_words(how, "--json"), capture_output=True, text=True, check=False)
    assert done.returncode == 5
    error = json.loads(done.stdout)["error"]
    assert (error["exit_status"], name in error["what"]) == (5, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("status", [0, 70])
def test_a_status_is_handed_on(status: int) -> None:
    assert subprocess.run(_words(str(status)), check=False).returncode == status


def _started() -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(_words("wait"), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def _gone(pid: int) -> bool:
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_ends_the_parent_ends_the_child(how: signal.Signals) -> None:
    parent, child = _started()
    assert child != parent.pid
    os.kill(parent.pid, how)
    parent.communicate(timeout=20)
    assert parent.returncode == -how
    assert _gone(child)


def test_an_interrupt_that_a_program_sends_reaches_the_child() -> None:
    parent, _child = _started()
    os.kill(parent.pid, signal.SIGINT)
    assert parent.communicate(timeout=20)[0] == "interrupted 1\n" and parent.returncode == 130


def test_an_interrupt_from_the_terminal_reaches_the_child_once() -> None:
    """The terminal tells the whole group; handed on as well, the second one would break off the clearing up."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, _words("wait"))
    seen = b""
    while b"\n" not in seen:
        seen += os.read(terminal, 100)
    os.write(terminal, b"\x03")
    while seen.count(b"\n") < 2:
        seen += os.read(terminal, 100)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"interrupted 1" in seen
    assert os.waitstatus_to_exitcode(status) == 130
