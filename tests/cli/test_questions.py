"""Command lines that ask, also through the server for agents."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.cli.mcp import READING, argv, schema
from deploykit_qualcomm.known_errors import known_errors as qualcomm_errors
from deploykit_vitis_ai.tables import known_errors as vitis_errors
from tables import each_row
from told import check_told


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str, status: int = 0) -> str:
        assert run(cli, list(args)) == status
        return "".join(capsys.readouterr())

    return call


# ---- compat ----------------------------------------------------------------------------------------------------------


def test_without_a_word_the_features_are_listed_those_of_wheels_too(call: Any) -> None:
    lines = call("compat").splitlines()
    assert "encodings-2.0.0" in lines and len(lines) < 400
    assert "onnxruntime 1.28.0" in call("compat", "onnxruntime-qnn 2.3.0")
    assert json.loads(call("compat", "quark", "--backend", "vitis-ai", "--json"))["rows"]


# ---- targets ---------------------------------------------------------------------------------------------------------


def test_every_device_of_every_backend_is_listed(call: Any) -> None:
    value = json.loads(call("targets", "--json"))
    ids = [target["id"] for target in value["targets"]]
    assert ids == sorted(ids)
    assert {"sm8550", "sm8650", "sm8750", "sa8775p", "qcs6490", "sc8380xp"} <= set(ids)
    assert {"vek385", "phoenix", "strix", "krackan"} <= set(ids) and len(ids) >= 113 + 4


# ---- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_looks_at_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path))  # what this machine has half installed is not the point
    status = run(cli, ["doctor", "--json"])
    value = json.loads(capsys.readouterr().out)
    lines = {line["id"]: line for line in value["lines"]}
    assert lines["python"]["state"] == "ok"
    assert all(line["next"] for line in lines.values() if line["state"] != "ok")
    assert status == int(not value["ok"]) == int(any(line["state"] == "problem" for line in lines.values()))


def test_a_tool_answers_what_the_command_prints_and_an_error_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(FAILURE)
    argv = [sys.executable, "-m", "deploykit.cli.mcp"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stdin is not None and server.stdout is not None
        put, answers = server.stdin, server.stdout

        def send(method: str, **more: Any) -> None:
            put.write(json.dumps({"jsonrpc": "2.0", "method": method, **more}) + "\n")
            put.flush()

        def ask(method: str, **params: Any) -> Any:
            send(method, id=1, params=params)
            return json.loads(answers.readline())["result"]

        me = {"name": "a test", "version": "1"}
        assert ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=me)["instructions"]
        send("notifications/initialized")
        tools = ask("tools/list")["tools"]
        answer = ask("tools/call", name="compat", arguments={"feature": "encodings-2.0.0", "sdk": "2.33"})
        no = ask("tools/call", name="diagnose", arguments={"log": str(tmp_path / "log")})
        error = ask("tools/call", name="check", arguments={"model": "nowhere.onnx", "target": "sm8650"})
        put.close()
    assert {tool["name"] for tool in tools} == set(READING)
    assert all(tool["annotations"] == {"readOnlyHint": True, "openWorldHint": False} for tool in tools)
    assert run(cli, ["compat", "encodings-2.0.0", "--sdk", "2.33", "--json"]) == 0
    assert json.loads(answer["content"][0]["text"]) == json.loads(capsys.readouterr().out) and not answer["isError"]
    assert not no["isError"] and json.loads(no["content"][0]["text"])["conclusion"] == "failed"
    assert error["isError"] and json.loads(error["content"][0]["text"])["error"]["exit_status"] == 3


def test_the_schema_is_made_from_the_command() -> None:
    made = {name: schema(name) for name in READING}
    assert all(one.pop("additionalProperties") is False and one.pop("type") == "object" for one in made.values())
    told = {
        name: [f"{key}: {one['type']}{', needed' * (key in of['required'])}" for key, one in of["properties"].items()]
        for name, of in made.items()
    }
    assert all(one["description"] for of in made.values() for one in of["properties"].values())
    hostile: Any = {"model": "--version", "target": "-h", "plan": True, "feature": "a b", "sdk": 2, "log": "-"}
    told |= {f"{name} as typed": argv(name, hostile | {"plan": name == "check"}) for name in READING}
    told["check without a plan"] = argv("check", {"model": "m", "plan": False})
    check_told(Path(__file__).with_name("served.told"), told)


FAILURE = (
    '<E> "_block_0_value_Add" generated: could not create op\ngraph_prepare.cc:1:ERROR:could not create op: q::Foo\n'
)
COMMANDS = sorted({row.way_out for catalog in (qualcomm_errors(), vitis_errors()) for row in catalog.errors} - {""})


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FAILURE.encode())))
    assert run(cli, ["diagnose", "-"]) == 1
    assert "op-creation" in capsys.readouterr().out


@each_row("text", *COMMANDS)
def test_the_commands_that_are_advised_exist(text: str) -> None:
    """Every way out is a call that this installation understands, word for word."""
    program, *words = shlex.split(text)
    assert program == "deploykit"
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    assert command is not None, text
    command.make_context(command.name, list(words))
