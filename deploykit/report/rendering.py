"""Renders templates from the data package ``deploykit_templates`` to text, with shell words quoted once.

JSON is serialised, never templated. Nothing is written to the user's disk.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined, TemplateError
from jinja2.bccache import Bucket
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deploykit.errors import DefectError, UsageError
from deploykit.findings.records import Json
from deploykit.system.store import Store, key_of

__all__ = ["markdown_text", "render"]


def render(template: str, values: Json, *, templates: Path | None = None, own: Path | None = None) -> str:
    """The text of one template. Files in ``templates``, a folder of the user's, come first.

    ``own`` is the folder of a backend with its own templates; a template that it does
    not have is looked for among the built-in ones.

    With templates of the user's, all run in Jinja's sandbox: they see the given values, and no Python.

    Filters: ``sh`` quotes one shell word, ``words`` a whole argv, ``comment`` makes text safe in a shell comment,
    ``md`` in Markdown, ``py`` gives a Python literal. An undefined name in a built-in template is a defect.
    """
    try:
        return _environment(templates, own, ".html" in template).get_template(template).render(values)
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        if templates is not None and (templates / template).exists():
            raise UsageError(f"{templates / template}: the template fails", why=str(error)) from None
        raise DefectError(f"template {template}: {error}") from error


@cache
def _environment(templates: Path | None, own: Path | None, is_page: bool) -> Environment:
    if templates is not None and not templates.is_dir():
        raise UsageError(f"{templates}: no such template folder")
    folders = [FileSystemLoader(folder) for folder in (templates, own) if folder is not None]
    kind = Environment if templates is None else ImmutableSandboxedEnvironment
    environment = kind(
        loader=ChoiceLoader([*folders, PackageLoader("deploykit_templates", ".")]),
        undefined=StrictUndefined,
        finalize=_visible if is_page else None,
        autoescape=lambda name: name is not None and ".html" in name,
        keep_trailing_newline=True,
        optimized=False,  # there are few constants, and looking for them takes longer
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=None if templates else _Compiled(),
    )
    environment.filters |= {
        "sh": shlex.quote,
        "words": shlex.join,
        "comment": shell_comment,
        "md": markdown_text,
        "py": repr,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
    }
    return environment


class _Compiled(jinja2.BytecodeCache):
    """Keeps compiled built-in templates between runs: compiling takes longer than rendering."""

    def load_bytecode(self, bucket: Bucket) -> None:
        # Jinja itself checks that its version and Python's match the code; ``finalize`` is compiled in.
        depends = {"source": bucket.checksum, "page": bucket.environment.finalize is not None}
        bucket.key = key_of(bucket.key.encode(), depends)
        if found := Store("templates").get(bucket.key):
            with suppress(ValueError):  # code of another release is compiled again and replaced
                bucket.bytecode_from_string(bytes.fromhex(found["code"]))

    def dump_bytecode(self, bucket: Bucket) -> None:
        Store("templates").put(bucket.key, {"code": bucket.bytecode_to_string().hex()}, tidy=False)


def shell_comment(text: str, kept: str = "") -> str:
    """Text on one line, with control characters replaced except those in ``kept``, so that it cannot leave a
    comment.
    """
    letters = (letter if letter.isprintable() or letter in kept else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return "".join(letters)


def markdown_text(text: str) -> str:
    """Text on one line that no Markdown viewer treats as HTML."""
    return shell_comment(text).replace("&", "&amp;").replace("<", "&lt;")


def _visible(value: Any) -> Any:
    """Text with its control characters replaced, except line ends and tabs; any other value unchanged."""
    if type(value) is not str or value.isprintable():  # text marked as HTML is the template's own
        return value
    # Python does not count a no-break space as printable; pages use it between a number and its unit.
    return shell_comment(value, "\n\t\N{NO-BREAK SPACE}")
