"""News of long work: which step, what is waited for and how long; one line on a terminal, few lines in a log."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping

import click
import pytest

from deploykit.cli.frame import Settings
from deploykit.cli.terminal import elapsed, table
from deploykit.system.jobs import Begun
from terminals import on_a_terminal

WORK = """
import sys, time
from deploykit.cli import terminal as module
from deploykit.system.jobs import Begun
module._PATIENCE, module._AGAIN, module._TICK, module._FIRST = 0.1, 0.15, 0.03, 0.02
with module.progress() as tell:
    tell(Begun("[1/2] deciding"))
    tell("trying \\x1b[2Jfallback " + "x" * int(sys.argv[1]))
    time.sleep(0.3)
    for piece in range(9):
        tell(f"piece {piece}")
    tell.say("\\x1b[32mone\\x1b[0m result" if len(sys.argv) > 2 else "one result")
    tell(Begun("[2/2] verifying"))
    time.sleep(0.1)
print("the answer")
"""


def at_work(**more: str) -> str:
    argv = [sys.executable, "-c", WORK, "300"]
    status, written = on_a_terminal(argv, COLUMNS="60", PYTHONIOENCODING="utf-8", **more)
    assert status == 0
    return written.decode()


def test_a_terminal_shows_the_step_its_wait_and_the_time_in_one_line() -> None:
    written = at_work(NO_COLOR="1")
    shown = [part.rstrip("\r\n") for part in written.split("\r\x1b[2K")]
    assert shown[-1] == "the answer", "nothing of it is left before the answer"
    assert "one result" in shown and "\x1b[2J" not in written, "names cannot move the cursor"
    lines = [line for line in shown if line.startswith("[")]
    assert all(len(line) < 60 and " · 0 s" in line for line in lines) and any("…" in line for line in lines)
    assert [line[:3] for line in lines if "[2/2] verifying" in line]
    assert any(line.startswith("[1/2] deciding: trying") and line.endswith(" · 0 s") for line in lines)
    assert not re.search(r"\x1b\[[0-9;]*m", written)


def test_a_dumb_terminal_gets_plain_lines() -> None:
    assert "\x1b" not in at_work(TERM="dumb")


def piped(**more: str) -> tuple[str, str]:
    argv = [sys.executable, "-c", WORK, "0", "coloured"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, **more})
    return done.stdout, done.stderr


def test_a_log_gets_a_plain_line_for_what_takes_long_and_the_answer_stays_clean() -> None:
    out, err = piped()
    assert out == "the answer\n"
    assert "\x1b" not in err and "\r" not in err
    lines = err.splitlines()
    assert [line for line in lines if "trying fallback" in line][:2], "first when it takes long, then now and then"
    assert lines.index("one result") < lines.index("[2/2] verifying (0 s)")
    assert len(lines) <= 6, "a log is not flooded"


def test_short_work_leaves_no_line_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    from deploykit.cli import terminal as module

    with module.progress() as tell:
        tell("looking at this machine")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("given", [{"json": True}, {"verbosity": -1}], ids=["json", "quiet"])
def test_json_and_quiet_are_silent(
    given: Mapping[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deploykit.cli import terminal as module

    monkeypatch.setattr("deploykit.cli.frame.settings", lambda: Settings(**given))  # type: ignore[arg-type]
    with module.progress() as tell:
        tell(Begun("[1/1] deciding"))
        tell.say("why nothing moves")
    err = capsys.readouterr().err
    assert "deciding" not in err and ("why nothing moves" in err) is ("json" in given)


def test_time_reads_like_time() -> None:
    assert [elapsed(seconds) for seconds in (0.9, 59.9, 65, 7380)] == ["0 s", "59 s", "1:05", "2:03:00"]


def test_a_table_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = table([("first", "second", "many words " * 20)], header=("one", "two", "three")).splitlines()
    assert 46 < max(map(len, map(click.unstyle, lines))) <= 50
