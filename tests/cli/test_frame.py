"""The command line as a user meets it: global options anywhere, exit statuses, JSON on errors, light start."""

from __future__ import annotations

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


def traced(*lines: tuple[str, ...]) -> tuple[list[int], set[str], list[str]]:
    """Run command lines in a fresh interpreter: their statuses, the modules it imported, the tables it read."""
    code = (
        "import json, sys\n"
        "read = []\n"
        "sys.addaudithook(lambda event, of: read.append(str(of[0])) if event == 'open' else None)\n"
        "from deploykit.cli import cli; from deploykit.cli.frame import run\n"
        f"status = [run(cli, list(line)) for line in {lines!r}]\n"
        "tables = [path for path in read if path.endswith('.toml')]\n"
        "print('\\n@' + json.dumps([status, [*sys.modules], tables]))"
    )
    settings = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, encoding="utf-8", check=True)
    status, modules, tables = json.loads(done.stdout.rpartition("@")[2])
    return status, set(modules), tables


def test_help_imports_nothing_heavy_and_reads_no_table() -> None:
    status, modules, tables = traced(("--help",), ("--version",), *((name, "--help") for name in COMMANDS))
    assert not any(status)
    assert not modules & set(HEAVY)
    assert not tables


def test_queries_import_nothing_heavy() -> None:
    status, modules, _ = traced(
        ("compat", "encodings-2.0.0"), ("compat", "--json"), ("targets",), ("targets", "sm8650"), ("doctor", "--help")
    )
    assert not any(status)
    assert not modules & set(HEAVY)


@pytest.mark.parametrize(
    ("args", "devices", "folders"),
    [
        (("targets", "sm8650"), {"sm8650"}, {"deploykit_qualcomm"}),
        (("targets", "SM8650"), {"sm8650"}, {"deploykit_qualcomm"}),
        (("targets", "vek385"), {"vek385"}, {"deploykit_vitis_ai", "deploykit_qualcomm"}),
        (("compat",), set(), {"deploykit_qualcomm", "deploykit_ort_qnn", "deploykit_vitis_ai"}),
        (("compat", "--sdk", "2.33"), set(), {"deploykit_qualcomm", "deploykit_ort_qnn", "deploykit_vitis_ai"}),
        (("compat", "lpbq", "--target", "sm8650"), {"sm8650"}, {"deploykit_qualcomm", "deploykit_ort_qnn"}),
        (("compat", "--target", "vek385"), {"vek385"}, {"deploykit_vitis_ai", "deploykit_qualcomm"}),
        (("compat", "--backend", "vitis-ai"), set(), {"deploykit_vitis_ai"}),
    ],
    ids=lambda value: " ".join(value if isinstance(value, tuple) else sorted(value)),
)
def test_a_question_reads_only_the_tables_that_it_needs(
    args: tuple[str, ...], devices: set[str], folders: set[str]
) -> None:
    status, modules, tables = traced(args)
    assert status == [0]
    assert not modules & {*ROOMS, "difflib"}
    assert len(tables) == len(set(tables)), "read twice"
    assert {Path(path).stem for path in tables if "/devices/" in path} == devices
    assert {Path(path).parts[-1 - _depth(path)] for path in tables} <= folders


def _depth(path: str) -> int:
    """How far the adapter's own folder lies above a table in its data."""
    return Path(path).parts[::-1].index("data") + 1


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        assert run(cli, [name, "--help"]) == 0
        out = capsys.readouterr().out
        assert "--json" in out
        assert out.startswith("Usage: deploykit " + name)
    assert set(cli.list_commands(None)) <= set(COMMANDS)  # type: ignore[arg-type]


@pytest.mark.parametrize("args", [["--json", "targets", "sm8650"], ["targets", "--json", "sm8650"]])
def test_global_options_stand_before_and_after_the_command(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, args) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1


@pytest.mark.parametrize("charset", ["ascii:strict", "latin-1:strict"])
def test_letters_that_a_terminal_lacks_are_no_reason_to_fail(charset: str) -> None:
    settings = {**os.environ, "PYTHONIOENCODING": charset}
    argv = [sys.executable, "-m", "deploykit", "package", "--help"]
    done = subprocess.run(argv, env=settings, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stdout + done.stderr
    assert "…" in done.stdout.decode("utf-8") or b"\\u2026" in done.stdout, "the help has such a letter"


def test_an_error_is_json_too_when_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["check", "--plan", "absent.onnx", "--target", "sm8650", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_status"] == 3
    assert "absent.onnx" in error["what"]


def test_options_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEPLOYKIT_CHECK_TARGET", "sm9999")
    assert run(cli, ["check", "--plan", str(tmp_path / "absent.onnx")]) == 4


def test_a_defect_is_70_and_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import deploykit.flow.read

    def broken(request: object) -> None:
        raise ZeroDivisionError(str(type(request)))

    monkeypatch.setattr(deploykit.flow.read, "resolve_target", broken)
    assert run(cli, ["check", "--plan", "m.onnx", "--target", "sm8650"]) == 70
    captured = capsys.readouterr()
    assert "defect" in captured.err
    assert "Traceback" not in captured.err


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


@pytest.mark.parametrize("args", [["--version", "--verbose"], ["-v", "--version"]])
def test_the_version_says_more_for_a_report(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["--version"]) == 0
    short = capsys.readouterr().out
    assert short.count("\n") == 1
    assert run(cli, args) == 0
    told = capsys.readouterr().out
    assert told.startswith(short)
    rows = dict(line.split(" ", 1) for line in told.splitlines())
    assert {"python", "machine", "onnx", "onnxruntime", "numpy", "click"} <= set(rows)
    assert str(Path.home()) not in told
    assert "backend qnn-htp (deploykit " in told


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
    assert {"package", "--numerics"} <= set(words)
    assert "plan" not in words
