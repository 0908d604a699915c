"""Makes options of commands: the usual ones in one line each, and those that package and check share.

The shared ones are made from the specs of the core and of every installed backend. The values
become a request, and are not interpreted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from deploykit.backend.backend import Request
from deploykit.backend.options import OptionSpec, OptionValue, read_value
from deploykit.backend.plugins import all_options, load_backend
from deploykit.backend.requests import CORE_OPTIONS, make_request
from deploykit.cli.frame import Command
from deploykit.errors import UsageError
from deploykit.findings.records import Names

__all__ = ["F", "RequestCommand", "argument", "flag", "option", "options", "pair", "path", "request_from"]

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)


def option(name: str, metavar: str | None, words: str, *names: str, **how: Any) -> Callable[[F], F]:
    """Makes an option with a value and its help; ``names`` are further spellings and the parameter's name."""
    return click.option(name, *names, metavar=metavar, help=words, **how)


def argument(name: str, **how: Any) -> Callable[[F], F]:
    """Makes an argument that is a path."""
    return click.argument(name, type=_PATH, **how)


def path(name: str, metavar: str | None, words: str, *names: str, **how: Any) -> Callable[[F], F]:
    """Makes an option that takes a path."""
    return option(name, metavar, words, *names, type=_PATH, **how)


def flag(name: str, words: str, *names: str) -> Callable[[F], F]:
    """Makes an option that is off unless it is given."""
    return click.option(name, *names, help=words, is_flag=True)


def options(*made: Callable[[F], F]) -> Callable[[F], F]:
    """Combines several options, in their order."""

    def add(function: F) -> F:
        for one in reversed(made):
            function = one(function)
        return function

    return add


_TARGET = "DEPLOYKIT_TARGET"
_TARGET_HELP = "Device id, chip or marketing name."
_SEVERAL_HELP = f"{_TARGET_HELP} Repeatable: one package each, in a folder by its id."
# These options are left out so that the help fits on two screens; '--help-backend all' shows them.
_RARE = frozenset({"references", "no_rewrite", "samples", "options", "float_tensors"})


class SpecOption(click.Option):
    """The command-line form of one option name; ``owners`` are the backends that have it, empty for one of the core."""

    def __init__(self, specs: tuple[OptionSpec, ...], owners: Names = ()) -> None:
        spec, self.owners = specs[0], owners
        metavar = spec.metavar or (f"[{'|'.join(spec.choices)}]" if spec.choices else spec.kind.upper())

        def read(given: Any) -> OptionValue:
            """The value by the first spec that accepts it; the chosen backend checks it later."""
            if not isinstance(given, str):
                return given  # type: ignore[no-any-return]  # a default
            for spec in specs[:-1]:
                try:
                    return read_value(spec, given)
                except UsageError:
                    continue
            return read_value(specs[-1], given)

        shape: dict[str, Any] = {"type": read, "default": spec.default, "metavar": metavar}
        if spec.kind in ("flag", "switch"):
            shape = {"is_flag": True, "default": spec.unset}
        elif spec.kind == "texts":
            shape = {"type": click.STRING, "multiple": True, "default": spec.default, "metavar": spec.metavar}
        facts = [] if spec.default is None or isinstance(spec.default, bool) else [f"default: {spec.default_text}"]
        facts += [f"since {spec.since}"] if spec.since else []
        words = f"{spec.help}  [{'; '.join(facts)}]" if facts else spec.help
        typed = f"{spec.flag}/--no-{spec.flag[2:]}" if spec.kind == "switch" else spec.flag
        super().__init__([spec.name, typed], help=words, envvar=spec.envvar, **shape)


@cache
def _backend_params(taken: frozenset[str]) -> tuple[SpecOption, ...]:
    """The options of every installed backend, each name once, without those that the command already has."""
    by_name = dict[str, dict[OptionSpec, Names]]()
    for spec, owners in all_options().items():
        if spec.name not in taken:
            by_name.setdefault(spec.name, {})[spec] = owners
    return tuple(
        SpecOption(tuple(specs), tuple(sorted({owner for owners in specs.values() for owner in owners})))
        for specs in by_name.values()
    )


class RequestCommand(Command):
    """A command about one model and one target (or ``several``), with the options of the core and of every backend."""

    def __init__(
        self, *args: Any, params: Iterable[click.Parameter] = (), several: bool = False, **kwargs: Any
    ) -> None:
        named: dict[str, Any] = {"required": True, "envvar": _TARGET, "metavar": "DEVICE", "help": _TARGET_HELP}
        target = click.Option(["--target"], **named)
        if several:
            target = click.Option(["targets", "--target"], multiple=True, **(named | {"help": _SEVERAL_HELP}))
        more = click.Option(
            ["--help-backend"],
            is_eager=True,
            expose_value=False,
            callback=self._show_help_of,
            metavar="ID",
            help="Show the options of one backend, or 'all', and exit.",
        )
        model = click.Argument(["model"], type=click.Path(path_type=Path))
        core = [SpecOption((spec,)) for spec in CORE_OPTIONS]
        super().__init__(*args, params=[model, target, *core, *params, more], **kwargs)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own options, then those of the backends, which are only looked up on this call."""
        own = super().get_params(ctx)
        return [*own, *_backend_params(frozenset(str(param.name) for param in own))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options of the core; ``--help-backend`` writes those of a backend."""
        shown = [
            param for param in self.get_params(ctx) if not getattr(param, "owners", ()) and param.name not in _RARE
        ]
        _write(ctx, formatter, "Options", shown)

    def _show_help_of(self, ctx: click.Context, _param: click.Parameter, backend: str | None) -> None:
        if backend is None or ctx.resilient_parsing:
            return
        if backend != "all":
            load_backend(backend)  # raises an error for an unknown backend, with the nearest names
        formatter = ctx.make_formatter()
        params = self.get_params(ctx)
        if backend == "all":
            _write(ctx, formatter, "Options", [param for param in params if not getattr(param, "owners", ())])
        groups = dict[Names, list[click.Parameter]]()
        for param in params:
            owners = getattr(param, "owners", ())
            if owners and backend in ("all", *owners):
                groups.setdefault(owners, []).append(param)
        for owners, found in groups.items():
            _write(ctx, formatter, f"Options of {' and '.join(owners)}", found)
        click.echo(formatter.getvalue().strip() or f"{backend} has no options of its own")
        ctx.exit()


def _write(ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Iterable[click.Parameter]) -> None:
    records = [param.get_help_record(ctx) for param in params if isinstance(param, click.Option)]
    with formatter.section(title):
        formatter.write_dl([record for record in records if record is not None])


def request_from(*, model: Path, target: str, options: Iterable[str], **given: Any) -> Request:
    """The request from the shared options; only options that the user gave count."""
    source = click.get_current_context().get_parameter_source
    given = {name: v for name, v in given.items() if source(name) is not ParameterSource.DEFAULT}
    return make_request(model, target, options=[pair(text) for text in options], **given)


def pair(text: str) -> tuple[str, str]:
    """Splits the ``KEY=VALUE`` of ``--option``. Raises UsageError for any other text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageError(f"--option {text}: KEY=VALUE is expected", next="for instance --option vtcm_mb=8")
    return key, value
