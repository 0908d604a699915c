"""``deploykit mcp``: the commands that only read, served over the Model Context Protocol on stdin and stdout.

Each tool is one command line with ``--json`` and answers what that prints. Nothing is written, built or installed here.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from typing import IO, Any

import click

from deploykit.cli.frame import Command, run

__all__ = ["TOOLS", "Tool", "command", "serve"]

_PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""What this serves is the same in all of them; a client that asks for another one is offered the first."""
_PARSE_ERROR, _INVALID, _NO_METHOD, _BAD_PARAMS = -32700, -32600, -32601, -32602
_LONGEST_LINE = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One command: what it says of itself, its positional arguments and its options, each with its words.

    The first ``needed`` of the arguments and the options named in ``asked`` must be given.
    """

    about: str
    arguments: Mapping[str, str]
    options: Mapping[str, str]
    needed: int = 1
    asked: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what is given; every value is a text."""
        return {
            "type": "object",
            "properties": {
                name: {"type": "string", "description": words}
                for name, words in {**self.arguments, **self.options}.items()
            },
            "required": [*list(self.arguments)[: self.needed], *self.asked],
            "additionalProperties": False,
        }

    def argv(self, name: str, given: Mapping[str, str]) -> list[str]:
        """The command line; no value can be taken for an option."""
        options = [f"--{option}={given[option]}" for option in self.options if option in given]
        return [name, "--json", *options, "--", *(given[key] for key in self.arguments if key in given)]


_MODEL = {"model": "path of the ONNX file"}
_REQUEST = {
    "target": "the device, as 'targets' lists it",
    "sdk": "the release of its SDK",
    "encodings": "path of the quantization encodings",
    "precision": "what a float model is to become: fp16, w8a16, ...",
    "calibration": "path of samples",
    "backend": "one of the device's backends",
}
TOOLS: Mapping[str, Tool] = {
    "check": Tool(
        about="What stands in the way of a model on a device: findings with codes, way out and source.",
        arguments=_MODEL,
        options=_REQUEST,
        asked=("target",),
    ),
    "plan": Tool(
        about="The decision for a model and a device: route, rejected routes and why, commands, findings.",
        arguments=_MODEL,
        options=_REQUEST,
        asked=("target",),
    ),
    "compat": Tool(
        about="Which SDK, tool, architecture and device has a feature, since when, and who says so.",
        arguments={"feature": "the feature, in a word: encodings-2.0.0, fp16, lpbq, ..."},
        options={"sdk": "only at this release", "target": "only what concerns this device"},
    ),
    "targets": Tool(
        about="The devices that are known, or one of them with all facts and their sources.",
        arguments={"device": "an id, a name or a marketing name"},
        options={},
        needed=0,
    ),
    "diagnose": Tool(
        about="Known failures in a vendor's log: cause, way out, source.",
        arguments={"log": "path of the log"},
        options={"model": "path of the ONNX file, to map mangled names back"},
    ),
    "rule": Tool(
        about="What a finding's code means, why it matters, how to get rid of it.",
        arguments={"code": "the code, as in a finding: QNN101"},
        options={},
    ),
    "explain": Tool(
        about="A package in words: can it be shipped, what was decided and why, what was changed and measured.",
        arguments={"package": "path of the package folder"},
        options={},
    ),
}


@click.command("mcp", cls=Command)
def command() -> int:
    """Serve the commands that only read to an agent or an editor, over the Model Context Protocol on stdin and stdout.

    It reads what the caller names and writes nothing; it ends with its input.
    """
    serve(sys.stdin, sys.stdout)
    return 0


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer JSON-RPC requests, one a line, until there are no more."""
    while line := requests.readline(_LONGEST_LINE):
        if not line.strip():
            continue
        for answer in _answers(line):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _answers(line: str) -> Iterator[dict[str, Any]]:
    """The answer to one request; none to a notification."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        yield _failure(None, _PARSE_ERROR, "not JSON")
        return
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        yield _failure(None, _INVALID, "not a request")
    elif "id" in request:
        given = request.get("params")
        yield _answer(request["id"], request["method"], given if isinstance(given, dict) else {})


def _answer(id_: Any, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return _success(id_, _introduction(given.get("protocolVersion")))
        case "ping":
            return _success(id_, {})
        case "tools/list":
            return _success(id_, {"tools": [_listed(name, tool) for name, tool in TOOLS.items()]})
        case "tools/call":
            return _called(id_, given)
        case _:
            return _failure(id_, _NO_METHOD, f"there is no method {method!r}")


def _introduction(wanted: object) -> dict[str, Any]:
    return {
        "protocolVersion": wanted if wanted in _PROTOCOLS else _PROTOCOLS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "deploykit", "version": version("deploykit")},
        "instructions": "Read only. 'not judged' is no yes; a finding that is handled needs nothing.",
    }


def _listed(name: str, tool: Tool) -> dict[str, Any]:
    hints = {"readOnlyHint": True, "openWorldHint": False}
    return {"name": name, "description": tool.about, "inputSchema": tool.schema(), "annotations": hints}


def _called(id_: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = given.get("name"), given.get("arguments", {})
    if not isinstance(name, str) or name not in TOOLS or not isinstance(arguments, dict):
        return _failure(id_, _BAD_PARAMS, f"there is no tool {name!r}")
    schema = TOOLS[name].schema()
    problems = [f"{key} is missing" for key in schema["required"] if key not in arguments]
    problems += [f"{key} is unknown" for key in arguments if key not in schema["properties"]]
    problems += [f"{key} is not a text" for key, value in arguments.items() if not isinstance(value, str)]
    if problems:
        return _failure(id_, _BAD_PARAMS, "; ".join(problems))
    status, text = _run(TOOLS[name].argv(name, arguments))
    # A no is an answer; anything above it is an error, which the text describes.
    return _success(id_, {"content": [{"type": "text", "text": text}], "isError": status > 1})


def _run(argv: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run(_root(), argv)
    return status, out.getvalue() or err.getvalue()


def _root() -> click.Command:
    from deploykit.cli import cli

    return cli


def _success(id_: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": dict(result)}


def _failure(id_: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}
