"""The usual options of commands, each in one line: a switch, a text, a path. It knows no command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["F", "argument", "flag", "option", "options", "path"]

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)


def option(name: str, metavar: str | None, words: str, *names: str, **how: Any) -> Callable[[F], F]:
    """An option that takes a value, with its help; ``names`` are further spellings, and that of the parameter."""
    return click.option(name, *names, metavar=metavar, help=words, **how)


def argument(name: str, **how: Any) -> Callable[[F], F]:
    """An argument that is a path."""
    return click.argument(name, type=_PATH, **how)


def path(name: str, metavar: str | None, words: str, *names: str, **how: Any) -> Callable[[F], F]:
    """An option that takes a path."""
    return option(name, metavar, words, *names, type=_PATH, **how)


def flag(name: str, words: str, *names: str) -> Callable[[F], F]:
    """An option that is off unless it is given."""
    return click.option(name, *names, help=words, is_flag=True)


def options(*made: Callable[[F], F]) -> Callable[[F], F]:
    """Several of them, in their order."""

    def add(function: F) -> F:
        for one in reversed(made):
            function = one(function)
        return function

    return add
