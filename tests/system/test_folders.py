"""Workspaces: nothing is left of one, whenever the signal comes that ends the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from pathlib import Path
from deploykit.cli.frame import Ended, _ended_by_signals
from deploykit.system.files import write_files
from deploykit.system.folders import workspace

place, what, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seen = 0
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

sys.addaudithook(look)
try:
    with _ended_by_signals():
        {"folder": folder, "files": files}[what]()
except Ended:
    sys.exit(143)
sys.exit(0 if seen < at else 9)
"""


@pytest.mark.parametrize("what", ["folder", "files"])
def test_a_signal_at_any_moment_leaves_nothing_hidden(what: str, tmp_path: Path) -> None:
    statuses: list[int] = []
    while 0 not in statuses:
        place = tmp_path / str(len(statuses))
        place.mkdir()
        words = [sys.executable, "-c", PROGRAM, str(place), what, str(len(statuses) + 1)]
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert done.returncode in (0, 143), done.stderr
        assert not [path.name for path in place.iterdir() if path.name.startswith(".")], len(statuses)
        statuses.append(done.returncode)
    assert len(statuses) > 5
