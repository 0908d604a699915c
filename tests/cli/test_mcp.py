"""The commands that only read, over the Model Context Protocol: the same JSON, and no value slips in as an option."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.cli.mcp import TOOLS, serve

MLP = Path(__file__).parents[1] / "data" / "aimet" / "mlp"


def ask(*requests: dict[str, Any] | str) -> list[dict[str, Any]]:
    lines = [one if isinstance(one, str) else json.dumps({"jsonrpc": "2.0", **one}) for one in requests]
    answers = io.StringIO()
    serve(io.StringIO("".join(f"{line}\n" for line in lines)), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def call(name: str, **arguments: str) -> dict[str, Any]:
    (answer,) = ask({"id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
    return answer


def test_a_client_is_introduced_and_shown_the_tools() -> None:
    first, second = ask(
        {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-03-26"}},
        {"method": "notifications/initialized"},
        {"id": "b", "method": "tools/list"},
    )
    assert first["result"]["protocolVersion"] == "2025-03-26"
    assert first["result"]["serverInfo"]["name"] == "deploykit"
    assert second["id"] == "b"
    assert {tool["name"] for tool in second["result"]["tools"]} == set(TOOLS)
    assert all(tool["annotations"]["readOnlyHint"] for tool in second["result"]["tools"])


def test_an_unknown_protocol_is_answered_with_one_that_is_known() -> None:
    (answer,) = ask({"id": 0, "method": "initialize", "params": {"protocolVersion": "1999-01-01"}})
    assert answer["result"]["protocolVersion"] == "2025-06-18"


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_is_a_command_that_takes_what_its_schema_says(name: str) -> None:
    import click

    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    # With its own settings: click keeps the help option made for the first context that asks.
    params = command.get_params(click.Context(command, **command.context_settings))
    assert {f"--{option}" for option in TOOLS[name].options} <= {flag for param in params for flag in param.opts}
    places = [param for param in params if isinstance(param, click.Argument)]
    assert len(TOOLS[name].arguments) <= len(places) or any(param.nargs == -1 for param in places)


def test_a_tool_answers_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call("compat", feature="encodings-2.0.0", sdk="2.33")
    assert run(cli, ["compat", "encodings-2.0.0", "--sdk", "2.33", "--json"]) == 0
    (content,) = answer["result"]["content"]
    assert json.loads(content["text"]) == json.loads(capsys.readouterr().out)
    assert answer["result"]["isError"] is False


def test_a_no_is_an_answer_and_an_error_is_told() -> None:
    blocked = call(
        "check", model=str(MLP / "model.onnx"), target="sm8650", encodings=str(MLP / "bq-w4a16.v1.0.0.encodings")
    )
    assert blocked["result"]["isError"] is False
    assert "QNN124" in blocked["result"]["content"][0]["text"]
    missing = call("check", model="nowhere.onnx", target="sm8650")
    assert missing["result"]["isError"] is True
    assert json.loads(missing["result"]["content"][0]["text"])["error"]["exit_status"] == 3


def test_no_value_is_taken_for_an_option(tmp_path: Path) -> None:
    answer = call("check", model=f"--write-baseline={tmp_path / 'slipped'}", target="sm8650")
    assert answer["result"]["isError"] is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ("no json", -32700),
        ("[1]", -32600),
        ({"id": 1, "method": "resources/list"}, -32601),
        ({"id": 1, "method": "tools/call", "params": {"name": "build", "arguments": {}}}, -32602),
        ({"id": 1, "method": "tools/call", "params": {"name": "check", "arguments": {"model": "m"}}}, -32602),
        ({"id": 1, "method": "tools/call", "params": {"name": "rule", "arguments": {"code": 1}}}, -32602),
        (
            {"id": 1, "method": "tools/call", "params": {"name": "rule", "arguments": {"code": "DK001", "x": ""}}},
            -32602,
        ),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_next_request_answered(request_: Any, code: int) -> None:
    refused, answered = ask(request_, {"id": 9, "method": "ping"})
    assert refused["error"]["code"] == code
    assert answered == {"jsonrpc": "2.0", "id": 9, "result": {}}


def test_it_runs_as_a_process_and_ends_with_its_input() -> None:
    asked = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rule", "arguments": {"code": "DK001"}}}
    )
    done = subprocess.run(
        [sys.executable, "-m", "deploykit", "mcp"],
        input=asked + "\n",
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert "DK001" in json.loads(line)["result"]["content"][0]["text"]
