"""``deploykit diagnose``: exit statuses, JSON, mangled names through a real model, and commands that exist."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import click
import onnx
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit_qualcomm.known_errors import known_errors as qualcomm_errors
from deploykit_vitis_ai.tables import known_errors as vitis_errors
from tables import each_row

FAILURE = (
    '<E> "_block_0_value_Add" generated: could not create op\ngraph_prepare.cc:1:ERROR:could not create op: q::Foo\n'
)
CALL = "qnn-onnx-converter -i m.onnx\n"
COMMANDS = sorted({row.way_out for catalog in (qualcomm_errors(), vitis_errors()) for row in catalog.errors} - {""})


def log(tmp_path: Path, text: str = FAILURE) -> str:
    path = tmp_path / "build.log"
    path.write_text(text)
    return str(path)


@each_row(
    ("text", "status", "says"),
    [
        (FAILURE, 1, "error op-creation"),
        (FAILURE, 1, "source:"),
        ("ERROR: the moon is full\n", 1, "not understood"),
        (f"{CALL}2024-05-14 19:12:07,136 - 235 - INFO - Conversion complete!\n", 0, "did its job"),
        (CALL, 1, "nothing says that a tool did its job"),
    ],
)
def test_only_a_tool_that_says_so_has_finished(
    text: str, status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["diagnose", log(tmp_path, text)]) == status
    assert says in capsys.readouterr().out


def test_json_names_the_nodes_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Add (x, x) }'
    )
    model.graph.node[0].name = "/block.0/value/Add"
    onnx.save(model, tmp_path / "m.onnx")
    assert run(cli, ["diagnose", log(tmp_path), "--model", str(tmp_path / "m.onnx"), "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1
    (cause,) = value["causes"]
    (name,) = cause["names"]
    assert (name["log"], name["onnx"], name["kind"]) == ("_block_0_value_Add", ["/block.0/value/Add"], "node")


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FAILURE.encode())))
    assert run(cli, ["diagnose", "-"]) == 1
    assert "op-creation" in capsys.readouterr().out


@each_row(("args", "status"), [((), 2), (("no-such.log",), 3), ((".",), 3)])
def test_wrong_calls(args: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["diagnose", *args]) == status
    assert "next" in capsys.readouterr().err or status == 3


def test_every_known_error_is_reachable_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["diagnose", "--known", "", "--json"]) == 0
    ids = {row["id"] for row in json.loads(capsys.readouterr().out)["errors"]}
    assert {row.id for row in (*qualcomm_errors().errors, *vitis_errors().errors)} <= ids
    assert run(cli, ["diagnose", "--known", "bert-hang"]) == 0
    assert "no message" in capsys.readouterr().out


@each_row("text", COMMANDS)
def test_the_commands_that_are_advised_exist(text: str) -> None:
    """Every way out is a call that this installation understands, word for word."""
    program, *words = shlex.split(text)
    assert program == "deploykit"
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    assert command is not None, text
    command.make_context(command.name, list(words))
