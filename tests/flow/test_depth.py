"""A reader can follow one request: few frames lie between the command line and the first call of a backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MOST_FRAMES = 9

PROGRAM = """
import sys, traceback
from deploykit.backend.plugins import load_backend
kind = type(load_backend("qnn-htp"))
real = kind.prepare
def prepare(self, situation, shared):
    own = [frame for frame in traceback.extract_stack() if "/deploykit" in frame.filename]
    print(len(own), *(f"{frame.filename}:{frame.name}" for frame in own), sep="\\n", file=sys.stderr)
    return real(self, situation, shared)
kind.prepare = prepare
from deploykit.cli import main
sys.argv = ["deploykit", "demo", "-o", sys.argv[1]]
main()
"""


def test_few_frames_lie_between_the_command_line_and_the_first_prepare(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    count, *frames = (line for line in done.stderr.splitlines() if line.isdecimal() or line.startswith("/"))
    assert int(count) <= MOST_FRAMES, frames
