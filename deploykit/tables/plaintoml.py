"""Reads the plain part of TOML that data files use, at the speed of the JSON scanner; the rest it leaves to tomllib.

Plain is: comments on lines of their own, ``[table]`` and ``[[array]]`` headers of bare keys, and ``key = value`` on one
line where the key is bare or quoted and the value a literal string, JSON as well (basic string, number, boolean, or a
list of them), or an inline table of such JSON values; a list may also stand on lines of its own, a value and a comma
each. Anything else, whatever is wrong included, is answered with None and never with a guess: the caller then asks
tomllib, which is several times slower and says what is wrong. It stays because of the budget of a query, 0.15 s of
processor time: ``deploykit compat`` reads every table, ``targets`` every device. On an idle machine they take 0.12 s
each with it, 0.27 and 0.20 s with tomllib alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["parse_plain"]

_KEY = re.compile(r'[A-Za-z0-9_-]+|"[^"\\]*"')
_INLINE_KEY = re.compile(r'([A-Za-z0-9_-]+|"[^"\\]*") = ')
_HEADER = re.compile(r"\[(\[)?([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\](?(1)\])")
# Where TOML and JSON differ inside a value, and characters that TOML refuses anywhere.
_NOT_PLAIN = re.compile(r"\\[u/]|[\x00-\x08\x0b-\x1f\x7f]")


def _refuse(word: str) -> Any:
    raise ValueError(word)


_scan = json.JSONDecoder(parse_constant=_refuse).raw_decode


def parse_plain(text: str) -> dict[str, Any] | None:
    """The document as tomllib gives it, or None when it is not plain."""
    if _NOT_PLAIN.search(text):
        return None
    root: dict[str, Any] = {}
    table: dict[str, Any] | None = root
    arrays: set[int] = set()
    closed: set[int] = set()
    try:
        for line in _joined(text.split("\n")):
            if not line or line[0] == "#":
                continue
            if line[0] == "[":
                table = _opened(root, line, arrays, closed)
            elif table is not None and not _set(table, line, closed):
                return None
            if table is None:
                return None
    except (ValueError, RecursionError):  # not JSON
        return None
    return root


def _joined(lines: list[str]) -> Iterator[str]:
    """The lines, with a list that stands on several of them on one."""
    waiting: list[str] = []
    for line in lines:
        if waiting:
            waiting.append(line.strip())
            if line == "]":
                # The comma after the last value is TOML and no JSON.
                whole = "".join(waiting)
                yield f"{whole[:-2]}]" if whole[-2:] == ",]" else whole
                waiting = []
        elif line[-4:] == " = [":
            waiting = [line]
        else:
            yield line
    yield from waiting


def _set(table: dict[str, Any], line: str, closed: set[int]) -> bool:
    key, _, value = line.partition(" = ")
    if not _KEY.fullmatch(key):
        return False
    key = key.strip('"')
    if key in table:
        return False
    if value[:1] == "'":
        table[key] = value[1:-1]
        return value.find("'", 1) == len(value) - 1
    if value[:2] == "{ ":
        table[key] = {}
        closed.add(id(table[key]))
        return _fill(table[key], value)
    found, end = _scan(value)
    table[key] = found
    return end == len(value) and _is_toml(found)


def _fill(table: dict[str, Any], text: str) -> bool:
    """Read ``{ key = value, "key" = value }`` into a table."""
    at = 2
    while match := _INLINE_KEY.match(text, at):
        key = match[1].strip('"')
        if key in table:
            return False
        table[key], at = _scan(text, match.end())
        if not _is_toml(table[key]):
            return False
        if text[at:] == " }":
            return True
        if text[at : at + 2] != ", ":
            return False
        at += 2
    return False


def _is_toml(value: Any) -> bool:
    """JSON null has no counterpart, and a JSON object is written differently."""
    if isinstance(value, list):
        return all(map(_is_toml, value))
    return value is not None and not isinstance(value, dict)


def _opened(root: dict[str, Any], line: str, arrays: set[int], closed: set[int]) -> dict[str, Any] | None:
    """The table that a header opens; None for a header that is not plain or opens a table again.

    ``arrays`` holds the identities of the lists that headers made: only those may grow. ``closed`` are those of tables
    written in one line, which nothing may enter.
    """
    match = _HEADER.fullmatch(line)
    if match is None:
        return None
    path = tuple(match[2].split("."))
    node: Any = root
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if id(node) in arrays:
            node = node[-1]
        if not isinstance(node, dict) or id(node) in closed:
            return None
    made: dict[str, Any] = {}
    name = path[-1]
    if not match[1]:
        return None if name in node else node.setdefault(name, made)
    if name not in node:
        node[name] = []
        arrays.add(id(node[name]))
    if id(node[name]) not in arrays:
        return None
    node[name].append(made)
    return made
