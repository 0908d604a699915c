"""The command line as a user meets it: global options anywhere, exit statuses, JSON on errors, light start."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploykit.cli import COMMANDS, cli
from deploykit.cli.frame import run

HEAVY = ("onnx", "onnxruntime", "numpy", "jinja2")
ROOMS = ("deploykit.api", "deploykit.flow", "deploykit.model", "deploykit.accuracy", "deploykit.packages")


def traced(*lines: tuple[str, ...], apart: bool = True) -> list[tuple[int, set[str], list[str]]]:
    """Command lines, each in a process of its own or one after the other: status, modules imported, tables read."""
    code = (
        "import json, os, sys\n"
        "from deploykit.cli import cli; from deploykit.cli.frame import run\n"
        "read = []\n"
        "sys.addaudithook(lambda event, of: read.append(str(of[0])) if event == 'open' else None)\n"
        f"for line in {lines!r}:\n"
        f"    if {apart} and os.fork():\n"
        "        os.wait()\n"
        "        continue\n"
        "    status = run(cli, list(line))\n"
        "    tables = [path for path in read if path.endswith('.toml')]\n"
        "    print('\\n@' + json.dumps([status, [*sys.modules], tables]), flush=True)\n"
        f"    if {apart}: os._exit(0)"
    )
    settings = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, encoding="utf-8", check=True)
    told = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@[")]
    assert len(told) == len(lines)
    return [(status, set(modules), tables) for status, modules, tables in told]


def test_help_imports_nothing_heavy_and_reads_no_table() -> None:
    lines = (("--help",), ("--version",), *((name, "--help") for name in COMMANDS))
    for status, modules, tables in traced(*lines, apart=False):
        assert status == 0 and not modules & set(HEAVY) and not tables


BOTH = {"deploykit_qualcomm", "deploykit_vitis_ai"}
QUESTIONS: dict[tuple[str, ...], tuple[set[str], set[str]]] = {
    ("targets", "SM8650"): ({"sm8650"}, {"deploykit_qualcomm"}),
    ("compat", "--sdk", "2.33"): (set(), {*BOTH, "deploykit_ort_qnn"}),
    ("compat", "lpbq", "--target", "sm8650"): ({"sm8650"}, {"deploykit_qualcomm", "deploykit_ort_qnn"}),
    ("compat", "--target", "vek385"): ({"vek385"}, BOTH),
    ("toolchain", "list"): (set(), BOTH),
    ("diagnose", "--known", "bert-hang"): (set(), {*BOTH, "tables"}),
}
"""Of each question the devices and the adapters whose tables answer it."""


def test_a_question_reads_only_the_tables_that_it_needs() -> None:
    for (words, (devices, folders)), (status, modules, tables) in zip(
        QUESTIONS.items(), traced(*QUESTIONS), strict=True
    ):
        assert status == 0, words
        assert not modules & {*HEAVY, "difflib"} and (words[0] == "diagnose" or not modules & set(ROOMS)), words
        assert len(tables) == len(set(tables)), f"{words}: read twice"
        assert {Path(path).stem for path in tables if "/devices/" in path} == devices, words
        assert {Path(path).parts[-1 - _depth(path)] for path in tables} <= folders, words


def _depth(path: str) -> int:
    """How far the adapter's own folder lies above a table in its data."""
    return Path(path).parts[::-1].index("data") + 1


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        assert run(cli, [name, "--help"]) == 0
        out = capsys.readouterr().out
        assert "--json" in out and out.startswith("Usage: deploykit " + name)
    assert set(cli.list_commands(None)) <= set(COMMANDS)  # type: ignore[arg-type]


