"""Work in a child process: judged by what it leaves and by what it logs, shown as a bar, ended in time."""

import json
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from deploykit.errors import ToolError
from deploykit.system.folders import is_locked, waiting_for
from deploykit.system.jobs import RESULT, Job, finished_job, run_job
from tables import each_row

WRITE = """
import hashlib, json, pathlib
pathlib.Path('made').write_text('seven')
result = {'ok': True, 'outputs': {'made': hashlib.sha256(b'seven').hexdigest()}}
"""
DONE = WRITE + "pathlib.Path('result.json').write_text(json.dumps(result))\n"


def run(folder: Path, program: str, *, timeout: float | None = 60.0) -> list[str]:
    news: list[str] = []
    folder.mkdir(exist_ok=True)
    job = Job(title="tool", folder=folder, argv=(sys.executable, "-c", program))
    run_job(job, progress=news.append, timeout=timeout)
    return news


def test_a_job_that_ended_well_is_found_again_until_a_file_changes(tmp_path: Path) -> None:
    assert finished_job(tmp_path) is None
    run(tmp_path, DONE)
    found = finished_job(tmp_path)
    assert found is not None and found["outputs"] == {"made": sha256(b"seven").hexdigest()}
    (tmp_path / "made").write_text("eight")
    assert finished_job(tmp_path) is None


def test_progress_is_a_bar_and_everything_else_is_only_logged(tmp_path: Path) -> None:
    told = "".join(
        f"print({json.dumps(json.dumps(line))})\n"
        for line in (
            {"progress": "reading"},
            {"progress": "run", "done": 5, "of": 20},
            {"progress": "end", "done": 2, "of": 2},
        )
    )
    news = run(tmp_path, told + "print('chatter')\n" + DONE)
    assert news == ["tool: reading", "tool: run 5/20", "tool: end 2/2"]
    assert "chatter" in (tmp_path / "log.txt").read_text("utf-8")


@each_row(
    ("program", "what", "why"),
    ("raise SystemExit(3)", "ended with status 3 and left no result", ""),
    ("print('all is well')", "left no result", "all is well"),
    (DONE.replace("'ok': True", "'ok': False, 'error': 'no data'"), "failed", "no data"),
    (DONE.replace("'ok': True", "'ok': True, 'errors_logged': ['tool: gave up']"), "logged an error: tool: gave", ""),
    (DONE + "pathlib.Path('made').unlink()\n", "is not there", ""),
    (DONE.replace("'outputs': {", "'outputs': {} and {"), "is not there", ""),
    (DONE.replace("write_text(json.dumps(result))", "write_text('{')"), "left no result", ""),
)
def test_a_failure_is_seen_in_whatever_way_it_shows(tmp_path: Path, program: str, what: str, why: str) -> None:
    run(tmp_path, DONE)
    with pytest.raises(ToolError) as failed:
        run(tmp_path, program)
    assert what in failed.value.what and why in failed.value.why
    assert str(tmp_path / "log.txt") in failed.value.next
    assert not (tmp_path / RESULT).exists(), "what failed would be taken for done"


def test_a_lock_is_waited_for_and_free_again(tmp_path: Path) -> None:
    told, order = threading.Event(), []
    with waiting_for(tmp_path / "a", waiting=lambda: None):
        assert is_locked(tmp_path / "a")

        def second() -> None:
            with waiting_for(tmp_path / "a", waiting=told.set):
                order.append("second")

        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert not is_locked(tmp_path / "a")
