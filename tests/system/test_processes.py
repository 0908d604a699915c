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
    done = run(
        python("import sys; print('out', flush=True); print('err', file=sys.stderr)"),
        log=tmp_path / "log",
        on_line=lines.append,
    )
    assert done.ok
    assert lines == ["out", "err"]
    assert done.tail == ("out", "err")
    assert (tmp_path / "log").read_text() == "out\nerr\n"
    assert done.peak_rss_mb is not None
    assert done.peak_rss_mb > 1


def test_a_status_and_a_signal_are_told_apart() -> None:
    assert run(python("raise SystemExit(3)")).returncode == 3
    assert run(python("import os; os.kill(os.getpid(), 11)")).returncode == -11


def test_a_program_that_hangs_is_ended_with_its_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    done = run(python(code), timeout=1.0)
    assert done.timed_out
    assert not done.ok


def test_a_program_that_is_not_there_is_a_tool_error() -> None:
    with pytest.raises(ToolError, match="cannot be started"):
        run(["/no/such/program"])


def test_bytes_that_are_no_text_do_not_hurt() -> None:
    done = run(python(r"import sys; sys.stdout.buffer.write(b'\xff\xfe\n')"))
    assert done.ok
    assert len(done.tail) == 1


def test_the_environment_is_added_to(tmp_path: Path) -> None:
    done = run(python("import os; print(os.environ['WANTED'], os.getcwd())"), env={"WANTED": "yes"}, cwd=tmp_path)
    assert done.tail == (f"yes {tmp_path}",)
