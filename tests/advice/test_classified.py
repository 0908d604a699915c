"""Every advice that is printed is followed in a test, or only a person can follow it, and then the reason stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from deploykit.answers.rule_pages import all_rules
from deploykit.backend.plugins import load_backend
from deploykit.cli import COMMANDS, cli
from deploykit.findings import Finding
from deploykit.flow.rules import CORE_REGISTRIES
from deploykit.flow.ways import WIDER_END
from deploykit.rewrites.contract import transform_names
from tables import each_row

Lines = tuple[Any, ...]

HERE = Path(__file__).parent
RULES = {entry.rule.code: entry.rule for entry in all_rules(CORE_REGISTRIES)}
BETWEEN = re.compile(r"(?:[\s,;:.()]|\b(?:or|and|give)\b)*")
OF_OTHER_TOOLS = {"--dim_param", "--dim_value", "--input_name", "--input_shape", "--compare", "--float_fallback"}


def unclassified(lines: Lines, code: str, words: str) -> str:
    """What is left of an advice when the parts that stand in the file are taken out of it."""
    for advice in sorted((a for a in lines if a.code == code), key=lambda a: -len(a.words)):
        words = re.sub(advice.pattern, "", words)
    return "" if BETWEEN.fullmatch(words) else words


@each_row("code", sorted(RULES))
def test_every_advice_is_in_the_file(code: str, bench: Any, lines: Lines) -> None:
    """A new rule, or new words, need a line in ``data/advice.toml`` that says how the advice is tried."""
    findings: tuple[Finding, ...] = bench.found(code)
    assert findings
    for words in {RULES[code].fix, *(finding.hint for finding in findings)}:
        left = unclassified(lines, code, words)
        assert not left, f"tests/data/advice.toml: [{code}] lacks {left!r}"


def test_the_file_speaks_of_no_rule_that_is_gone(lines: Lines) -> None:
    assert {advice.code for advice in lines} == RULES.keys()


@cache
def ways() -> frozenset[str]:
    """The keys of WAYS in the test modules beside this one."""
    found: set[str] = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            if any(isinstance(target, ast.Name) and target.id == "WAYS" for target in targets):
                value = getattr(node, "value", None)
                assert isinstance(value, ast.Dict)
                found |= {ast.literal_eval(key) for key in value.keys if key is not None}
    return frozenset(found)


def test_every_advice_that_can_be_followed_is_followed(lines: Lines) -> None:
    named = [(f"{a.code} {a.way}", a.way) for a in lines if not a.is_outside]
    assert [full for full, short in named if not ways() & {full, short}] == []


def test_no_way_is_tried_that_nobody_advises(lines: Lines) -> None:
    named = {f"{a.code} {a.way}" for a in lines} | {a.way for a in lines}
    assert ways() <= named


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
        rewrites = re.findall(r"-rewrite ([a-z][a-z0-9-]*)(?: or ([a-z]+-[a-z0-9-]+))?", text)
        assert {name for pair in rewrites for name in pair if name} <= {*transform_names(), WIDER_END}, text


def test_what_names_an_option_or_a_command_is_followed(lines: Lines) -> None:
    named = re.compile(r"(?<![\w-])--[a-z]|'deploykit |^deploykit ")
    assert [a.words for a in lines if a.is_outside and named.search(a.words)] == []


WAYS: dict[str, Callable[[Any], Any]] = {"clean": lambda bench: None}


def test_the_clean_case_is_one_where_it_was_followed(advice: Any, bench: Any) -> None:
    found = bench.look(advice.code, bench.clean(advice.code))
    assert [finding for finding in found if finding.handled is None and finding.severity != "info"] == []
