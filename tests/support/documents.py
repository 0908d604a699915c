"""Reads a page of the documentation for what a reader would type, and types it.

A fenced block of ``sh`` or ``python`` is run, in the page's order and in one folder, unless the line before it says in
the page, for the reader too, why not: ``*Not run by the tests: …*``. What a command is said to answer stands in a
``text`` block behind it. Indented command lines and blocks that are not run are forms: only their words are checked.
"""

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from deploykit.cli import cli
from deploykit.cli.frame import BranchingCommand, run

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_REASON = re.compile(r"^\*Not run by the tests: (.+)\*$")
_STATUS = re.compile(r"#\s*status (\d+)\s*$")
_FILE = re.compile(r"# (\w+\.py)\n")
_FORM = re.compile(r"^ {4}(deploykit .*)$", re.MULTILINE)
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: its language, its text, and why it is not run ("" where it is)."""

    language: str
    text: str
    reason: str = ""


def blocks_of(page: str) -> tuple[Block, ...]:
    """Every fenced block of a page, in order."""
    return tuple(
        Block(language=found[1], text=found[2], reason=_reason(page[: found.start()]))
        for found in _FENCE.finditer(page)
    )


def _reason(before: str) -> str:
    lines = [line for line in before.splitlines()[-2:] if line]
    found = _REASON.match(lines[-1]) if lines else None
    return found[1] if found else ""


def run_page(page: str) -> None:
    """Run every block in the current folder; AssertionError at the first that ends, or answers, otherwise than told."""
    names: dict[str, Any] = {"__name__": "page"}
    answer = ""
    for block in blocks_of(page):
        if block.reason:
            continue
        if block.language == "sh":
            answer = "".join(map(_run_line, _lines(block.text)))
        elif block.language == "python":
            answer = _run_python(block.text, names)
        elif block.language == "text":
            _compare(block.text, answer)


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def _run_line(line: str) -> str:
    """What one line prints; it must end with the status that the line itself names, 0 without one."""
    wanted = _STATUS.search(line)
    words = shlex.split(line, comments=True)
    words, kept = (words[:-2], Path(words[-1])) if words[-2:-1] == [">"] else (words, None)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        if words[0] == "deploykit":
            status = run(cli, words[1:])
        elif words[0] == "python" and words[1:] and words[1].endswith(".py"):
            runpy.run_path(words[1])
            status = 0
        else:
            command = [sys.executable, *words[1:]] if words[0] == "python" else ["bash", "-euc", line]
            done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
            status = done.returncode
            out.write(done.stdout + done.stderr)
    assert status == (int(wanted[1]) if wanted else 0), f"{line}\n{out.getvalue()}"
    if kept is not None:
        kept.write_text(out.getvalue(), "utf-8")
    return out.getvalue()


def _run_python(text: str, names: dict[str, Any]) -> str:
    """Run a block, or save it as the file that its first line names."""
    saved = _FILE.match(text)
    if saved:
        Path(saved[1]).write_text(text, "utf-8")
        return ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "page", "exec"), names)
    return out.getvalue()


def _compare(told: str, answer: str) -> None:
    """Every line that the page shows stands in the answer, in order; an ellipsis stands for anything."""
    position = 0
    flat = " ".join(answer.split())
    for line in told.splitlines():
        for part in filter(None, (" ".join(part.split()) for part in line.split(_ELLIPSIS))):
            place = flat.find(part, position)
            assert place >= 0, f"the page shows {part!r}, the answer is:\n{answer}"
            position = place + len(part)


def forms_of(page: str) -> Iterator[str]:
    """Command lines that are shown with a reader's own file names, and so are not run."""
    yield from (found.rstrip("\\").strip() for found in _FORM.findall(page))
    for block in blocks_of(page):
        if block.language == "sh" and block.reason:
            yield from (line for line in _lines(block.text) if line.startswith("deploykit "))


def problem_of_form(line: str) -> str:
    """What the command line would say to the words of a form: "" where command and options exist."""
    # Behind two spaces there are words about the command; one in square brackets may be left out.
    words = shlex.split(re.split(r"\s{2,}(?=\S)", line)[0], comments=True)[1:]
    words = [word.strip("[]") for word in words if word != _ELLIPSIS]
    context = click.Context(cli, info_name="deploykit")
    command: click.Command = cli
    name = ""
    while isinstance(command, click.Group):
        name = words.pop(0) if words else ""
        below = command.get_command(context, name)
        if below is None:
            return f"there is no command {name!r}"
        command = below
    if isinstance(command, BranchingCommand) and words and words[0] in command.branches:
        name = words.pop(0)
        command = command.branches[name]
    # With its own settings: click keeps the help option made for the first context that asks.
    context = click.Context(command, **command.context_settings)
    known = {flag for parameter in command.get_params(context) for flag in (*parameter.opts, *parameter.secondary_opts)}
    free = command.context_settings.get("ignore_unknown_options", False)
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    strange = [flag for flag in flags if flag not in known]
    return "" if free or not strange else f"{name} has no {', '.join(strange)}"
