from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deploykit.errors import ToolError
from deploykit.system.processes import run


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_goes_to_the_callback_the_log_and_the_tail(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import os, sys; print(os.environ['WANTED'], os.getcwd(), flush=True); "
    code += r"sys.stderr.buffer.write(b'\xff\xfe\n')"
    done = run(python(code), log=tmp_path / "log", on_line=lines.append, env={"WANTED": "yes"}, cwd=tmp_path)
    assert done.ok and (done.peak_rss_mb or 0) > 1
    assert lines == list(done.tail) == [f"yes {tmp_path}", "\ufffd\ufffd"]
    assert (tmp_path / "log").read_bytes() == f"yes {tmp_path}\n".encode() + b"\xff\xfe\n"


def test_a_status_and_a_signal_are_told_apart_and_no_program_is_an_error() -> None:
    assert run(python("raise SystemExit(3)")).returncode == 3
    assert run(python("import os; os.kill(os.getpid(), 11)")).returncode == -11
    with pytest.raises(ToolError, match="cannot be started"):
        run(["/no/such/program"])


def test_a_program_that_hangs_is_ended_with_its_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    done = run(python(code), timeout=1.0)
    assert done.timed_out
    assert not done.ok
