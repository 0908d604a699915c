"""The reference pages made from the code: command line, Python, options, rules, schemas, tables. It writes no file.

What the pages say stands in the code and its tables alone; whoever wants another word there changes it there.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

import deploykit
from deploykit.answers.rule_pages import RuleEntry, all_rules, rule_page
from deploykit.backend import conformance
from deploykit.backend.backend import AnyBackend
from deploykit.backend.options import OptionSpec
from deploykit.backend.plugins import all_devices, all_options, load_backends
from deploykit.backend.requests import CORE_OPTIONS
from deploykit.cli import COMMANDS, cli
from deploykit.cli.frame import BranchingCommand
from deploykit.flow.rules import core_registries
from deploykit.rewrites.contract import load_transform, transform_names
from deploykit.tables.capabilities import CompatRow
from deploykit_qualcomm.atlas.rows import Row, atlas_rows, where_it_holds
from schemas import schema_texts

__all__ = ["cell", "every_option", "option_page", "pages"]

_WIDTH = 100


def pages() -> Mapping[str, str]:
    """Every generated page by its path below ``docs``."""
    backends = load_backends()
    rules = all_rules(core_registries())
    return {
        "reference/cli.md": command_page(),
        "reference/api.md": api_page(),
        "reference/options.md": option_page(every_option()),
        "reference/rules/README.md": rule_index(rules),
        **{f"reference/rules/{entry.rule.code}.md": rule_page(entry) + _messages(entry) for entry in rules},
        "reference/rewrites.md": rewrite_page(rules),
        "reference/kernels.md": kernel_page(atlas_rows()),
        "reference/schemas.md": schema_page(schema_texts()),
        **{f"schemas/{name}": text for name, text in schema_texts().items()},
        "reference/sources.md": source_page(backends),
        "reference/devices.md": device_page(),
        "reference/features.md": feature_page(backends),
    }


def command_page() -> str:
    """Every command with its help text, as ``--help`` prints it."""
    root = click.Context(cli, info_name="deploykit")
    parts = [
        "# Command line\n\nEvery command, as `--help` shows it. What `--json` to `--help` do goes with every command, "
        "before or after its name; every option has an environment variable, `DEPLOYKIT_` and its name."
    ]
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        parts.append(f"## deploykit {name}\n\n{COMMANDS[name]}")
        parts += _helps(command, _context(command, name, root))
    return "\n\n".join(parts) + "\n"


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    settings = {"max_content_width": _WIDTH, **command.context_settings}
    return click.Context(command, info_name=name, parent=parent, **settings)


def _helps(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"```text\n{command.get_help(context)}\n```"
    if isinstance(command, BranchingCommand):
        for name, branch in command.branches.items():
            yield f"### {context.command_path} {name}"
            yield from _helps(branch, _context(branch, f"{context.info_name} {name}", context.parent))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield f"### {context.command_path} {name}"
            yield from _helps(below, _context(below, name, context))


def api_page() -> str:
    """Every public function with its signature and what it says of itself."""
    parts = ["# Python\n\n`import deploykit`: every command is one function. The package is typed (`py.typed`)."]
    parts += [_function(getattr(deploykit, name), f"deploykit.{name}") for name in deploykit.__all__]
    parts.append("## For whoever writes a backend\n\n`deploykit.backend.conformance`: what every backend is held to.")
    parts += [_function(getattr(conformance, name), name) for name in conformance.__all__]
    return "\n\n".join(parts) + "\n"


def _function(function: Callable[..., Any], name: str) -> str:
    signature = inspect.signature(function)
    rows = [f"    {one}," for one in _parameters(signature)]
    text = "\n".join([f"{name}(", *rows, f") -> {signature.return_annotation}"])
    return f"## {name}\n\n```text\n{text}\n```\n\n{inspect.getdoc(function) or ''}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield str(parameter).replace("'", "")


def every_option() -> Mapping[OptionSpec, tuple[str, ...]]:
    """The options of the core, which belong to no backend, then those of the installed backends."""
    return {**dict.fromkeys(CORE_OPTIONS, ()), **all_options()}


def option_page(owned: Mapping[OptionSpec, tuple[str, ...]]) -> str:
    """Every option of ``package`` and ``check``, by whose it is."""
    parts = [
        "# Options\n\nEach option is also an environment variable, `DEPLOYKIT_` and its name; blanks separate the "
        "texts of an option that takes several. An option of another backend than the one that packages, an unknown "
        "name or a value of another type is a usage error (exit status 2), in Python too."
    ]
    for owners in dict.fromkeys(owned.values()):
        rows = [_option(spec) for spec in owned if owned[spec] == owners]
        parts.append(f"## Options of {' and '.join(owners) or 'every backend'}")
        parts.append(_table(("option", "in Python", "takes", "default", "what"), rows))
    return "\n\n".join(parts) + "\n"


def _option(spec: OptionSpec) -> tuple[object, ...]:
    typed = f"`{spec.flag}`, `--no-{spec.flag[2:]}`" if spec.kind == "switch" else f"`{spec.flag}`"
    what = f"{spec.help} Since {spec.since}." if spec.since else spec.help
    return typed, f"`{spec.name}`", spec.expects, spec.default_text or "–", what


def rule_index(entries: Sequence[RuleEntry]) -> str:
    """Every rule with a link to its page."""
    rows = [
        (
            f"[{entry.rule.code}]({entry.rule.code}.md)",
            entry.rule.slug,
            entry.rule.severity,
            ", ".join(entry.backends) or "every backend",
            entry.rule.what,
        )
        for entry in entries
    ]
    told = _table(("code", "name", "severity", "applied by", "what"), rows)
    return f"# Rules\n\n{len(rows)} rules.\n\n{told}\n"


def _messages(entry: RuleEntry) -> str:
    """What the rule's check may say, so that the search finds the page by words of a message; names become "…"."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(entry.rule.check)))
    except (OSError, TypeError):
        return ""
    (check,) = tree.body
    assert isinstance(check, ast.FunctionDef)
    inside = {id(part) for node in ast.walk(check) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    said = []
    for node in (node for statement in check.body[1:] for node in ast.walk(statement)):
        if isinstance(node, ast.JoinedStr):
            said.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            said.append(node.value)
    lines = dict.fromkeys(" ".join(text.split()) for text in said if text.count(" ") > 1)
    return "\n".join(["", "## What it says", "", *(f"* {cell(line)}" for line in lines), ""]) if lines else ""


def rewrite_page(entries: Sequence[RuleEntry]) -> str:
    """Every rewrite: what it does, how far outputs may differ, and which findings it may take away by itself."""
    rows = []
    for name in transform_names():
        transform = load_transform(name)
        cured = [entry.rule.code for entry in entries if name in entry.rule.cure]
        ulps = "not compared" if transform.ulps is None else f"{transform.ulps:g}" if transform.ulps else "bit for bit"
        links = ", ".join(f"[{code}](rules/{code}.md)" for code in cured)
        rows.append((f"[{name}](../rewrites.md#{name})", transform.summary, ulps, links or "–"))
    told = _table(("name", "what it does", "allowed float32 roundings, at each place", "tried by itself for"), rows)
    head = f"# Rewrites\n\n{len(rows)} rewrites; `--rewrite NAME` asks for one, `--no-rewrite NAME` leaves it out."
    return f"{head}\n\n{told}\n"


def kernel_page(rows: Sequence[Row]) -> str:
    """Under which conditions kernels were measured to be wrong, narrowed or refused, and where else that is so."""
    parts = ["# Kernels\n\nWhat the compiler makes of operators, as measured ([how](../audit.md))."]
    header = ("operator", "types", "verdict", "when", "cases", "off by, of the range", "case", "elsewhere")
    for sdk in dict.fromkeys(row.sdk for row in rows):
        told = [_kernel(row) for row in rows if row.sdk == sdk]
        parts.append(f"## Measured with QAIRT {sdk}\n\n" + _table(header, told))
    return "\n\n".join(parts) + "\n"


def _kernel(row: Row) -> tuple[object, ...]:
    off = f"{100 * min(row.most / row.span, 1):.3g} %" if row.span else ""
    types = " ".join(row.types)
    return row.op, types, row.verdict, row.condition, row.cases, off, f"`{row.id}`", where_it_holds(row)


def schema_page(schemas: Mapping[str, str]) -> str:
    """Every JSON Schema: what the file is, its keys, which of them it must have."""
    parts = [
        "# Schemas of data files\n\nGenerated from the classes that load the files; editors take them as they are."
    ]
    for name in sorted(schemas):
        schema = json.loads(schemas[name])
        needed = schema.get("required", ())
        rows = [
            (f"`{key}`", _type(value), "yes" if key in needed else "", value.get("description", ""))
            for key, value in schema.get("properties", {}).items()
        ]
        parts.append(f"## {name}\n\n{schema.get('description', schema['title'])} [The file](../schemas/{name}).")
        parts.append(_table(("key", "type", "needed", "what"), rows))
    return "\n\n".join(parts) + "\n"


def _type(value: Mapping[str, Any]) -> str:
    kinds = (
        value.get("type") or value.get("$ref", "").rpartition("/")[2] or " or ".join(map(_type, value.get("anyOf", ())))
    )
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def source_page(backends: Sequence[AnyBackend]) -> str:
    """Every source that a row of a capability table names: how many rows rest on it, and how sure they are."""
    parts = [
        "# Tables and their sources\n\nWhat the rows of the capability tables rest on "
        "([confidence](../explain.md#how-sure-a-row-is)); the rows are [features](features.md)"
        " and [devices](devices.md)."
    ]
    for backend in backends:
        cited: dict[str, Counter[str]] = {}
        for row in backend.compat():
            for source in row.source:
                cited.setdefault(source, Counter())[str(row.confidence)] += 1
        dates = backend.source_dates()
        rows = [
            (
                source,
                sum(count.values()),
                ", ".join(f"{n} {kind}" for kind, n in count.most_common()),
                _date(source, dates),
            )
            for source, count in sorted(cited.items(), key=lambda item: (-item[1].total(), item[0]))
        ]
        parts.append(f"## {backend.id}\n\n" + _table(("source", "rows", "how sure", "compared"), rows))
    return "\n\n".join(parts) + "\n"


def _date(source: str, dates: Mapping[str, str]) -> str:
    begins = [start for start in dates if source.startswith(start)]
    return dates[max(begins, key=len)] if begins else "unknown"


def device_page() -> str:
    """Every device with what is known of it and since who says so."""
    parts = ["# Devices\n\n`deploykit targets` lists them. A fact that is not there is unknown, never false."]
    for device in all_devices():
        names = ", ".join(dict.fromkeys(filter(None, (device.marketing, *device.aliases))))
        parts.append(f"## {device.id}\n\n{device.vendor} {device.name}{f' ({names})' if names else ''}. {device.note}")
        facts = [
            (name, fact.value, fact.confidence, "; ".join(fact.source), fact.note)
            for name, fact in device.facts.items()
        ]
        parts.append(_table(("fact", "value", "how sure", "source", "note"), facts))
    return "\n\n".join(parts) + "\n"


def feature_page(backends: Sequence[AnyBackend]) -> str:
    """Every row of the capability tables but those of single operators, which ``compat op`` answers."""
    parts = ["# Features\n\n`deploykit compat FEATURE` answers from these rows; of operators, `compat op NAME` does."]
    header = ("feature", "tool", "on", "releases", "status", "how sure", "source")
    for backend in backends:
        rows = [_feature(row) for row in backend.compat() if not row.feature.startswith("op")]
        parts.append(f"## {backend.id}\n\n" + _table(header, rows))
    return "\n\n".join(parts) + "\n"


def _feature(row: CompatRow) -> tuple[object, ...]:
    return f"`{row.feature}`", row.tool, row.arch, row.sdk, row.status, row.confidence, "; ".join(row.source)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(value: object) -> str:
    """A value as a cell of a Markdown table."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")
