"""A reader can follow one request: what the demo calls is bounded, in modules, functions and calls inside of calls."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = {"modules": 140, "functions": 1285, "depth": 27, "first_prepare": 9}
"""What is reached; the way is down: 950 functions."""

# Bodies of classes count as functions: what is imported for nothing is read for nothing.
PROGRAM = """
import json, runpy, sys, threading, time
time.monotonic = lambda: 0.0  # no news of slow work, however busy the machine is
out, *roots = sys.argv[1:]
sys.path[:0] = roots[1:]
found, now, deepest, prepared = set(), [0], [0], []
def hook(frame, event, arg):
    code = frame.f_code
    if not code.co_filename.startswith(tuple(roots)) or threading.current_thread() is not threading.main_thread():
        return
    if event == "return":
        now[0] -= 1
    elif event == "call":
        now[0] += 1
        deepest[0] = max(deepest[0], now[0])
        if not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        if code.co_name == "prepare" and not prepared:
            prepared.append(now[0])
def leave():
    sys.setprofile(None)
    if prepared:
        counts = {"modules": len({file for file, *_ in found}), "functions": len(found), "depth": deepest[0]}
        print(json.dumps({**counts, "first_prepare": prepared[0]}), file=sys.stderr, flush=True)
sys.argv = ["deploykit", "demo", "-o", out]
sys.setprofile(hook)
try:
    runpy.run_module("deploykit", run_name="__main__", alter_sys=True)
finally:
    leave()
"""


@pytest.mark.heavy
def test_what_the_demo_calls_is_bounded(tmp_path: Path) -> None:
    roots = [f"{ROOT / name}/" for name in ("deploykit", "backends", "templates")]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "out"), *roots]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(next(line for line in done.stderr.splitlines() if line.startswith('{"modules"')))
    assert {name: count for name, count in counts.items() if count > MOST[name]} == {}