def test_letters_that_a_terminal_lacks_are_no_reason_to_fail() -> None:
    settings = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    argv = [sys.executable, "-m", "deploykit", "package", "--help"]
    done = subprocess.run(argv, env=settings, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stdout + done.stderr
    assert "…" in done.stdout.decode("utf-8") or b"\\u2026" in done.stdout, "the help has such a letter"


def test_an_error_is_json_too_where_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for asked, words in (("", ["--json"]), ("1", [])):
        monkeypatch.setenv("DEPLOYKIT_JSON", asked)
        assert run(cli, ["check", "--plan", "absent.onnx", "--target", "sm8650", *words]) == 3
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["exit_status"] == 3 and "absent.onnx" in error["what"]


def test_a_defect_is_70_and_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import deploykit.flow.read

    def broken(request: object) -> None:
        raise ZeroDivisionError(str(type(request)))

    monkeypatch.setattr(deploykit.flow.read, "resolve_target", broken)
    assert run(cli, ["check", "--plan", "m.onnx", "--target", "sm8650"]) == 70
    captured = capsys.readouterr()
    assert "defect" in captured.err and "Traceback" not in captured.err
    for more in ("-v", "--verbose"):
        assert run(cli, ["check", "--plan", "m.onnx", "--target", "sm8650", more]) == 70
        assert "Traceback" in capsys.readouterr().err


def test_a_folder_that_is_gone_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deploykit.cli.doctor.examine", lambda _: (tmp_path / "none").stat())
    assert run(cli, ["doctor"]) == 70
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    capsys.readouterr()
    assert run(cli, ["doctor"]) == 6
    assert capsys.readouterr().err.splitlines() == [
        "error: the folder this runs in is gone",
        "  next: change to another",
    ]


@pytest.mark.parametrize(("error", "status"), [(EOFError("marshal data too short"), 70), (KeyboardInterrupt(), 130)])
def test_a_file_that_ends_too_early_is_no_interruption(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("deploykit.flow.pipeline.make_plan", fail)
    assert run(cli, ["check", "--plan", "m.onnx", "--target", "sm8650"]) == status
    assert ("interrupted" in capsys.readouterr().err) is (status == 130)


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m deploykit targets | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_version_says_more_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for args in (["--version"], ["--version", "--verbose"], ["-v", "--version"]):
        assert run(cli, args) == 0
        told.append(capsys.readouterr().out)
    assert told[0].count("\n") == 1 and told[1] == told[2] and told[1].startswith(told[0])
    rows = dict(line.split(" ", 1) for line in told[1].splitlines())
    assert {"python", "machine", "onnx", "onnxruntime", "numpy", "click"} <= set(rows)
    assert not {"mkdocs", "mypy", "pytest", "ruff"} & set(rows), "who only uses it has none of these"
    assert str(Path.home()) not in told[1] and "backend qnn-htp (deploykit " in told[1]


SHELLS = {
    "bash": """
        eval "$(_DEPLOYKIT_COMPLETE=bash_source deploykit)"
        COMP_WORDS=(deploykit pack); COMP_CWORD=1; _deploykit_completion deploykit; echo "${COMPREPLY[*]}"
        COMPREPLY=()
        COMP_WORDS=(deploykit verify --num); COMP_CWORD=2; _deploykit_completion deploykit; echo "${COMPREPLY[*]}"
    """,
    "fish": """
        _DEPLOYKIT_COMPLETE=fish_source deploykit | source
        complete -C 'deploykit pack'; complete -C 'deploykit verify --num'
    """,
    # Completing itself needs a terminal; that it is registered, and what it is then told, does not.
    "zsh": """
        autoload -Uz compinit && compinit -D -u
        eval "$(_DEPLOYKIT_COMPLETE=zsh_source deploykit)"
        [ "$_comps[deploykit]" = _deploykit_completion ] || exit 1
        for typed in 'deploykit pack:1' 'deploykit verify --num:2'; do
            COMP_WORDS=${typed%:*} COMP_CWORD=${typed#*:} _DEPLOYKIT_COMPLETE=zsh_complete deploykit
        done
    """,
}


@pytest.mark.parametrize(("shell", "quiet"), [("bash", "--norc"), ("fish", "--no-config"), ("zsh", "-f")])
def test_shells_complete_commands_and_options(shell: str, quiet: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = tmp_path / "deploykit"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m deploykit \"$@\"\n")
    program.chmod(0o755)
    setting = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    argv = [shell, quiet, "-c", SHELLS[shell]]
    done = subprocess.run(argv, env=setting, capture_output=True, encoding="utf-8", check=False)
    words = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert {"package", "--numerics"} <= set(words) and "plan" not in words
