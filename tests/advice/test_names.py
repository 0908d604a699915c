"""Every option, command and rewrite that an advice names exists."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from deploykit.answers.rule_pages import all_rules
from deploykit.backend.plugins import load_backend
from deploykit.cli import COMMANDS, cli
from deploykit.cli.toolchain import known_toolchains
from deploykit.flow.rules import CORE_REGISTRIES
from deploykit.flow.ways import WIDER_END
from deploykit.rewrites.contract import transform_names
from tables import each_row

RULES = {entry.rule.code: entry.rule for entry in all_rules(CORE_REGISTRIES)}
OF_OTHER_TOOLS = {"--dim_param", "--dim_value", "--input_name", "--input_shape", "--compare", "--float_fallback"}


def options_of(code: str) -> set[str]:
    """The options of all commands and of the backends that apply a rule."""
    names = set(_options_of_commands())
    for backend in map(load_backend, ("qnn-htp", "ort-qnn", "vitis-ai")):
        if any(rule.code == code for registry in backend.registries() for rule in registry):
            names |= {f"--{spec.name.replace('_', '-')}" for spec in backend.options()}
    return names


@cache
def _options_of_commands() -> frozenset[str]:
    found: set[str] = set()
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        inner = [*getattr(command, "commands", {}).values(), *getattr(command, "branches", {}).values()]
        shared = [spec for one in (command, *inner) for spec in one.params if getattr(spec, "opts", None)]
        found |= {option for spec in shared for option in (*spec.opts, *spec.secondary_opts)}
    return frozenset(found)


@each_row("code", sorted(RULES))
def test_options_commands_and_rewrites_that_are_named_exist(code: str, bench: Any) -> None:
    words = {RULES[code].fix, *(finding.hint for finding in bench.found(code))}
    for text in words:
        named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - OF_OTHER_TOOLS
        assert not named or named <= options_of(code), text
        commands = re.findall(r"(?:^|')deploykit ([a-z]+)", text)
        assert set(commands) <= set(COMMANDS), text
        toolchains = re.findall(r"toolchain install ([\w.=]+)", text)
        assert set(toolchains) <= {name for spec in known_toolchains() for name in (spec.name, spec.id)}, text
        rewrites = re.findall(r"-rewrite ([a-z][a-z0-9-]*)(?: or ([a-z]+-[a-z0-9-]+))?", text)
        assert {name for pair in rewrites for name in pair if name} <= {*transform_names(), WIDER_END}, text
