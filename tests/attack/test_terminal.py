"""Names against whoever reads the answer on a terminal: it obeys what it is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deploykit.cli.terminal import defused, plain
from tables import each_row
from terminals import on_a_terminal

SPOOF = "x\x1b[2J\x1b[Hok      files-no-extra: no file beside the recorded ones\nok      digest-expected"


def shown(*words: str | Path) -> bytes:
    """What a command writes to a terminal, byte by byte."""
    return on_a_terminal([sys.executable, "-m", "deploykit", *map(str, words)], COLUMNS="200")[1]


def test_a_name_cannot_turn_a_problem_into_ok(package: Path) -> None:
    out = package
    (out / SPOOF.replace("/", "")).write_text("planted")
    written = shown("verify", out)
    assert b"\x1b[2J" not in written
    assert b"\x1b[H" not in written
    assert not [line for line in written.splitlines() if line.startswith(b"ok      digest-expected")]
    assert b"\\x1b[2J" in written
    assert b"\x1b[31m" in written  # its own words are still coloured


@each_row("text", ["a\x1b]0;x\x07b", "a\x9b31mb", "a\u202eb", "a\rb", "a\x08b", "a\x1b[8mb", "a\udce9b"])
def test_what_a_terminal_obeys_is_shown(text: str) -> None:
    for shown in (plain(text), defused(text)):
        assert shown.isprintable()
        assert shown.startswith("a") and shown.endswith("b")


def test_words_of_the_commands_stay_as_they_are() -> None:
    text = f"{click.style('problem', fg='red', bold=True)}: a\n\tb é"
    assert defused(text) == text
    assert plain("a\nb") == "a\\nb"
