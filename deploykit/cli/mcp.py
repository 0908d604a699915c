"""``python -m deploykit.cli.mcp``: the commands that only read, over the Model Context Protocol on stdin and stdout.

Each tool runs one command line with ``--json`` and returns its output; its schema is made from the command. Nothing is
written, built or installed here. It needs the extra ``deploykit[mcp]``.
"""

from __future__ import annotations

import asyncio
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import click

from deploykit.cli import COMMANDS, cli
from deploykit.cli.frame import run
from deploykit.findings.records import Json

__all__ = ()

READING = {
    "check": "--plan --sdk --encodings --precision --calibration --backend --target",
    "compat": "--sdk --target",
    "targets": "",
    "diagnose": "--model",
    "explain": "--sdk --target",
    "verify": "",
}
"""The commands that are served, each with the options that a client may give."""


def _params(name: str) -> list[click.Parameter]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    wanted = {*READING[name].split()}
    every = command.get_params(click.Context(command, **command.context_settings))
    return [param for param in every if isinstance(param, click.Argument) or wanted & {*param.opts}]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a command's arguments; a flag is a boolean, any other argument a string."""
    properties, required = {}, []
    for param in _params(name):
        key = str(param.name) if isinstance(param, click.Argument) else param.opts[0].removeprefix("--")
        is_flag = getattr(param, "is_flag", False)
        properties[key] = {
            "type": "boolean" if is_flag else "string",
            "description": getattr(param, "help", None) or str(param.make_metavar(click.Context(cli))),
        }
        required += [key] if param.required else []
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def argv(name: str, given: Json) -> list[str]:
    """The command line for a call; no value can be taken for an option."""
    options, places = [], []
    for param in _params(name):
        if isinstance(param, click.Argument):
            places += [str(given[str(param.name)])] if param.name in given else []
        elif (key := param.opts[0].removeprefix("--")) in given:
            options += (
                [f"--{key}"] * bool(given[key]) if getattr(param, "is_flag", False) else [f"--{key}={given[key]}"]
            )
    return [name, "--json", *options, "--", *places]


async def serve() -> None:
    """Answers requests until the input ends."""
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

    server: Any = Server(
        "deploykit", instructions="Read only. 'not judged' is no yes; a handled finding needs nothing."
    )

    @server.list_tools()  # type: ignore[untyped-decorator]
    async def tools() -> list[Tool]:
        hints = ToolAnnotations(readOnlyHint=True, openWorldHint=False)
        return [Tool(name=n, description=COMMANDS[n], inputSchema=schema(n), annotations=hints) for n in READING]

    @server.call_tool()  # type: ignore[untyped-decorator]
    async def call(name: str, arguments: dict[str, Any]) -> CallToolResult:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = run(cli, argv(name, arguments))
        # Exit status 1 is an answer; a higher one is an error, which the text describes.
        text = TextContent(type="text", text=out.getvalue() or err.getvalue())
        return CallToolResult(content=[text], isError=status > 1)

    async with stdio_server() as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


if __name__ == "__main__":
    try:
        asyncio.run(serve())
    except ImportError:
        sys.exit("the Model Context Protocol needs its SDK: pip install 'deploykit[mcp]'")
