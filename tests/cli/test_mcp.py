"""The commands that only read, over the Model Context Protocol: the same JSON, and no value slips in as an option."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.cli.mcp import READING, argv, schema
from tables import each_row


async def _session(*calls: tuple[str, dict[str, Any]]) -> tuple[set[str], list[tuple[bool, str]]]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-m", "deploykit.cli.mcp"], env=dict(os.environ))
    # The test's own stderr is no file.
    async with (
        stdio_client(server, errlog=sys.__stderr__ or sys.stderr) as (answers, requests),
        ClientSession(answers, requests) as session,
    ):
        await session.initialize()
        listed = (await session.list_tools()).tools
        assert all(tool.annotations is not None and tool.annotations.readOnlyHint for tool in listed)
        found = [await session.call_tool(name, arguments) for name, arguments in calls]
        told = [(bool(one.isError), str(one.content[0].text)) for one in found]  # type: ignore[union-attr]
        return {tool.name for tool in listed}, told


def test_a_tool_answers_what_the_command_prints_and_an_error_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    names, (answer, error) = anyio.run(
        _session,
        ("compat", {"feature": "encodings-2.0.0", "sdk": "2.33"}),
        ("check", {"model": "nowhere.onnx", "target": "sm8650"}),
    )
    assert run(cli, ["compat", "encodings-2.0.0", "--sdk", "2.33", "--json"]) == 0
    assert json.loads(answer[1]) == json.loads(capsys.readouterr().out)
    assert names == set(READING) and not answer[0]
    assert error[0] and json.loads(error[1])["error"]["exit_status"] == 3


@each_row("name", READING)
def test_the_schema_is_made_from_the_command(name: str) -> None:
    made = schema(name)
    assert made["additionalProperties"] is False and set(made["required"]) <= set(made["properties"])
    assert set(READING[name]) <= set(made["properties"])


def test_no_value_is_taken_for_an_option() -> None:
    assert argv("check", {"model": "--version", "target": "-h", "plan": True}) == [
        *("check", "--json", "--target=-h", "--plan", "--", "--version")
    ]
    assert "--plan" not in argv("check", {"model": "m", "target": "t", "plan": False})
