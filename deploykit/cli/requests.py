"""The options that package, plan and check share: made of the specs of the core and of every installed backend.

A backend's options appear here because its specs say so. The values become a request; what they mean is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from deploykit.backend.options import OptionSpec, OptionValue, read_value
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import CORE_OPTIONS, make_request
from deploykit.cli.frame import Command
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from deploykit.backend.backend import Request

__all__ = ["RequestCommand", "SpecOption", "TargetsCommand", "request_from"]

_TARGET = "DEPLOYKIT_TARGET"
_TARGET_HELP = "Device id, chip or marketing name."
_SEVERAL_HELP = f"{_TARGET_HELP} Repeatable: one package each, in a folder by its id."


def _reader(specs: tuple[OptionSpec, ...]) -> Callable[[Any], OptionValue]:
    """Reads a value that at least one of the specs of a name takes; the chosen backend's has the last word later."""

    def read(given: Any) -> OptionValue:
        if not isinstance(given, str):
            return given  # type: ignore[no-any-return]  # a default
        for spec in specs[:-1]:
            try:
                return read_value(spec, given)
            except UsageError:
                continue
        return read_value(specs[-1], given)

    return read


class SpecOption(click.Option):
    """The command-line form of one name; ``owners`` are the backends that have it, none for an option of the core."""

    def __init__(self, specs: tuple[OptionSpec, ...], owners: tuple[str, ...] = ()) -> None:
        spec, self.owners = specs[0], owners
        shape: dict[str, Any] = {"type": _reader(specs), "default": spec.default, "metavar": _metavar(spec)}
        if spec.kind in ("flag", "switch"):
            shape = {"is_flag": True, "default": spec.unset}
        elif spec.kind == "texts":
            shape = {"type": click.STRING, "multiple": True, "default": spec.default, "metavar": spec.metavar}
        typed = f"{spec.flag}/--no-{spec.flag[2:]}" if spec.kind == "switch" else spec.flag
        super().__init__([spec.name, typed], help=_help(spec), envvar=spec.envvar, **shape)


def _metavar(spec: OptionSpec) -> str:
    return spec.metavar or (f"[{'|'.join(spec.choices)}]" if spec.choices else spec.kind.upper())


def _help(spec: OptionSpec) -> str:
    facts = [] if spec.default is None or isinstance(spec.default, bool) else [f"default: {spec.default_text}"]
    facts += [f"since {spec.since}"] if spec.since else []
    return f"{spec.help}  [{'; '.join(facts)}]" if facts else spec.help


@cache
def _backend_params(taken: frozenset[str]) -> tuple[SpecOption, ...]:
    """The options of every installed backend, each name once, without those that a command has already."""
    by_name: dict[str, dict[OptionSpec, tuple[str, ...]]] = {}
    for spec, owners in all_options().items():
        if spec.name not in taken:
            by_name.setdefault(spec.name, {})[spec] = owners
    return tuple(
        SpecOption(tuple(specs), tuple(sorted({owner for owners in specs.values() for owner in owners})))
        for specs in by_name.values()
    )


class RequestCommand(Command):
    """A command about one model and one target, with the options of the core and of every backend."""

    def __init__(self, *args: Any, params: Iterable[click.Parameter] = (), **kwargs: Any) -> None:
        model = click.Argument(["model"], type=click.Path(path_type=Path))
        core = [SpecOption((spec,)) for spec in CORE_OPTIONS]
        super().__init__(*args, params=[model, self._target(), *core, *params], **kwargs)

    def _target(self) -> click.Option:
        return click.Option(["--target"], required=True, envvar=_TARGET, metavar="DEVICE", help=_TARGET_HELP)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own, then those of the backends, which are looked for here and not when this is imported."""
        own = super().get_params(ctx)
        return [*own, *_backend_params(frozenset(str(param.name) for param in own))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help by whose options they are."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record, owners = param.get_help_record(ctx), getattr(param, "owners", ())
            if record is not None and isinstance(param, click.Option):
                title = f"Options of {' and '.join(owners)}" if owners else "Options"
                sections.setdefault(title, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class TargetsCommand(RequestCommand):
    """A command about one model and one target or several."""

    def _target(self) -> click.Option:
        return click.Option(
            ["targets", "--target"], required=True, multiple=True, envvar=_TARGET, metavar="DEVICE", help=_SEVERAL_HELP
        )


def request_from(*, model: Path, target: str, options: Iterable[str], **given: Any) -> Request:
    """The request that the shared options describe; of the backends' options only those that were given."""
    source = click.get_current_context().get_parameter_source
    core = {spec.name for spec in CORE_OPTIONS}
    given = {name: v for name, v in given.items() if name in core or source(name) is not ParameterSource.DEFAULT}
    return make_request(model, target, options=[_pair(text) for text in options], **given)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageError(f"--option {text}: KEY=VALUE is expected")
    return key, value
